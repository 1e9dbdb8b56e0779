// Package metrics tests metrics, logs and traces.
package metrics
