package traces

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/protocol"
)

// isTraced reports whether an event becomes a span. Publishers call it. A span needs a sampled trace. A delivery whose
// beginning is not known, because this sidecar did not see it, has no span.
func isTraced(e *jobevents.Event) bool {
	switch e.Kind {
	case jobevents.Enqueued:
	case jobevents.Acked, jobevents.Failed, jobevents.Dead, jobevents.Snoozed, jobevents.Released, jobevents.Lost:
		if e.ClaimedAt.IsZero() {
			return false
		}
	default:
		return false
	}
	return e.Job != "" && sampled(e.TraceParent)
}

// sampled reports whether a traceparent is valid and its trace is recorded.
func sampled(traceParent string) bool {
	const flags = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0")
	_, ok := protocol.TraceID(traceParent)
	return ok && strings.IndexByte("13579bdf", traceParent[flags]) >= 0
}

// record makes a span of an event, by the semantic conventions for messaging.
func record(tracer trace.Tracer, e *jobevents.Event) {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{protocol.HeaderTraceParent: e.TraceParent, protocol.HeaderTraceState: e.TraceState})
	attrs := append(make([]attribute.KeyValue, 0, 16),
		semconv.MessagingSystemKey.String("qsidecar"), semconv.MessagingDestinationName(e.Queue), semconv.MessagingMessageID(e.Job),
		attribute.String("qsidecar.database", e.Database))
	if e.Session != "" {
		attrs = append(attrs, attribute.String("qsidecar.session", e.Session))
	}
	if e.Worker != "" {
		attrs = append(attrs, attribute.String("qsidecar.worker", e.Worker))
	}
	if e.Kind == jobevents.Enqueued {
		attrs = append(attrs, semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("send"))
		start := e.ReceivedAt
		if start.IsZero() || start.After(e.Time) {
			start = e.Time // the export began after the request arrived, or the clock was set back
		}
		_, span := tracer.Start(ctx, "send "+e.Queue, trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(start), trace.WithAttributes(attrs...))
		span.End(trace.WithTimestamp(e.Time))
		return
	}
	attrs = append(attrs, semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"),
		attribute.Int("qsidecar.attempt", e.Attempt), attribute.Int("qsidecar.max_attempts", e.MaxAttempts), attribute.String("qsidecar.outcome", string(e.Kind)))
	_, span := tracer.Start(ctx, "process "+e.Queue, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(e.ClaimedAt), trace.WithAttributes(attrs...),
		trace.WithLinks(trace.LinkFromContext(ctx))) // the conventions require it beside the parent
	if !e.EnqueuedAt.IsZero() {
		span.AddEvent("enqueued", trace.WithTimestamp(e.EnqueuedAt))
	}
	if failure, text := failureOf(e); failure != "" {
		span.SetStatus(codes.Error, text)
		span.SetAttributes(semconv.ErrorTypeKey.String(failure))
	}
	span.End(trace.WithTimestamp(e.Time))
}

// failureOf returns the kind and the message of the error with which a delivery ended, or empty strings.
func failureOf(e *jobevents.Event) (kind, text string) {
	switch e.Kind {
	case jobevents.Failed, jobevents.Dead:
		kind, text = e.Cause, e.Error
		if kind == "" {
			kind = string(e.Kind)
		}
	case jobevents.Lost:
		kind, text = "lease_lost", "the worker's lease was not valid any more"
	}
	return kind, text
}
