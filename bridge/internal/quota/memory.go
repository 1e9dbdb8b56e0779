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
func (m *Memory) Receive(s *Session, gone <-chan struct{}, size int) error {
	most := m.Max()
	deadline := time.NewTimer(memoryWait)
	defer deadline.Stop()
	check := time.NewTicker(stalledAfter / 2)
	defer check.Stop()
	granted := m.request(s, messageCopies*int64(size))
	for {
		select {
		case <-granted:
			return nil
		case <-check.C:
			m.evictStalled(most)
		case <-gone:
			m.cancelWait(s)
			return &MemoryError{most}
		case <-deadline.C:
			m.cancelWait(s)
			return &MemoryError{most}
		}
	}
}

// MemoryError reports that memory did not become free in time.
type MemoryError struct{ limit int64 }

func (m *MemoryError) Error() string {
	return fmt.Sprintf("requests and replies of all connections take %d MiB of the sidecar's memory, which is its limit (limits.buffer_memory in its config): send again, when others are done", m.limit>>20)
}

// Exceeded returns the error for a session that is closed to free memory.
func (m *Memory) Exceeded() error { return &MemoryError{m.Max()} }

// ClaimWaker is a pipeline whose claims wait for memory.
type ClaimWaker interface{ WakeClaims() }

// closedChannel is granted to sessions that do not wait.
var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// request changes the memory of a session's message to in bytes. The returned channel is closed when it has them.
func (m *Memory) request(s *Session, in int64) (granted <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.usageOf(s)
	if in <= x.in {
		m.setMessage(s, x, in)
		return closedChannel
	}
	m.arrivals++
	m.waiting++
	m.next = nil
	x.wanted, x.arrival, x.granted = in, m.arrivals, make(chan struct{})
	m.grant()
	return x.granted
}

// grant gives memory to waiting sessions, as far as there is some. m.mu is held.
func (m *Memory) grant() {
	for m.waiting > 0 {
		if m.next == nil {
			m.next = m.firstWaiting()
		}
		x := m.sessions[m.next]
		most, more := m.Max(), x.wanted-x.in
		full := m.used+more > most || m.in+more > most/4*requestQuarters
		if full && m.in > x.in { // a single session can always proceed
			return
		}
		s, in := m.next, x.wanted
		m.stopWaiting(x)
		close(x.granted)
		m.setMessage(s, x, in)
	}
}

// firstWaiting returns the session to grant memory to before all others that wait. m.mu is held.
func (m *Memory) firstWaiting() (first *Session) {
	owned := m.usageByOwner()
	for s, x := range m.sessions {
		if x.wanted > 0 && (first == nil ||
			cmp.Or(cmp.Compare(owned[s.share()], owned[first.share()]), cmp.Compare(x.arrival, m.sessions[first].arrival)) < 0) {
			first = s
		}
	}
	return first
}

// usageByOwner sums the memory of the sessions by their shares. m.mu is held.
func (m *Memory) usageByOwner() map[share]int64 {
	owned := make(map[share]int64)
	for s, x := range m.sessions {
		owned[s.share()] += x.in + x.out
	}
	return owned
}

// setMessage sets the memory of a session's message. m.mu is held.
func (m *Memory) setMessage(s *Session, x *usage, in int64) {
	if x.in == 0 {
		x.began = time.Now()
	}
	more := in - x.in
	x.in = in
	m.in += more
	m.add(s, x, more)
}

// cancelWait ends the wait of a session.
func (m *Memory) cancelWait(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.sessions[s]; x != nil {
		m.stopWaiting(x)
		m.add(s, x, 0)
		m.grant() // the next session possibly needs less
	}
}

// stopWaiting removes a session from those that wait for memory. m.mu is held.
func (m *Memory) stopWaiting(x *usage) {
	if x.wanted > 0 {
		x.wanted, m.next = 0, nil
		m.waiting--
	}
}

// setUnread adds n bytes that are not written to the session yet. It never waits. writing means that a write is under
// way.
func (m *Memory) setUnread(s *Session, n int64, writing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.usageOf(s)
	x.out += n
	switch {
	case !writing:
		x.writing = time.Time{}
	case x.writing.IsZero() || n < 0:
		x.writing = time.Now()
	}
	m.add(s, x, n)
}

// usageOf finds or creates the usage of a session. m.mu is held.
func (m *Memory) usageOf(s *Session) *usage {
	x := m.sessions[s]
	if x == nil {
		if m.sessions == nil {
			m.sessions = make(map[*Session]*usage)
		}
		x = &usage{}
		m.sessions[s] = x
	}
	return x
}

// add counts n bytes of a session. m.mu is held.
func (m *Memory) add(s *Session, x *usage, n int64) {
	if x.in == 0 && x.out == 0 && x.wanted == 0 {
		delete(m.sessions, s)
	}
	m.use(n)
}

// measure updates the memory that is left for replies. Requests never use all of it. m.mu is held.
func (m *Memory) measure() {
	most := m.Max()
	m.left.Store(most - (m.used - m.in) - min(m.in, most/4*requestQuarters))
	m.Scarce.Store(m.used-m.claims > most/2)
	m.known.Store(true)
}

// use counts n bytes, and wakes those that wait if n is negative. m.mu is held.
func (m *Memory) use(n int64) {
	m.used += n
	m.measure()
	if n >= 0 {
		return
	}
	if m.freed != nil {
		close(m.freed)
		m.freed = nil
	}
	m.grant()
	for c := range m.starved {
		c.WakeClaims()
	}
	clear(m.starved)
}

// EndReceive releases what the session received.
func (m *Memory) EndReceive(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.sessions[s]; x != nil {
		m.stopWaiting(x)
		m.setMessage(s, x, 0)
	}
}

// evictStalled closes sessions that stall until half of the memory is free. The owner that uses the most memory comes
// first, and of its sessions the one that has stalled for longest.
func (m *Memory) evictStalled(most int64) {
	type stalled struct {
		s         *Session
		since     time.Time
		bytes     int64
		receiving bool // in the middle of a request, else of a reply
	}
	var all []stalled
	now := time.Now()
	m.mu.Lock()
	m.next = nil // the owners use other amounts by now
	m.grant()
	used, owned := m.used, m.usageByOwner()
	for s, x := range m.sessions {
		switch {
		case !x.writing.IsZero() && now.Sub(x.writing) >= stalledAfter:
			all = append(all, stalled{s, x.writing, x.in + x.out, false})
		case x.in > 0 && x.wanted == 0 && (s.Receiving.Load() || s.Blocked.Load()) && now.Sub(x.began) >= stalledAfter:
			all = append(all, stalled{s, x.began, x.in, true})
		}
	}
	m.mu.Unlock()
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

// MemorySnapshot lists the used memory at one moment, in bytes.
type MemorySnapshot struct {
	Used        int64 // the sum of the others
	Sessions    int64 // requests, and replies that are not read
	Claims      int64 // the most that commits under way can bring
	Prefetched  int64
	Inspections int64 // what inspections of databases can bring
}

// Snapshot returns the current use of memory.
func (m *Memory) Snapshot() MemorySnapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := MemorySnapshot{Used: m.used, Claims: m.claims, Prefetched: m.prefetched, Inspections: m.inspections}
	for _, x := range m.sessions {
		now.Sessions += x.in + x.out
	}
	return now
}
