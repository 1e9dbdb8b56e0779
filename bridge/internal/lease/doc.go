// Package lease records the claims that exist under a sidecar's identity and the sessions that hold them.
//
// It depends on sessions (package quota) and counters (package metrics). Start reading at Table.
package lease
