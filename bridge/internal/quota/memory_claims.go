package quota

import "time"

// Max returns the limit in bytes.
func (m *Memory) Max() int64 {
	if m.Limit == nil {
		return DefaultBufferMemory
	}
	return m.Limit()
}

// perSession returns how many unread bytes a client can have when more is claimed for it: a part of the free memory.
func (m *Memory) perSession() int64 {
	if !m.known.Load() {
		return MaxUnread
	}
	return min(max(m.left.Load()/unreadShare, minUnread), MaxUnread)
}

// HasRoom reports whether memory is free.
func (m *Memory) HasRoom() bool { return !m.known.Load() || m.left.Load() > 0 }

// ReserveClaims reserves memory for the claims of a commit, as far as there is some. If that is less than one whole
// reply and half of the memory is free, it reserves a whole reply. It returns the reserved bytes.
func (m *Memory) ReserveClaims(whole int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.measure()
	most := m.Max()
	n := max(0, min(m.left.Load(), most/claimsShare))
	if n < whole && m.claims == 0 && m.used-m.in <= most/2 {
		n = whole
	}
	m.claims += n
	m.use(n)
	return n
}

// ReturnClaims returns the part of a reservation that was not needed. It wakes no one, because that memory was
// free before.
func (m *Memory) ReturnClaims(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims -= n
	m.used -= n
	m.measure()
}

// ReleaseClaims ends a reservation.
func (m *Memory) ReleaseClaims(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims -= n
	m.use(-n)
}

// WakeWhenFree wakes the claims of c when memory is free, and soon evicts the sessions that stall.
func (m *Memory) WakeWhenFree(c ClaimWaker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.starved == nil {
		m.starved = make(map[ClaimWaker]struct{})
	}
	m.starved[c] = struct{}{}
	if m.evicting {
		return
	}
	m.evicting = true
	time.AfterFunc(stalledAfter/2, func() {
		m.evictStalled(m.Max())
		m.mu.Lock()
		defer m.mu.Unlock()
		m.evicting = false
		for c := range m.starved {
			c.WakeClaims()
		}
		clear(m.starved)
	})
}

// AddPrefetched adds n bytes of prefetched jobs, which can be negative.
func (m *Memory) AddPrefetched(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prefetched += n
	m.use(n)
}

// ReserveInspection reserves memory for a database result of that many bytes, and waits for it. The caller must call
// done.
func (m *Memory) ReserveInspection(gone <-chan struct{}, bytes int64) (done func(), err error) {
	most, bytes := m.Max(), messageCopies*bytes
	deadline := time.NewTimer(memoryWait)
	defer deadline.Stop()
	again := time.NewTicker(stalledAfter / 2)
	defer again.Stop()
	for {
		freed := m.tryInspection(bytes)
		if freed == nil {
			return func() { m.endInspection(bytes) }, nil
		}
		select {
		case <-freed:
		case <-again.C:
			m.evictStalled(most)
		case <-gone:
			return nil, &MemoryError{most}
		case <-deadline.C:
			return nil, &MemoryError{most}
		}
	}
}

func (m *Memory) tryInspection(bytes int64) (freed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left.Load() < bytes && m.inspections > 0 { // a single inspection can always proceed
		if m.freed == nil {
			m.freed = make(chan struct{})
		}
		return m.freed
	}
	m.inspections += bytes
	m.use(bytes)
	return nil
}

func (m *Memory) endInspection(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inspections -= bytes
	m.use(-bytes)
}
