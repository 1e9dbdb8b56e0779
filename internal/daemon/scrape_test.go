package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// leaving is a collector during which the scraper closes its connection.
type leaving struct {
	metrics []*prometheus.Desc
	leave   func()
	left    chan struct{} // closed when the server has noticed
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

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestAbortedScrape checks that an aborted scrape is logged at debug level only.
func TestAbortedScrape(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	c := &leaving{leave: leave, left: make(chan struct{})}
	for _, name := range []string{"a", "b", "c"} {
		c.metrics = append(c.metrics, prometheus.NewDesc(name, "help", nil, nil))
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	var text lockedBuffer
	a := newAdmin(registry, nil, "", slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
	a.handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil).WithContext(ctx))
	close(c.left)
	testwait.Until(t, "a metric was tried", func() bool { return strings.Contains(text.String(), "\n") })
	if lines := text.String(); strings.Count(lines, "level=DEBUG") != strings.Count(lines, "\n") {
		t.Errorf("the log has\n%s", lines)
	}
}

// unknown is a collector that can't collect one of its metrics.
type unknown struct{ known, unknown *prometheus.Desc }

func (u unknown) Describe(c chan<- *prometheus.Desc) { c <- u.known; c <- u.unknown }

func (u unknown) Collect(c chan<- prometheus.Metric) {
	c <- prometheus.MustNewConstMetric(u.known, prometheus.GaugeValue, 1)
	c <- prometheus.NewInvalidMetric(u.unknown, errors.New("the database does not answer"))
}

// TestScrapesAreWhole checks that missing or late metrics fail the whole scrape with a
// reason.
func TestScrapesAreWhole(t *testing.T) {
	u := unknown{prometheus.NewDesc("known", "help", nil, nil), prometheus.NewDesc("unknown", "help", nil, nil)}
	late := &leaving{metrics: []*prometheus.Desc{u.known}, leave: func() {}}
	for why, c := range map[string]prometheus.Collector{"the database does not answer": u, "timeout of 20s": late} {
		synctest.Test(t, func(t *testing.T) {
			late.left = make(chan struct{})
			registry := prometheus.NewRegistry()
			registry.MustRegister(c)
			a := newAdmin(registry, nil, "", slog.New(slog.DiscardHandler))
			w := httptest.NewRecorder()
			a.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			if body := w.Body.String(); w.Code != http.StatusServiceUnavailable || !strings.Contains(body, why) || strings.Contains(body, "known 1") {
				t.Errorf("the answer is %d:\n%s", w.Code, body)
			}
			close(late.left)
		})
	}
}
