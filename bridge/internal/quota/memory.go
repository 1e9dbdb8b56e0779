package quota

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultBufferMemory is the default of Limits.BufferMemory, in bytes.
	DefaultBufferMemory = 256 << 20

	// memoryWait is how long a session waits for memory for its message.
	memoryWait = 10 * time.Second
	// stalledAfter is how long a client can take to send a large message, or to read a large reply, while others wait
	// for memory.
	stalledAfter = 500 * time.Millisecond
	// messageCopies is how often a message is in memory: as it was received and as it was decoded.
	messageCopies = 2
	// requestQuarters is the part of the memory that requests can use, in quarters. The rest is for replies, which free
	// memory when they are read.
	requestQuarters = 3
	// claimsShare is the divisor for the part of the memory that the claims of one commit can bring.
	claimsShare = 8
	// MinClaim is the minimum byte limit of a claim for one wait queue.
	MinClaim = 64 << 10
	// minUnread is how many bytes a session can have unread even if no memory is left. Otherwise it can have one part
	// in unreadShare of the rest, up to MaxUnread.
	minUnread   = 64 << 10
	unreadShare = 8
)

// Memory bounds the bytes in memory for all sessions: large requests that are being received or carried out, jobs
// that are being claimed, prefetched or not handed over yet, and unread replies. When memory is short, it closes the
// connections of clients that stall, so that the others need not wait for them.
type Memory struct {
	Limit func() int64 // limits.buffer_memory; nil: the default

	mu          sync.Mutex
	used        int64
	in          int64 // the part of requests
	claims      int64 // the most that commits under way can claim
	prefetched  int64
	inspections int64 // what inspections of databases can bring
	sessions    map[*Session]*usage
	waiting     int                     // sessions that wait for memory for a message
	next        *Session                // the one of them that comes first; nil: see firstWaiting
	arrivals    uint64                  // counts the sessions that had to wait
	freed       chan struct{}           // closed when memory is free; nil: no inspection waits
	starved     map[ClaimWaker]struct{} // pipelines whose claims wait for memory
	evicting    bool                    // evictStalled runs soon
	left        atomic.Int64            // free memory; can be negative
	Scarce      atomic.Bool             // half is used: nothing is prefetched
	known       atomic.Bool             // left was computed
}

// usage is the memory of one session.
type usage struct {
	in, out int64
	began   time.Time // arrival of the message that is being received
	writing time.Time // when the write of the current reply began; zero: none

	wanted  int64         // the value of in that the session waits for; 0: it does not wait
	arrival uint64        // when it began to wait
	granted chan struct{} // closed when in has that value
}

// Receive reserves memory for a session's read buffer of that size, and waits for it. It returns a MemoryError if the
// memory does not become free in time.
//
// Of the sessions that wait, the one whose owner uses the least memory comes first, and then the one that has waited
// for longest. So the unfinished messages of one client do not keep others from sending theirs.
func (b *Memory) Receive(s *Session, gone <-chan struct{}, size int) error {
	most := b.Max()
	deadline := time.NewTimer(memoryWait)
	defer deadline.Stop()
	check := time.NewTicker(stalledAfter / 2)
	defer check.Stop()
	granted := b.request(s, messageCopies*int64(size))
	for {
		select {
		case <-granted:
			return nil
		case <-check.C:
			b.evictStalled(most)
		case <-gone:
			b.cancelWait(s)
			return &MemoryError{most}
		case <-deadline.C:
			b.cancelWait(s)
			return &MemoryError{most}
		}
	}
}

// MemoryError reports that memory did not become free in time.
type MemoryError struct{ limit int64 }

func (e *MemoryError) Error() string {
	return fmt.Sprintf("requests and replies of all connections take %d MiB of the sidecar's memory, which is its limit (limits.buffer_memory in its config): send again, when others are done", e.limit>>20)
}

// Exceeded returns the error for a session that is closed to free memory.
func (b *Memory) Exceeded() error { return &MemoryError{b.Max()} }

// ClaimWaker is a pipeline whose claims wait for memory.
type ClaimWaker interface{ WakeClaims() }

// closedChannel is granted to sessions that do not wait.
var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// request changes the memory of a session's message to in bytes. The returned channel is closed when it has them.
func (b *Memory) request(s *Session, in int64) (granted <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.usageOf(s)
	if in <= x.in {
		b.setMessage(s, x, in)
		return closedChannel
	}
	b.arrivals++
	b.waiting++
	b.next = nil
	x.wanted, x.arrival, x.granted = in, b.arrivals, make(chan struct{})
	b.grant()
	return x.granted
}

// grant gives memory to waiting sessions, as far as there is some. b.mu is held.
func (b *Memory) grant() {
	for b.waiting > 0 {
		if b.next == nil {
			b.next = b.firstWaiting()
		}
		x := b.sessions[b.next]
		most, more := b.Max(), x.wanted-x.in
		full := b.used+more > most || b.in+more > most/4*requestQuarters
		if full && b.in > x.in { // a single session can always proceed
			return
		}
		s, in := b.next, x.wanted
		b.stopWaiting(x)
		close(x.granted)
		b.setMessage(s, x, in)
	}
}

// firstWaiting returns the session to grant memory to before all others that wait. b.mu is held.
func (b *Memory) firstWaiting() (first *Session) {
	owned := b.usageByOwner()
	for s, x := range b.sessions {
		if x.wanted > 0 && (first == nil ||
			cmp.Or(cmp.Compare(owned[s.share()], owned[first.share()]), cmp.Compare(x.arrival, b.sessions[first].arrival)) < 0) {
			first = s
		}
	}
	return first
}

// usageByOwner sums the memory of the sessions by their shares. b.mu is held.
func (b *Memory) usageByOwner() map[share]int64 {
	owned := make(map[share]int64)
	for s, x := range b.sessions {
		owned[s.share()] += x.in + x.out
	}
	return owned
}

// setMessage sets the memory of a session's message. b.mu is held.
func (b *Memory) setMessage(s *Session, x *usage, in int64) {
	if x.in == 0 {
		x.began = time.Now()
	}
	more := in - x.in
	x.in = in
	b.in += more
	b.add(s, x, more)
}

// cancelWait ends the wait of a session.
func (b *Memory) cancelWait(s *Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.sessions[s]; x != nil {
		b.stopWaiting(x)
		b.add(s, x, 0)
		b.grant() // the next session possibly needs less
	}
}

// stopWaiting removes a session from those that wait for memory. b.mu is held.
func (b *Memory) stopWaiting(x *usage) {
	if x.wanted > 0 {
		x.wanted, b.next = 0, nil
		b.waiting--
	}
}

// setUnread adds n bytes that are not written to the session yet. It never waits. writing means that a write is under
// way.
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

// usageOf finds or creates the usage of a session. b.mu is held.
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

// add counts n bytes of a session. b.mu is held.
func (b *Memory) add(s *Session, x *usage, n int64) {
	if x.in == 0 && x.out == 0 && x.wanted == 0 {
		delete(b.sessions, s)
	}
	b.use(n)
}

// measure updates the memory that is left for replies. Requests never use all of it. b.mu is held.
func (b *Memory) measure() {
	most := b.Max()
	b.left.Store(most - (b.used - b.in) - min(b.in, most/4*requestQuarters))
	b.Scarce.Store(b.used-b.claims > most/2)
	b.known.Store(true)
}

// use counts n bytes, and wakes those that wait if n is negative. b.mu is held.
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
	b.grant()
	for c := range b.starved {
		c.WakeClaims()
	}
	clear(b.starved)
}

// EndReceive releases what the session received.
func (b *Memory) EndReceive(s *Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.sessions[s]; x != nil {
		b.stopWaiting(x)
		b.setMessage(s, x, 0)
	}
}

// evictStalled closes sessions that stall until half of the memory is free. The owner that uses the most memory comes
// first, and of its sessions the one that has stalled for longest.
func (b *Memory) evictStalled(most int64) {
	type stalled struct {
		s         *Session
		since     time.Time
		bytes     int64
		receiving bool // in the middle of a request, else of a reply
	}
	var all []stalled
	now := time.Now()
	b.mu.Lock()
	b.next = nil // the owners use other amounts by now
	b.grant()
	used, owned := b.used, b.usageByOwner()
	for s, x := range b.sessions {
		switch {
		case !x.writing.IsZero() && now.Sub(x.writing) >= stalledAfter:
			all = append(all, stalled{s, x.writing, x.in + x.out, false})
		case x.in > 0 && x.wanted == 0 && (s.Receiving.Load() || s.Blocked.Load()) && now.Sub(x.began) >= stalledAfter:
			all = append(all, stalled{s, x.began, x.in, true})
		}
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(a, b stalled) int {
		return cmp.Or(cmp.Compare(owned[b.s.share()], owned[a.s.share()]), a.since.Compare(b.since))
	})
	for _, i := range all {
		if used <= most/2 {
			return
		}
		used -= i.bytes
		i.s.Client.Evict(i.receiving)
	}
}

// MemorySnapshot lists the used memory at one moment, in bytes.
type MemorySnapshot struct {
	Used        int64 // the sum of the others
	Sessions    int64 // requests, and replies that are not read
	Claims      int64 // the most that commits under way can bring
	Prefetched  int64
	Inspections int64 // what inspections of databases can bring
}

// Snapshot returns the current use of memory.
func (b *Memory) Snapshot() MemorySnapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := MemorySnapshot{Used: b.used, Claims: b.claims, Prefetched: b.prefetched, Inspections: b.inspections}
	for _, x := range b.sessions {
		m.Sessions += x.in + x.out
	}
	return m
}
