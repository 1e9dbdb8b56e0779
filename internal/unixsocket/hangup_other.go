//go:build !linux

package unixsocket

import (
	"context"
	"net"
)

// HangUpWatcher does nothing here. Only Linux reports a hang-up while nothing reads. On other systems the end of
// input counts as a hang-up.
type HangUpWatcher struct{}

// NewHangUpWatcher returns a watcher that notices nothing.
func NewHangUpWatcher(context.CancelCauseFunc) *HangUpWatcher { return &HangUpWatcher{} }

func (h *HangUpWatcher) watch(*net.UnixConn, func()) (forget func(), err error) {
	return func() {}, nil
}

// Close does nothing.
func (h *HangUpWatcher) Close() error { return nil }

func hungUp(*net.UnixConn) bool { return true }
