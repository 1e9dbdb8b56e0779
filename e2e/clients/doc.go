// Package clients tests the client libraries and the examples against a sidecar.
package clients
