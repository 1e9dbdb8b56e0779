package quota

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultBuffered is the default of Limits.Buffered.
	DefaultBuffered = 256 << 20

	// bufferWait is how long a session waits for room for its message.
	memoryWait = 10 * time.Second
	// stalledAfter is how long a session may take for a large message, or its client for a
	// large reply, while others wait for room.
	stalledAfter = 500 * time.Millisecond
	// copies of a message there are: as it was received, and what was made of it.
	messageCopies = 2
	// requestsPart of the room, in quarters, is all that requests may have of it: replies, which
	// make room where they are read, always find some.
	requestQuarters = 3
	// claimsPart of the room is what the claims of one commit may bring.
	claimsShare = 8
	// leastClaim is for how many bytes of payload a line is asked for, at least.
	MinClaim = 64 << 10
	// leastOwed is what a session may have claimed for it, and not read, however little room is
	// left; it may have a part of what is left, up to backlogHigh.
	minUnread   = 64 << 10
	unreadShare = 8
)

// Memory bound the bytes that are held in memory for all sessions: large requests that are
// being received or carried out, jobs that are being claimed, are prefetched or are not
// handed over yet, and replies that are not read. Where
// there is no room left who stands still loses its connection, rather than that others
// wait for it.
type Memory struct {
	Limit func() int64 // limits.buffered; nil: the default

	mu          sync.Mutex
	used        int64
	in          int64 // of it, requests
	claims      int64 // what commits under way may claim at the most
	prefetched  int64 // prefetched
	inspections int64 // what looks into databases may bring
	sessions    map[*Session]*usage
	freed       chan struct{}           // closed when there is more room; nil: no session waits
	starved     map[ClaimWaker]struct{} // whose claims wait for room
	evicting    bool                    // for who stands still, soon
	left        atomic.Int64            // room; may be negative
	Scarce      atomic.Bool             // half of it is used, so that nothing is claimed for nobody
	known       atomic.Bool             // left is set
}

// usage is what is held for one session.
type usage struct {
	in, out int64
	began   time.Time // of the message that is being received
	writing time.Time // when the reply that is being written began to be; zero: none is
	waits   bool      // for room
}

// Receive has the session's buffer be of that size, waiting for room until its time is
// over: then it is busy.
func (b *Memory) Receive(s *Session, gone <-chan struct{}, size int) error {
	most := b.Max()
	deadline := time.NewTimer(memoryWait)
	defer deadline.Stop()
	look := time.NewTicker(stalledAfter / 2)
	defer look.Stop()
	for {
		freed := b.tryReceive(s, messageCopies*int64(size), most)
		if freed == nil {
			return nil
		}
		select {
		case <-freed:
		case <-look.C:
			b.evictStalled(most)
		case <-gone:
			return b.full(s, most)
		case <-deadline.C:
			return b.full(s, most)
		}
	}
}

func (b *Memory) full(s *Session, most int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.sessions[s]; x != nil {
		x.waits = false
	}
	return &MemoryError{most}
}

// MemoryError says that there was no room in time.
type MemoryError struct{ limit int64 }

func (e *MemoryError) Error() string {
	return fmt.Sprintf("requests and replies of all connections take %d MiB of the sidecar's memory, which is its limit (limits.buffered in its config): send again, when others are done", e.limit>>20)
}

// Exceeded is the error for a session that has to make room.
func (b *Memory) Exceeded() error { return &MemoryError{b.Max()} }

// ClaimWaker is a database whose claims are to be gathered again.
type ClaimWaker interface{ WakeClaims() }

// tryReceive changes what the session receives. Not nil: there is no room, until the channel
// is closed.
func (b *Memory) tryReceive(s *Session, in, most int64) (freed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.usageOf(s)
	more := in - x.in
	full := b.used+more > most || b.in+more > most/4*requestQuarters
	if more > 0 && full && b.in > x.in { // alone it may always go on
		x.waits = true
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		return b.freed
	}
	if x.in == 0 {
		x.began = time.Now()
	}
	x.waits = false
	x.in = in
	b.in += more
	b.add(s, x, more)
	return nil
}

// setUnread notes what is not written to the session yet; it never waits. writing: it is being
// written.
func (b *Memory) setUnread(s *Session, n int64, writing bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.usageOf(s)
	x.out += n
	switch {
	case !writing:
		x.writing = time.Time{}
	case x.writing.IsZero() || n < 0:
		x.writing = time.Now()
	}
	b.add(s, x, n)
}

// usageOf finds or makes what is held for the session. b.mu is held.
func (b *Memory) usageOf(s *Session) *usage {
	x := b.sessions[s]
	if x == nil {
		if b.sessions == nil {
			b.sessions = make(map[*Session]*usage)
		}
		x = &usage{}
		b.sessions[s] = x
	}
	return x
}

// add counts. b.mu is held.
func (b *Memory) add(s *Session, x *usage, n int64) {
	if x.in == 0 && x.out == 0 && !x.waits {
		delete(b.sessions, s)
	}
	b.use(n)
}

// measure says how much room there is for replies, which is a part of all at least, however
// large a request is. b.mu is held.
func (b *Memory) measure() {
	most := b.Max()
	b.left.Store(most - (b.used - b.in) - min(b.in, most/4*requestQuarters))
	b.Scarce.Store(b.used-b.claims > most/2)
	b.known.Store(true)
}

// use counts. b.mu is held.
func (b *Memory) use(n int64) {
	b.used += n
	b.measure()
	if n >= 0 {
		return
	}
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
	for c := range b.starved {
		c.WakeClaims()
	}
	clear(b.starved)
}

// EndReceive forgets what the session received.
func (b *Memory) EndReceive(s *Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.sessions[s]; x != nil {
		n := x.in
		x.in, x.waits = 0, false
		b.in -= n
		b.add(s, x, -n)
	}
}

// evictStalled ends the sessions that have stood still for longest, until half of the room is free.
func (b *Memory) evictStalled(most int64) {
	type idle struct {
		s     *Session
		since time.Time
		bytes int64
		reads bool
	}
	var all []idle
	now := time.Now()
	b.mu.Lock()
	used := b.used
	for s, x := range b.sessions {
		switch {
		case !x.writing.IsZero() && now.Sub(x.writing) >= stalledAfter:
			all = append(all, idle{s, x.writing, x.in + x.out, false})
		case x.in > 0 && !x.waits && (s.Receiving.Load() || s.Blocked.Load()) && now.Sub(x.began) >= stalledAfter:
			all = append(all, idle{s, x.began, x.in, true})
		}
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(a, b idle) int { return a.since.Compare(b.since) })
	for _, i := range all {
		if used <= most/2 {
			return
		}
		used -= i.bytes
		i.s.Client.Evict(i.reads)
	}
}

// MemorySnapshot is what is held in memory at one moment, in bytes.
type MemorySnapshot struct {
	Used        int64 // the sum of the others
	Sessions    int64 // requests, and replies that are not read
	Claims      int64 // what commits under way may bring
	Prefetched  int64
	Inspections int64 // what looks into databases may bring
}

// Snapshot adds up what is held.
func (b *Memory) Snapshot() MemorySnapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := MemorySnapshot{Used: b.used, Claims: b.claims, Prefetched: b.prefetched, Inspections: b.inspections}
	for _, x := range b.sessions {
		m.Sessions += x.in + x.out
	}
	return m
}
