package traces

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// collector is the OTLP receiver of the OpenTelemetry collector, in this process. The collector's other parts compile for a minute, and would
// only pass the spans on.
type collector struct {
	t        testing.TB
	endpoint string // of the receiver, for HTTP

	mu    sync.Mutex
	spans []span
}

// span is a span with the attributes of its resource.
type span struct {
	*tracepb.Span
	resource map[string]string
}

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
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	err := confmap.NewFromStringMap(map[string]any{
		"protocols": map[string]any{"http": map[string]any{"endpoint": c.endpoint[len("http://"):]}},
	}).Unmarshal(config)
	if err != nil {
		c.t.Fatal(err)
	}
	next, err := consumer.NewTraces(c.receive)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx := context.WithoutCancel(c.t.Context())
	otlp, err := factory.CreateTraces(ctx, receiver.Settings{
		ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(), BuildInfo: component.NewDefaultBuildInfo(),
	}, config, next)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := otlp.Start(ctx, componenttest.NewNopHost()); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := otlp.Shutdown(ctx); err != nil {
			c.t.Errorf("the collector: %v", err)
		}
	})
}

// receive keeps spans that the receiver has read.
func (c *collector) receive(_ context.Context, received ptrace.Traces) error {
	body, err := new(ptrace.ProtoMarshaler).MarshalTraces(received)
	if err != nil {
		return err
	}
	var data tracepb.TracesData
	if err := proto.Unmarshal(body, &data); err != nil {
		return err
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
	return nil
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
