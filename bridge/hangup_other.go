//go:build !linux

package bridge

import (
	"context"
	"net"
)

// hangups does nothing here: only Linux tells a hang-up apart while nobody
// reads. On other systems the end of input counts as a hang-up.
type hangups struct{}

func newHangups(context.CancelCauseFunc) *hangups { return &hangups{} }

func (h *hangups) watch(*net.UnixConn, func()) (forget func(), err error) { return func() {}, nil }

func (h *hangups) close() error { return nil }

func hungUp(*net.UnixConn) bool { return true }
