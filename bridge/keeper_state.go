package bridge

import (
	"time"
)

// reaches reports whether the last beat reached the database, and claims may be handed out.
func (k *keeper) reaches() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trouble == nil && k.clock() < k.freshUntil
}

// age is the time since the last beat that reached the database; negative: none has.
func (k *keeper) age() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.beat == 0 {
		return -1
	}
	return k.clock() - k.beat
}

// failure is why the last beat did not reach the database; nil: it did.
func (k *keeper) failure() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trouble
}
