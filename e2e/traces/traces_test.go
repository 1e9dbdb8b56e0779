package traces

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

func TestMain(m *testing.M) { kit.Main(m) }

// site is a sidecar that sends spans to a collector.
type site struct {
	*kit.Sidecar
	collector *collector
	admin     *admin.Listener
}

func newSite(t *testing.T) *site {
	s := kit.NewSite(t)
	place := filepath.Join(s.Dir, "admin.sock")
	c := newCollector(t)
	s.Extra = fmt.Sprintf("admin: {listen: %s}\ntraces: {endpoint: %q}\ndefaults: {backoff: {initial: 1ms, max: 1ms}, max_attempts: 2}\n", place, c.endpoint)
	sc := s.Sidecar("a")
	sc.Env = []string{"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test"}
	return &site{Sidecar: sc, collector: c, admin: admin.At(t, place)}
}

// enqueue enqueues a job in the trace that the environment of the command names.
func (s *site) enqueue(traceParent, queue string) {
	s.T.Helper()
	cmd := exec.Command(kit.Binary, "enqueue", "--socket", s.Socket, queue, "x")
	cmd.Env = append(os.Environ(), "TRACEPARENT="+traceParent, "TRACESTATE="+traceState)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.T.Fatalf("qsidecar enqueue: %v\n%s", err, out)
	}
}

// tree returns the spans of a trace as lines "service: name, outcome, under the name of its parent", sorted, and checks that
// each is linked to its parent if it is a delivery by the sidecar.
func tree(t *testing.T, spans []span, roots map[string]string) (lines []string) {
	t.Helper()
	names := roots // by id
	for _, s := range spans {
		names[hex.EncodeToString(s.GetSpanId())] = s.GetName()
	}
	for _, s := range spans {
		parent := hex.EncodeToString(s.GetParentSpanId())
		line := fmt.Sprintf("%s: %s", s.resource["service.name"], s.GetName())
		for _, a := range s.GetAttributes() {
			if a.GetKey() == "qsidecar.outcome" {
				line += ", " + a.GetValue().GetStringValue()
			}
		}
		if m := s.GetStatus().GetMessage(); m != "" {
			line += " (" + m + ")"
		}
		if parent != "" {
			line += ", under " + names[parent]
		}
		for _, l := range s.GetLinks() {
			line += ", linked to " + names[hex.EncodeToString(l.GetSpanId())]
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

const (
	traceID  = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentID = "00f067aa0ba902b7"

	traceState = "vendor=1,other=a:b"
)

// TestTraceOfCommands runs jobs with the commands. The collector gets the spans of the sampled trace, and no others. The last
// spans arrive though the sidecar stops.
func TestTraceOfCommands(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.collector.start()
	s.Start()
	s.enqueue("00-"+traceID+"-"+parentID+"-00", "mail") // not sampled
	s.enqueue("", "mail")
	s.enqueue("00-"+traceID+"-"+parentID+"-01", "mail")
	s.enqueue("00-"+traceID+"-"+parentID+"-01", "fails")
	for range 3 {
		<-s.Work("mail", "--once", "--", "true").Exited
	}
	w := s.Work("fails", "--", "sh", "-c", "echo no route >&2; exit 1")
	testwait.Until(t, "the job is dead", func() bool { return strings.Contains(s.Log(), "event=job_dead") })
	w.Signal(syscall.SIGTERM)
	<-w.Exited
	s.Signal(syscall.SIGTERM)
	if code := s.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	spans := s.collector.await(5)
	want := []string{
		"qsidecar: process fails, dead (exit status 1: no route), under the caller, linked to the caller",
		"qsidecar: process fails, failed (exit status 1: no route), under the caller, linked to the caller",
		"qsidecar: process mail, acked, under the caller, linked to the caller",
		"qsidecar: send fails, under the caller",
		"qsidecar: send mail, under the caller",
	}
	if d := cmp.Diff(want, tree(t, spans, map[string]string{parentID: "the caller"})); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
	for _, sp := range spans {
		if hex.EncodeToString(sp.GetTraceId()) != traceID {
			t.Errorf("%s is in the trace %x", sp.GetName(), sp.GetTraceId())
		}
		if sp.GetEndTimeUnixNano() <= sp.GetStartTimeUnixNano() {
			t.Errorf("%s doesn't end after it begins", sp.GetName())
		}
		if sp.GetTraceState() != traceState {
			t.Errorf("%s has the state %q", sp.GetName(), sp.GetTraceState())
		}
		if a := sp.resource; a["deployment.environment.name"] != "test" || a["host.name"] == "" || a["service.version"] == "" {
			t.Errorf("the resource %v", a)
		}
	}
}

// instrumented returns the SDK of a program, which sends its spans to the same collector.
func (s *site) instrumented(service string) trace.Tracer {
	s.T.Helper()
	e, err := otlptracehttp.New(s.T.Context(), otlptracehttp.WithEndpointURL(s.collector.endpoint+"/v1/traces"))
	if err != nil {
		s.T.Fatal(err)
	}
	p := sdk.NewTracerProvider(sdk.WithSyncer(e), sdk.WithResource(resource.NewSchemaless(semconv.ServiceName(service))))
	s.T.Cleanup(func() {
		if err := p.Shutdown(context.WithoutCancel(s.T.Context())); err != nil {
			s.T.Error(err)
		}
	})
	return p.Tracer("test")
}

// TestTraceOfInstrumentedPrograms runs a producer and a worker with the OpenTelemetry SDK. Their spans and those of the
// sidecar make one trace.
func TestTraceOfInstrumentedPrograms(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.collector.start()
	s.Start()
	shop, mailer := s.instrumented("shop"), s.instrumented("mailer")
	var w3c propagation.TraceContext

	c, err := qsidecar.Dial(testwait.Context(t), qsidecar.Options{Socket: s.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, order := shop.Start(testwait.Context(t), "order")
	job, err := qsidecar.NewJob("mail", "x")
	if err != nil {
		t.Fatal(err)
	}
	job.Headers = map[string]string{}
	w3c.Inject(ctx, propagation.MapCarrier(job.Headers))
	if _, err := c.Enqueue(ctx, job); err != nil {
		t.Fatal(err)
	}
	order.End()

	ctx, stop := context.WithCancel(testwait.Context(t))
	worker := &qsidecar.Worker{
		Options: qsidecar.Options{Socket: s.Socket}, Queues: []string{"mail"},
		Handler: func(ctx context.Context, job *qsidecar.Job) error {
			defer stop()
			_, span := mailer.Start(w3c.Extract(ctx, propagation.MapCarrier(job.Headers)), "smtp")
			span.End()
			return nil
		},
	}
	if err := worker.Run(ctx); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"mailer: smtp, under order", "qsidecar: process mail, acked, under order, linked to order", "qsidecar: send mail, under order", "shop: order",
	}
	if d := cmp.Diff(want, tree(t, s.collector.await(4), map[string]string{})); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
}

// TestCollectorComesLater shows that jobs run while no collector is there, and that their spans arrive later. Then a reload
// turns the export off.
func TestCollectorComesLater(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	s.enqueue("00-"+traceID+"-"+parentID+"-01", "mail")
	<-s.Work("mail", "--once", "--", "true").Exited
	testwait.Until(t, "the failure is logged", func() bool { return strings.Contains(s.Log(), "event=traces_failed") })
	s.collector.start()
	s.collector.await(2)
	testwait.Until(t, "the recovery is logged", func() bool { return strings.Contains(s.Log(), "event=traces_recovered") })
	if n := strings.Count(s.Log(), "event=traces_failed"); n != 1 {
		t.Errorf("the failure was logged %d times", n)
	}
	testwait.Until(t, "both spans are counted", func() bool { return s.admin.Scrape().Series["qsidecar_trace_spans_exported_total"] == 2 })
	if n := s.admin.Scrape().Series["qsidecar_trace_spans_dropped_total"]; n != 0 {
		t.Errorf("%v spans were dropped", n)
	}
	s.WriteConfig(strings.Replace(s.ReadConfig(), s.collector.endpoint, "", 1))
	if r := s.Dial().Must(kit.Msg{"op": "reload"}); r.Error != nil {
		t.Fatal(r.Error)
	}
	s.enqueue("00-"+traceID+"-"+parentID+"-01", "mail")
	s.Signal(syscall.SIGTERM) // sends the last spans
	s.WaitExit()
	s.collector.await(2)
}
