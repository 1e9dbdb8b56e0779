package traces

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// collector is a real OpenTelemetry collector in this process. It passes spans on to a server of the test.
type collector struct {
	t        testing.TB
	endpoint string // of its OTLP receiver for HTTP

	mu    sync.Mutex
	spans []span
}

// span is a span with the attributes of its resource.
type span struct {
	*tracepb.Span
	resource map[string]string
}

// collectorConfig has the address of the receiver and the URL of the next hop.
const collectorConfig = `yaml:
receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {otlp_http: {endpoint: %q, compression: none, sending_queue: {enabled: false}}}
service:
  pipelines: {traces: {receivers: [otlp], exporters: [otlp_http]}}
  telemetry: {metrics: {level: none}, logs: {level: warn}}
`

// newCollector returns a collector that does not run.
func newCollector(t testing.TB) *collector {
	t.Helper()
	port, err := local.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return &collector{t: t, endpoint: "http://127.0.0.1:" + port}
}

// start runs the collector until the end of the test.
func (c *collector) start() {
	c.t.Helper()
	next := httptest.NewServer(c)
	c.t.Cleanup(next.Close)
	config := fmt.Sprintf(collectorConfig, c.endpoint[len("http://"):], next.URL)
	otel, err := otelcol.NewCollector(otelcol.CollectorSettings{
		BuildInfo: component.NewDefaultBuildInfo(),
		Factories: func() (f otelcol.Factories, err error) {
			f.Telemetry = otelconftelemetry.NewFactory()
			if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
				return f, err
			}
			f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](otlphttpexporter.NewFactory())
			return f, err
		},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: []string{config}, ProviderFactories: []confmap.ProviderFactory{yamlprovider.NewFactory()}, DefaultScheme: "yaml",
		}},
		DisableGracefulShutdown: true,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := otel.Run(context.WithoutCancel(c.t.Context())); err != nil {
			c.t.Errorf("the collector: %v", err)
		}
	}()
	c.t.Cleanup(func() {
		otel.Shutdown()
		<-ended
	})
	testwait.Until(c.t, "the collector runs", func() bool {
		select {
		case <-ended:
			c.t.Fatal("the collector ended")
		default:
		}
		return otel.GetState() == otelcol.StateRunning
	})
}

// ServeHTTP receives spans from the collector.
func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Errorf("reading spans: %v", err)
	}
	var data tracepb.TracesData
	if err := proto.Unmarshal(body, &data); err != nil {
		c.t.Errorf("spans: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range data.GetResourceSpans() {
		about := map[string]string{}
		for _, a := range rs.GetResource().GetAttributes() {
			about[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, span{s, about})
			}
		}
	}
}

// await returns n spans, once the collector has passed them on.
func (c *collector) await(n int) (spans []span) {
	c.t.Helper()
	testwait.Until(c.t, fmt.Sprintf("the collector passes on %d spans", n), func() bool {
		spans = c.received()
		return len(spans) >= n
	})
	if len(spans) > n {
		c.t.Errorf("%d spans arrived, want %d: %v", len(spans), n, spans)
	}
	return spans
}

func (c *collector) received() []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}
