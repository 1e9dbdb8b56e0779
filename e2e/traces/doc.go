// Package traces tests the traces of a sidecar with a real OpenTelemetry collector. It is a module of its own, because the
// collector has hundreds of dependencies.
package traces
