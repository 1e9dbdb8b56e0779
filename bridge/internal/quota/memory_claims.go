package quota

import "time"

// Max returns the limit in bytes.
func (b *Memory) Max() int64 {
	if b.Limit == nil {
		return DefaultBufferMemory
	}
	return b.Limit()
}

// perSession returns how many unread bytes a client can have when more is claimed for it: a part of the free memory.
func (b *Memory) perSession() int64 {
	if !b.known.Load() {
		return MaxUnread
	}
	return min(max(b.left.Load()/unreadShare, minUnread), MaxUnread)
}

// HasRoom reports whether memory is free.
func (b *Memory) HasRoom() bool { return !b.known.Load() || b.left.Load() > 0 }

// ReserveClaims reserves memory for the claims of a commit, as far as there is some. If that is less than one whole
// reply and half of the memory is free, it reserves a whole reply. It returns the reserved bytes.
func (b *Memory) ReserveClaims(whole int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measure()
	most := b.Max()
	n := max(0, min(b.left.Load(), most/claimsShare))
	if n < whole && b.claims == 0 && b.used-b.in <= most/2 {
		n = whole
	}
	b.claims += n
	b.use(n)
	return n
}

// ReturnClaims returns the part of a reservation that was not needed. It wakes no one, because that memory was
// free before.
func (b *Memory) ReturnClaims(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims -= n
	b.used -= n
	b.measure()
}

// ReleaseClaims ends a reservation.
func (b *Memory) ReleaseClaims(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims -= n
	b.use(-n)
}

// WakeWhenFree wakes the claims of c when memory is free, and soon evicts the sessions that stall.
func (b *Memory) WakeWhenFree(c ClaimWaker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.starved == nil {
		b.starved = make(map[ClaimWaker]struct{})
	}
	b.starved[c] = struct{}{}
	if b.evicting {
		return
	}
	b.evicting = true
	time.AfterFunc(stalledAfter/2, func() {
		b.evictStalled(b.Max())
		b.mu.Lock()
		defer b.mu.Unlock()
		b.evicting = false
		for c := range b.starved {
			c.WakeClaims()
		}
		clear(b.starved)
	})
}

// AddPrefetched adds n bytes of prefetched jobs, which can be negative.
func (b *Memory) AddPrefetched(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prefetched += n
	b.use(n)
}

// ReserveInspection reserves memory for a database result of that many bytes, and waits for it. The caller must call
// done.
func (b *Memory) ReserveInspection(gone <-chan struct{}, bytes int64) (done func(), err error) {
	most, bytes := b.Max(), messageCopies*bytes
	deadline := time.NewTimer(memoryWait)
	defer deadline.Stop()
	again := time.NewTicker(stalledAfter / 2)
	defer again.Stop()
	for {
		freed := b.tryInspection(bytes)
		if freed == nil {
			return func() { b.endInspection(bytes) }, nil
		}
		select {
		case <-freed:
		case <-again.C:
			b.evictStalled(most)
		case <-gone:
			return nil, &MemoryError{most}
		case <-deadline.C:
			return nil, &MemoryError{most}
		}
	}
}

func (b *Memory) tryInspection(bytes int64) (freed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left.Load() < bytes && b.inspections > 0 { // a single inspection can always proceed
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		return b.freed
	}
	b.inspections += bytes
	b.use(bytes)
	return nil
}

func (b *Memory) endInspection(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inspections -= bytes
	b.use(-bytes)
}
