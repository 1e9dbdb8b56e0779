package heartbeat

import (
	"sync"
	"time"
)

// Reachable reports whether the last heartbeat succeeded and is not late.
func (h *Heartbeater) Reachable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastErr == nil && h.Clock() < h.freshUntil
}

// Age returns the time since the last successful heartbeat; negative: there was none.
func (h *Heartbeater) Age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lastSuccess == 0 {
		return -1
	}
	return h.Clock() - h.lastSuccess
}

// Err returns the error of the last heartbeat, or nil if it succeeded.
func (h *Heartbeater) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastErr
}

// Locker is the lock of the heartbeater, for the check of the locks.
func (h *Heartbeater) Locker() sync.Locker { return &h.mu }
