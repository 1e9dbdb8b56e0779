// Package traces sends what happens to jobs to an OpenTelemetry collector, as spans.
//
// An Exporter subscribes to the job events of a sidecar. Each enqueue is a span, and each delivery to a worker is one.
// Their parent is the job's traceparent. A goroutine of the Exporter makes spans of the events with the OpenTelemetry SDK,
// which sends them in batches. The bridge never waits for it: while the collector is slow or unreachable, the events
// fill a bounded buffer, and those that find no space are dropped and counted.
//
// Start reading at Exporter.Configure. span.go builds a span, and client.go the requests to the collector.
package traces
