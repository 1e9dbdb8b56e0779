package heartbeat

import (
	"sync"
	"time"
)

// reaches reports whether the last beat reached the database, and claims may be handed out.
func (k *Heartbeater) Reachable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lastErr == nil && k.Clock() < k.freshUntil
}

// age is the time since the last beat that reached the database; negative: none has.
func (k *Heartbeater) Age() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lastBeat == 0 {
		return -1
	}
	return k.Clock() - k.lastBeat
}

// failure is why the last beat did not reach the database; nil: it did.
func (k *Heartbeater) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lastErr
}

// lock is the keeper's own, for who wants to know whether it is free.
func (k *Heartbeater) Locker() sync.Locker { return &k.mu }
