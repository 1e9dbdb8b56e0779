//go:build !linux

package unixsocket

import (
	"context"
	"net"
)

// HangUpWatcher does nothing here: only Linux tells a hang-up apart while nobody
// reads. On other systems the end of input counts as a hang-up.
type HangUpWatcher struct{}

func NewHangUpWatcher(context.CancelCauseFunc) *HangUpWatcher { return &HangUpWatcher{} }

func (h *HangUpWatcher) watch(*net.UnixConn, func()) (forget func(), err error) {
	return func() {}, nil
}

func (h *HangUpWatcher) Close() error { return nil }

func hungUp(*net.UnixConn) bool { return true }
