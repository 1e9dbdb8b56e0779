package heartbeat

import (
	"sync"
	"time"
)

// Reachable reports whether the last heartbeat reached the database, and claims may be handed out.
func (k *Heartbeater) Reachable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lastErr == nil && k.Clock() < k.freshUntil
}

// Age is the time since the last heartbeat that reached the database; negative: none has.
func (k *Heartbeater) Age() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lastBeat == 0 {
		return -1
	}
	return k.Clock() - k.lastBeat
}

// Err is why the last heartbeat did not reach the database; nil: it did.
func (k *Heartbeater) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lastErr
}

// Locker is the heartbeater's own, for who wants to know whether it is free.
func (k *Heartbeater) Locker() sync.Locker { return &k.mu }
