package traces

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/qsidecar/qsidecar/internal/jobevents"
)

const (
	// bufferedEvents is how many events wait for the SDK, whose own buffer has 2,048 spans.
	bufferedEvents = 4096
	// flushTimeout bounds how long the last spans are sent when the export ends.
	flushTimeout = 3 * time.Second
)

// Exporter sends the spans of a sidecar's jobs to a collector.
type Exporter struct {
	hub       *jobevents.Hub
	version   string // of the program
	log       *slog.Logger
	transport http.RoundTripper // nil: a new one for each endpoint

	exported, dropped atomic.Int64 // spans, and events that did not become one

	mu       sync.Mutex
	endpoint string
	current  *export // nil: off
	ending   sync.WaitGroup
}

// New returns an Exporter that is off.
func New(hub *jobevents.Hub, version string, log *slog.Logger) *Exporter {
	return &Exporter{hub: hub, version: version, log: log}
}

// Configure sends the spans to another endpoint from now on. An empty one turns the export off. If it fails nothing changes.
func (e *Exporter) Configure(endpoint string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if endpoint == e.endpoint {
		return nil
	}
	var next *export
	if endpoint != "" {
		var err error
		if next, err = e.start(endpoint); err != nil {
			return err
		}
	}
	if last := e.current; last != nil {
		last.sub.Close() // the next one has subscribed already
		e.ending.Go(last.end)
	}
	e.endpoint, e.current = endpoint, next
	return nil
}

// Close sends the remaining spans, within flushTimeout, and ends the export.
func (e *Exporter) Close() {
	_ = e.Configure("") // it can't fail without an endpoint
	e.ending.Wait()
}

// Describe implements prometheus.Collector.
func (*Exporter) Describe(to chan<- *prometheus.Desc) { to <- exportedDesc; to <- droppedDesc }

// Collect implements prometheus.Collector.
func (e *Exporter) Collect(to chan<- prometheus.Metric) {
	e.mu.Lock()
	if e.current != nil {
		e.current.countMissed()
	}
	e.mu.Unlock()
	to <- prometheus.MustNewConstMetric(exportedDesc, prometheus.CounterValue, float64(e.exported.Load()))
	to <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(e.dropped.Load()))
}

var (
	exportedDesc = prometheus.NewDesc("qsidecar_trace_spans_exported_total", "Spans that the collector accepted.", nil, nil)
	droppedDesc  = prometheus.NewDesc("qsidecar_trace_spans_dropped_total", "Spans that were dropped because the collector was slow, unreachable or refused them.", nil, nil)
)

// export is the export to one endpoint.
type export struct {
	exporter *Exporter
	endpoint string
	sub      *jobevents.Subscription
	provider *sdk.TracerProvider
	cut      context.CancelCauseFunc // ends all requests to the collector
	stop     chan struct{}           // closed when no more events come
	recorded chan struct{}           // closed when all events are recorded

	mu      sync.Mutex
	failing bool  // the last request failed
	before  int64 // dropped spans before it began to fail
}

// start starts an export.
func (e *Exporter) start(endpoint string) (*export, error) {
	header, err := headers(os.Getenv)
	if err != nil {
		return nil, err
	}
	x := &export{exporter: e, endpoint: endpoint, stop: make(chan struct{}), recorded: make(chan struct{})}
	transport := e.transport
	if transport == nil {
		transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	c := &client{url: endpoint + "/v1/traces", header: header, http: &http.Client{Transport: transport}, result: x.sent}
	c.stop, x.cut = context.WithCancelCause(context.Background())
	sender, err := otlptrace.New(c.stop, c)
	if err != nil {
		x.cut(err)
		return nil, err
	}
	about, err := resource.New(c.stop, resource.WithAttributes(semconv.ServiceName("qsidecar"), semconv.ServiceVersion(e.version)),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil { // about has the attributes that were found
		e.log.Warn("can't read all attributes of traces", "event", "traces_resource_incomplete", "error", err)
	}
	x.provider = sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithSampler(sdk.AlwaysSample()), // isTraced has selected the events
		sdk.WithSpanProcessor(sdk.NewBatchSpanProcessor(counting{sender, e}, sdk.WithBlocking()))) // what it can't take waits in the subscription
	x.sub = e.hub.Subscribe(bufferedEvents, isTraced)
	go x.run(x.provider.Tracer("github.com/qsidecar/qsidecar", trace.WithInstrumentationVersion(e.version), trace.WithSchemaURL(semconv.SchemaURL)))
	return x, nil
}

// run makes spans of events until stop is closed and the buffer is empty.
func (x *export) run(tracer trace.Tracer) {
	defer close(x.recorded)
	for {
		select {
		case e := <-x.sub.Events:
			record(tracer, &e)
			continue
		case <-x.stop:
		}
		for {
			select {
			case e := <-x.sub.Events:
				record(tracer, &e)
			default:
				return
			}
		}
	}
}

// end sends the remaining spans, and stops.
func (x *export) end() {
	defer time.AfterFunc(flushTimeout, func() { x.cut(errFlush) }).Stop() // requests that fail at once let the rest end soon
	close(x.stop)
	<-x.recorded
	_ = x.provider.Shutdown(context.Background()) // counting returns no errors
	x.cut(nil)
	x.countMissed()
}

var errFlush = fmt.Errorf("the export ends, and the collector did not take the last spans within %v", flushTimeout)

func (x *export) countMissed() { x.exporter.dropped.Add(x.sub.Missed()) }

// sent logs the first failed request after a successful one, and the first successful one after that.
func (x *export) sent(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.countMissed()
	dropped := x.exporter.dropped.Load()
	switch {
	case err != nil && !x.failing:
		x.failing, x.before = true, dropped
		x.exporter.log.Warn("can't send traces", "event", "traces_failed", "endpoint", x.endpoint, "error", err)
	case err == nil && x.failing:
		x.failing = false
		x.exporter.log.Info("traces are sent again", "event", "traces_recovered", "endpoint", x.endpoint, "dropped", dropped-x.before)
	}
}

// counting counts spans. It returns no error, because the SDK would log each one.
type counting struct {
	sdk.SpanExporter
	exporter *Exporter
}

// ExportSpans implements sdk.SpanExporter.
func (c counting) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	n := int64(len(spans))
	if c.SpanExporter.ExportSpans(ctx, spans) != nil {
		c.exporter.dropped.Add(n)
		return nil
	}
	c.exporter.exported.Add(n)
	return nil
}
