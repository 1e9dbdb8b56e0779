package bridge

import "time"

// most is the limit.
func (b *buffers) most() int64 {
	if b.limit == nil {
		return DefaultBuffered
	}
	return b.limit()
}

// each is what a session's client may owe when more is claimed for it: a part of the room
// that is left, so that there is always some for others.
func (b *buffers) each() int64 {
	if !b.known.Load() {
		return backlogHigh
	}
	return min(max(b.left.Load()/owedPart, leastOwed), backlogHigh)
}

// roomy reports whether there is room.
func (b *buffers) roomy() bool { return !b.known.Load() || b.left.Load() > 0 }

// reserve takes room for what the claims of a commit bring, as far as there is some. Where
// only one (whole) would need more than that, and half of the room is free, it has it.
func (b *buffers) reserve(whole int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measure()
	most := b.most()
	n := max(0, min(b.left.Load(), most/claimsPart))
	if n < whole && b.claims == 0 && b.used-b.in <= most/2 {
		n = whole
	}
	b.claims += n
	b.use(n)
	return n
}

// unreserve gives back what was not needed: nobody who waits for room is told, as it was there
// before.
func (b *buffers) unreserve(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims -= n
	b.used -= n
	b.measure()
}

// release gives back what was needed.
func (b *buffers) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims -= n
	b.use(-n)
}

// starve has the committer be woken when there is room, and those be ended who stand still in
// the meantime.
func (b *buffers) starve(c claimWaker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.starved == nil {
		b.starved = make(map[claimWaker]struct{})
	}
	b.starved[c] = struct{}{}
	if b.looking {
		return
	}
	b.looking = true
	time.AfterFunc(stalledAfter/2, func() {
		b.evict(b.most())
		b.mu.Lock()
		defer b.mu.Unlock()
		b.looking = false
		for c := range b.starved {
			c.wakeClaims()
		}
		clear(b.starved)
	})
}

// keep counts what is claimed ahead.
func (b *buffers) keep(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ahead += n
	b.use(n)
}

// look takes room for what a look into a database may bring, in bytes, and waits for it. The room is
// that of the look until done is called.
func (b *buffers) look(gone <-chan struct{}, bytes int64) (done func(), err error) {
	most, bytes := b.most(), copies*bytes
	deadline := time.NewTimer(bufferWait)
	defer deadline.Stop()
	again := time.NewTicker(stalledAfter / 2)
	defer again.Stop()
	for {
		freed := b.tryLook(bytes)
		if freed == nil {
			return func() { b.looked(bytes) }, nil
		}
		select {
		case <-freed:
		case <-again.C:
			b.evict(most)
		case <-gone:
			return nil, &memoryError{most}
		case <-deadline.C:
			return nil, &memoryError{most}
		}
	}
}

func (b *buffers) tryLook(bytes int64) (freed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left.Load() < bytes && b.looks > 0 { // alone it may always go on
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		return b.freed
	}
	b.looks += bytes
	b.use(bytes)
	return nil
}

func (b *buffers) looked(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks -= bytes
	b.use(-bytes)
}
