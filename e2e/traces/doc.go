// Package traces tests the traces of a sidecar with the receiver of the OpenTelemetry collector. It is a module of its own, because the
// receiver has hundreds of dependencies.
package traces
