package heartbeat

import (
	"sync"
	"time"
)

// Reachable reports whether the last heartbeat succeeded and is not late.
func (k *Heartbeater) Reachable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lastErr == nil && k.Clock() < k.freshUntil
}

// Age returns the time since the last successful heartbeat; negative: there was none.
func (k *Heartbeater) Age() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lastSuccess == 0 {
		return -1
	}
	return k.Clock() - k.lastSuccess
}

// Err returns the error of the last heartbeat, or nil if it succeeded.
func (k *Heartbeater) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lastErr
}

// Locker is the lock of the heartbeater, for the check of the locks.
func (k *Heartbeater) Locker() sync.Locker { return &k.mu }
