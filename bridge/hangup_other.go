//go:build !linux

package bridge

import "net"

// hangups does nothing here: only Linux tells a hang-up apart while nobody
// reads. On other systems the end of input counts as a hang-up.
type hangups struct{ done chan struct{} }

func newHangups() (*hangups, error) { return &hangups{done: make(chan struct{})}, nil }

func (h *hangups) run() error { <-h.done; return nil }

func (h *hangups) watch(*net.UnixConn, func()) (forget func(), err error) { return func() {}, nil }

func (h *hangups) close() error { close(h.done); return nil }

func hungUp(*net.UnixConn) bool { return true }
