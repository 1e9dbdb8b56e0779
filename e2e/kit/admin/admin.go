// Package admin reads the admin listener of a sidecar.
package admin

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Listener is a sidecar's admin listener.
type Listener struct {
	t    testing.TB
	http *http.Client
	base string
}

// At returns the admin listener at a Unix socket, or at a host and port.
func At(t testing.TB, place string) *Listener {
	tr := &http.Transport{}
	a := &Listener{t: t, http: &http.Client{Transport: tr, Timeout: testwait.Limit}, base: "http://" + place}
	if strings.Contains(place, "/") {
		a.base = "http://admin"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", place)
		}
	}
	t.Cleanup(tr.CloseIdleConnections)
	return a
}

// Get returns a page and its status code, or 0 if the connection failed.
func (l *Listener) Get(path string) (code int, body string) {
	res, err := l.http.Get(l.base + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(text)
}

// Scrape returns the metrics.
func (l *Listener) Scrape() Exposition {
	l.t.Helper()
	code, text := l.Get("/metrics")
	if code != http.StatusOK {
		l.t.Errorf("/metrics: %d %s", code, text)
	}
	e, err := readExposition(text)
	if err != nil {
		l.t.Errorf("/metrics: %v", err)
	}
	return e
}

// Exposition is the content of /metrics.
type Exposition struct {
	Text   string
	Series map[string]float64 // by name and labels, as written
	Kinds  map[string]string  // by family name: counter, gauge, …
	Help   map[string]string
}

func readExposition(text string) (Exposition, error) {
	e := Exposition{Text: text, Series: map[string]float64{}, Kinds: map[string]string{}, Help: map[string]string{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			e.Kinds[name] = kind
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			e.Help[name] = help
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return e, fmt.Errorf("the line %q", line)
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return e, fmt.Errorf("the line %q: %w", line, err)
		}
		e.Series[line[:at]] = v
	}
	return e, nil
}

// Of returns a metric of a queue in the database main. It fails the test if the metric is missing.
func (e Exposition) Of(t testing.TB, name, queue string, more ...string) float64 {
	t.Helper()
	labels := append([]string{`database="main"`, `queue="` + queue + `"`}, more...)
	if len(more) > 0 && more[0] < labels[0] {
		labels = append(more, labels[:2]...)
	}
	key := "qsidecar_" + name + "{" + strings.Join(labels, ",") + "}"
	v, ok := e.Series[key]
	if !ok {
		t.Errorf("no series %s", key)
	}
	return v
}
