package traces

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/qsidecar/qsidecar/internal/jobevents"
)

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentID    = "00f067aa0ba902b7"
	traceParent = "00-" + traceID + "-" + parentID + "-01"
)

// collector is a collector behind a transport. Each request waits for answer.
type collector struct {
	answer func(r *http.Request) (status int, err error)

	mu       sync.Mutex
	requests int
	spans    []*tracepb.Span
}

// RoundTrip implements http.RoundTripper.
func (c *collector) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.requests++
	answer := c.answer
	c.mu.Unlock()
	status := http.StatusOK
	if answer != nil {
		if status, err = answer(r); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if status == http.StatusOK {
		var data tracepb.TracesData
		if err := proto.Unmarshal(body, &data); err != nil {
			return nil, err
		}
		for _, r := range data.GetResourceSpans() {
			for _, s := range r.GetScopeSpans() {
				c.spans = append(c.spans, s.GetSpans()...)
			}
		}
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader("the body")), Request: r}, nil
}

func (c *collector) set(answer func(*http.Request) (int, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

func (c *collector) received() (requests int, spans []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests, c.spans
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

func (l *lockedBuffer) count(event string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), "event="+event+" ")
}

// exporting returns an exporter to a collector, with its hub and log.
func exporting(t *testing.T, c *collector) (*Exporter, *jobevents.Hub, *lockedBuffer) {
	t.Helper()
	var hub jobevents.Hub
	log := new(lockedBuffer)
	e := New(&hub, "1.2.3", slog.New(slog.NewTextHandler(log, nil)))
	e.transport = c
	if err := e.Configure("http://collector:4318"); err != nil {
		t.Fatal(err)
	}
	return e, &hub, log
}

// settled is a delivery of a second that ends now.
func settled(kind jobevents.Kind) jobevents.Event {
	now := time.Now()
	return jobevents.Event{
		Kind: kind, Time: now, Database: "main", Queue: "mail", Job: "7", Jobs: 1, Attempt: 2, MaxAttempts: 5, Session: "s1", Worker: "w1",
		EnqueuedAt: now.Add(-3 * time.Second), ClaimedAt: now.Add(-time.Second), TraceParent: traceParent, TraceState: "vendor=1",
	}
}

// TestSpans shows the spans of a job.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c collector
		e, hub, _ := exporting(t, &c)
		sent := settled(jobevents.Enqueued)
		sent.ClaimedAt, sent.Attempt = time.Time{}, 0
		hub.Publish(&sent) // the export began after its request
		sent.ReceivedAt = sent.Time.Add(-5 * time.Millisecond)
		hub.Publish(&sent)
		failed := settled(jobevents.Failed)
		failed.Cause, failed.Error = "nacked", "no route"
		for _, ev := range []jobevents.Event{failed, settled(jobevents.Lost), settled(jobevents.Snoozed), settled(jobevents.Acked)} {
			hub.Publish(&ev)
		}
		e.Close()
		_, spans := c.received()
		var got []string
		for _, s := range spans {
			got = append(got, describe(s))
		}
		const process = "process mail CONSUMER 1s messaging.destination.name=mail messaging.message.id=7 messaging.operation.name=process messaging.operation.type=process" +
			" messaging.system=qsidecar qsidecar.attempt=2 qsidecar.database=main qsidecar.max_attempts=5 qsidecar.outcome="
		const by = " qsidecar.session=s1 qsidecar.worker=w1"
		const send = " messaging.destination.name=mail messaging.message.id=7 messaging.operation.name=send messaging.operation.type=send messaging.system=qsidecar qsidecar.database=main" + by
		want := []string{
			"send mail PRODUCER 0s" + send, "send mail PRODUCER 5ms" + send,
			strings.Replace(process, " messaging.destination", " error.type=nacked messaging.destination", 1) + "failed" + by + " event enqueued -2s error no route",
			strings.Replace(process, " messaging.destination", " error.type=lease_lost messaging.destination", 1) + "lost" + by +
				" event enqueued -2s error the worker's lease was not valid any more",
			process + "snoozed" + by + " event enqueued -2s",
			process + "acked" + by + " event enqueued -2s",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("spans (-want +got):\n%s", d)
		}
		for _, s := range spans {
			links := 0
			if strings.HasPrefix(s.GetName(), "process") {
				links = 1
			}
			if hexOf(s.GetTraceId()) != traceID || hexOf(s.GetParentSpanId()) != parentID || len(s.GetLinks()) != links || s.GetTraceState() != "vendor=1" {
				t.Errorf("%s: the trace %x, the parent %x, links %v, state %q", s.GetName(), s.GetTraceId(), s.GetParentSpanId(), s.GetLinks(), s.GetTraceState())
			}
			for _, l := range s.GetLinks() {
				if hexOf(l.GetTraceId()) != traceID || hexOf(l.GetSpanId()) != parentID {
					t.Errorf("%s: a link to %v", s.GetName(), l)
				}
			}
		}
	})
}

// TestEventsWithoutSpans lists the events that no span is made of.
func TestEventsWithoutSpans(t *testing.T) {
	good := settled(jobevents.Acked)
	if !isTraced(&good) {
		t.Errorf("no span of %+v", good)
	}
	for name, change := range map[string]func(*jobevents.Event){
		"no trace":            func(e *jobevents.Event) { e.TraceParent = "" },
		"an invalid trace":    func(e *jobevents.Event) { e.TraceParent = "my own idea" },
		"not sampled":         func(e *jobevents.Event) { e.TraceParent = strings.TrimSuffix(traceParent, "1") + "2" },
		"claimed elsewhere":   func(e *jobevents.Event) { e.ClaimedAt = time.Time{} },
		"several jobs":        func(e *jobevents.Event) { e.Job, e.Jobs = "", 3 },
		"not the end of it":   func(e *jobevents.Event) { e.Kind = jobevents.Claimed },
		"an operator's retry": func(e *jobevents.Event) { e.Kind = jobevents.Retried },
	} {
		e := good
		if change(&e); isTraced(&e) {
			t.Errorf("%s: a span of %+v", name, e)
		}
	}
	if n := testing.AllocsPerRun(100, func() { isTraced(&good) }); n > 0 {
		t.Errorf("the filter allocates %v times", n)
	}
}

// TestUnreachableCollector shows that one line is logged when the collector becomes unreachable, and one when it is back,
// and that no span of the time between is lost.
func TestUnreachableCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c collector
		c.answer = func(*http.Request) (int, error) { return 0, errors.New("connection refused") }
		e, hub, log := exporting(t, &c)
		ev := settled(jobevents.Acked)
		hub.Publish(&ev)
		time.Sleep(12 * time.Second) // on the virtual clock
		if n, _ := c.received(); n < 3 || log.count("traces_failed") != 1 {
			t.Errorf("%d requests, and %d lines", n, log.count("traces_failed"))
		}
		c.set(func(*http.Request) (int, error) { return http.StatusServiceUnavailable, nil })
		time.Sleep(8 * time.Second)
		c.set(nil)
		hub.Publish(&ev)
		e.Close()
		_, spans := c.received()
		if len(spans) != 2 || e.exported.Load() != 2 || e.dropped.Load() != 0 || log.count("traces_failed") != 1 || log.count("traces_recovered") != 1 {
			t.Errorf("%d spans received, %d exported, %d dropped, log:\n%s", len(spans), e.exported.Load(), e.dropped.Load(), &log.text)
		}
	})
}

// TestRefusedSpans shows that spans that the collector refuses are dropped and not sent again.
func TestRefusedSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := collector{answer: func(*http.Request) (int, error) { return http.StatusNotFound, nil }}
		e, hub, log := exporting(t, &c)
		ev := settled(jobevents.Acked)
		hub.Publish(&ev)
		e.Close()
		if n, _ := c.received(); n != 1 || e.dropped.Load() != 1 || log.count("traces_failed") != 1 {
			t.Errorf("%d requests, %d dropped, log:\n%s", n, e.dropped.Load(), &log.text)
		}
		if want := `http://collector:4318/v1/traces: Not Found the body`; !strings.Contains(log.text.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &log.text)
		}
	})
}

// TestHungCollector shows that a collector that does not answer delays neither publishers nor the end for long, and that
// each event is counted.
func TestHungCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := collector{answer: func(r *http.Request) (int, error) { <-r.Context().Done(); return 0, r.Context().Err() }}
		e, hub, _ := exporting(t, &c)
		const events = 3 * bufferedEvents
		for range events {
			ev := settled(jobevents.Acked)
			hub.Publish(&ev)
		}
		begin := time.Now()
		e.Close()
		if took := time.Since(begin); took > flushTimeout {
			t.Errorf("the end took %v", took)
		}
		if n := e.exported.Load() + e.dropped.Load(); n != events || e.exported.Load() != 0 {
			t.Errorf("%d of %d spans are counted, %d as exported", n, events, e.exported.Load())
		}
	})
}

// TestConfigure shows that the export moves to another endpoint and ends, and that nothing listens while it is off.
func TestConfigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c collector
		var hosts []string
		c.answer = func(r *http.Request) (int, error) {
			hosts = append(hosts, r.URL.String()+" "+r.Header.Get("Api-Key"))
			return http.StatusOK, nil
		}
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, other=c")
		e, hub, _ := exporting(t, &c)
		ev := settled(jobevents.Acked)
		for _, endpoint := range []string{"https://second/otlp", "https://second/otlp", ""} {
			hub.Publish(&ev)
			if err := e.Configure(endpoint); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if hub.Active() {
			t.Error("something listens, though the export is off")
		}
		e.Close()
		if d := cmp.Diff([]string{"http://collector:4318/v1/traces a b", "https://second/otlp/v1/traces a b"}, hosts); d != "" {
			t.Errorf("requests (-want +got):\n%s", d)
		}
		if e.exported.Load() != 3 {
			t.Errorf("%d spans exported", e.exported.Load())
		}
	})
}

// TestHeadersOfTheEnvironment shows that an invalid variable is an error that does not contain its value.
func TestHeadersOfTheEnvironment(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "secret")
	e := New(new(jobevents.Hub), "", slog.New(slog.DiscardHandler))
	if err := e.Configure("http://collector"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
	e.Close()
}
