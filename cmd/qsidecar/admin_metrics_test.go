package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// leaving is a collector during which the scraper goes away.
type leaving struct {
	metrics []*prometheus.Desc
	leave   func()
	left    chan struct{} // closed when the server has seen it
}

func (l *leaving) Describe(c chan<- *prometheus.Desc) {
	for _, d := range l.metrics {
		c <- d
	}
}

func (l *leaving) Collect(c chan<- prometheus.Metric) {
	l.leave()
	<-l.left
	for _, d := range l.metrics {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, 1)
	}
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestAbortedScrape: a scraper that goes away is nothing that the log warns of.
func TestAbortedScrape(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	c := &leaving{leave: leave, left: make(chan struct{})}
	for _, name := range []string{"a", "b", "c"} {
		c.metrics = append(c.metrics, prometheus.NewDesc(name, "help", nil, nil))
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	var text lockedBuffer
	a := newAdmin(registry, nil, slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
	a.handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil).WithContext(ctx))
	close(c.left)
	testwait.Until(t, "each metric was tried", func() bool { return strings.Count(text.String(), "\n") == len(c.metrics) })
	if lines := text.String(); strings.Count(lines, "level=DEBUG") != len(c.metrics) {
		t.Errorf("the log has\n%s", lines)
	}
}
