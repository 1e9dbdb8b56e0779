package bridge

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// owedStep is how many bytes a session may owe without that they count, and by how much what
// counts may differ from what it owes: so small replies cost nothing here.
const owedStep = 16 << 10

// owed are the bytes that a session's client has still to read: jobs that were claimed
// for it, and replies in its outbox.
type owed struct {
	bytes   atomic.Int64
	starved atomic.Bool // its claims wait until it reads

	mu   sync.Mutex
	told int64 // to the buffers
}

// owe counts bytes that the client has to read from now on, or, below 0, has read.
func (s *session) owe(n int64) {
	if n == 0 {
		return
	}
	s.owed.bytes.Add(n)
	s.owed.mu.Lock()
	now := s.owed.bytes.Load()
	if now < owedStep {
		now = 0
	}
	if diff := now - s.owed.told; diff >= owedStep || diff <= -owedStep || now == 0 && diff != 0 {
		s.owed.told = now
		s.bridge.buffers.send(s, diff, now > 0)
	}
	s.owed.mu.Unlock()
	if n < 0 && s.owed.starved.CompareAndSwap(true, false) {
		for _, b := range s.bridge.plan.Load().banks {
			b.committer.wakeClaims()
		}
	}
}

// overloaded reports whether the client reads too slowly to get more jobs now. If so its
// claims are looked at again when it has read something.
func (s *session) overloaded() bool {
	if s.owed.bytes.Load() < s.mayOwe() {
		return false
	}
	s.owed.starved.Store(true)
	if s.owed.bytes.Load() >= s.mayOwe() {
		return true
	}
	s.owed.starved.Store(false) // it read just now
	return false
}

func (s *session) mayOwe() int64 {
	if s.bridge == nil {
		return backlogHigh
	}
	return s.bridge.buffers.each()
}

// load counts jobs that were claimed for the session and are not in its outbox yet.
func (s *session) load(jobs []backends.Job) { s.owe(jobBytes(jobs)) }

// jobBytes is what jobs take in memory, but for what each takes anyway.
func jobBytes(jobs []backends.Job) (n int64) {
	for i := range jobs {
		j := &jobs[i]
		n += int64(len(j.Payload) + len(j.Key) + len(j.LastError))
		for name, value := range j.Headers {
			n += int64(len(name) + len(value))
		}
	}
	return n
}

const (
	// openCost is what an open request takes in memory, about.
	openCost = 8 << 10
	// leastOpen is how many requests a session may have open however many others have.
	leastOpen = 16
)

// crowded reports whether the open requests of all sessions take as much memory as messages
// may, and this one has more than a few: then its next ones are carried out one after another, or,
// where they wait for jobs, refused.
func (s *session) crowded() bool {
	return len(s.slots) > leastOpen && s.bridge.beside.Load() >= s.bridge.buffers.most()/openCost
}

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
func (b *buffers) starve(c *committer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.starved == nil {
		b.starved = make(map[*committer]struct{})
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

// look takes room for what a look into a database may bring, and waits for it. The room is
// that of the look until done is called.
func (b *buffers) look(s *session, bytes int64) (done func(), err *protocol.Error) {
	most := b.most()
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
		case <-s.gone.Done():
			return nil, busyBuffers(most)
		case <-deadline.C:
			return nil, busyBuffers(most)
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
