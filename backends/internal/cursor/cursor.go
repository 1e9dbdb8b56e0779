// Package cursor remembers how far the ready jobs of each queue have been claimed. So claims don't read again
// the index entries that earlier claims left behind. docs/claims-miss-no-job.md shows why that misses no job.
package cursor

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// A cursor remembers how far the ready jobs of a queue have been claimed. So a claim doesn't read again the
// index entries of jobs that are gone. Such entries stay in the index until no snapshot can see them.
//
// Within a priority positions only grow, with exceptions. There is a rule for each exception. The rules
// guarantee two things: as long as workers claim, no ready job stays behind the cursor for longer than a bounded time;
// and a claim that returns fewer jobs than requested has missed none.
//
// The heads, where the next claim begins, pass jobs that are committed later; full scans from the lows find those. Only a low is a
// promise, and only Set.Advance (proof.go) raises it. Learn and Back can lower it.
//
//   - A row that was locked when a claim passed it becomes ready again because that claim was rolled back. Or a row with
//     a smaller position is committed late. So a claim that comes back short has made a full scan: it has scanned
//     everything from the lows on. So has one claim in every fullScanInterval. A low moves only if it is proven that
//     nothing ready is below it or ever will be (see Advance). If it can't move, the range behind the heads grows. Then
//     both kinds of claims scan it less often (see Pieces).
//   - A job returns to its old position. The database counts this (requeues, by queue), and a new count makes the
//     cursor start again.
//   - Someone resets the source of positions by hand. forgetAfter limits the damage.
//   - A low was not proven beyond doubt (see Set.Share). So one claim in every wholeScanInterval makes a whole scan, which
//     includes what is below the lows. If such scans would take more than a small share of the time, they are less
//     frequent.
type cursor struct {
	marks   []mark // ordered by urgency, which is -priority
	returns int64
	last    int32 // the urgency of the job that was taken last
	taken   bool  // last is valid

	began         time.Time     // paces the start from nothing
	fullScan      time.Time     // start of the last full scan: everything from the lows on
	fullScanTook  time.Duration // its duration
	wholeScan     time.Time     // start of the last whole scan: everything from the beginning on
	wholeScanTook time.Duration // its duration
	lastUse       Event         // when a claim last moved the cursor; decides which cursor is dropped
}

// mark is how far one priority has been claimed.
type mark struct {
	urgency int32
	low     int64 // nothing ready is at or below it
	head    int64 // where the last claim ended

	// A pending proof that nothing ready is at or below check. The proof is a scan for which every transaction
	// numbered below after is over.
	check     int64     // 0: no proof is pending
	after     int64     // 0: not known yet; it becomes the number of a transaction that began after the event set
	set       Event     // when check was set
	checkFrom time.Time // the same by the clock; paces the search for the owners of positions
}

// Limits of cursors.
const (
	fullScanInterval     = 400 * time.Millisecond
	slowFullScanInterval = 800 * time.Millisecond // if full scans are slow
	rarestFullScan       = 10 * time.Second       // the same, if claims leave out the range behind the heads
	fullScanShare        = 20                     // full scans take at most 1/fullScanShare of the time, within the limits above
	nearBehind           = 40_000                 // in positions: scanning so few is never slow
	quickScan            = 20 * time.Millisecond
	wholeScanInterval    = time.Second
	forgetAfter          = 5 * time.Minute // start again from nothing, even if lows are proven
	maxMarks             = 16              // priorities of one queue
	maxCursors           = 4096
	dropAmong            = 2   // how many cursors to choose from if one has to go: with more, queues that are used in turn lose theirs too early
	provenStep           = 500 // a proof must move low by at least this many positions

	minUrgency = -math.MaxInt16 - 1 // below every urgency
	maxUrgency = math.MaxInt16 + 2  // above every urgency
)

// Values of Set.Share.
const (
	RareShare = 20 // a row below a low is an exception
	// OftenShare is for a cluster in which several servers accept writes. A job that another server stores can arrive late, and so
	// below a low.
	OftenShare = 5
)

// Segment is a part of the index of a queue's ready jobs: after From, up to and including To.
type Segment struct {
	From, To Spot
}

// Spot is a point in the order of a queue's ready jobs. Urgency is -priority.
type Spot struct {
	Urgency  int32
	Position int64
}

// Beginning is before every spot, and End is after every spot.
var (
	Beginning = Spot{minUrgency, 0}
	End       = Spot{maxUrgency, math.MaxInt64}
)

// Set holds the cursors of one Store, by queue. It can be used concurrently.
type Set struct {
	// Share is not 0 if the engine can't prove that no row will appear below a low. Whole scans then take at most 1/Share
	// of the time. It is set before the first use.
	Share int

	mu    sync.Mutex
	of    map[string]*cursor
	ended int64 // the highest Learned.Ended
	event Event // the latest event
	reset Event // the latest event that was a Reset
	over  Event // all transactions are over that can own a position from before this event

	// The transaction with this number began after event later.
	later       Event
	laterNumber int64
}

// Segments returns the segments to scan, in this order: first from each head on, then from each low to its
// head. Together they are everything from the lows on. If full is true, or a full scan is due, it returns them
// in the jobs' order, each from its low on.
func (s *Set) Segments(queue string, now time.Time, full bool) []Segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[queue]
	if c == nil || now.Sub(c.began) > forgetAfter || s.wholeDue(c, now) {
		return []Segment{Whole}
	}
	return c.segments(full || now.Sub(c.fullScan) >= fullScanInterval)
}

// Pieces returns the segments that a claim scans. Usually they are those of Segments, and all is true. all is
// false if the range behind the heads is large (most of its jobs are gone) and the last scan there was slow.
// Then that range is left out, unless a full scan is due. If there is a Share, nothing is left out.
func (s *Set) Pieces(queue string, now time.Time) (pieces []Segment, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[queue]
	if c == nil || now.Sub(c.began) > forgetAfter || s.wholeDue(c, now) {
		return []Segment{Whole}, true
	}
	behind := int64(0)
	for _, m := range c.marks {
		behind += max(m.head-m.low, 0)
	}
	every, slow := fullScanInterval, s.Share == 0 && behind > nearBehind && c.fullScanTook >= quickScan
	if slow {
		every = min(max(fullScanInterval, fullScanShare*c.fullScanTook), rarestFullScan)
	}
	due := now.Sub(c.fullScan) >= every
	pieces = c.segments(due)
	if all = due || !slow; !all {
		pieces = pieces[:len(c.marks)+1]
	}
	return pieces, all
}

// Scanned records a scan without a claim that covered all segments of a queue and found nothing ready. It
// started at asked.
func (s *Set) Scanned(queue string, asked time.Time, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.of[queue]; c != nil && asked.After(c.fullScan) {
		c.fullScan, c.fullScanTook = asked, took
	}
}

// segments returns the segments from the heads on, then those behind. With full they start at the lows.
func (c *cursor) segments(full bool) []Segment {
	var main, behind []Segment
	from := Beginning
	for _, m := range c.marks {
		main = append(main, Segment{from, Spot{m.urgency - 1, math.MaxInt64}})
		if from = (Spot{m.urgency, m.head}); full {
			from.Position = m.low
		} else if m.low < m.head {
			behind = append(behind, Segment{Spot{m.urgency, m.low}, from})
		}
	}
	main = append(main, Segment{from, End})
	return append(main, behind...)
}

// Whole is the whole index.
var Whole = Segment{Beginning, End}

// wholeDue reports whether a claim has to scan the whole index.
func (s *Set) wholeDue(c *cursor, now time.Time) bool {
	return s.Share > 0 && now.Sub(c.wholeScan) >= min(max(wholeScanInterval, time.Duration(s.Share)*c.wholeScanTook), forgetAfter)
}

// ScannedWhole records a scan without a claim that covered the whole index of a queue and found nothing ready.
// It must not be called if the scan found something, because then the next claim has to scan there.
func (s *Set) ScannedWhole(queue string, asked time.Time, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.of[queue]; c != nil && asked.After(c.wholeScan) {
		c.wholeScan, c.wholeScanTook = asked, took
	}
}

// Near returns the segment from where the last claim ended to the end of that urgency, where the next job most
// likely is. ok is false if a full scan is due.
func (s *Set) Near(queue string, now time.Time) (near Segment, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[queue]
	if c == nil || !c.taken || now.Sub(c.began) > forgetAfter || s.wholeDue(c, now) || now.Sub(c.fullScan) >= min(max(fullScanInterval, 10*c.fullScanTook), slowFullScanInterval) {
		return Segment{}, false
	}
	return Segment{Spot{c.last, c.at(c.last).head}, Spot{c.last, End.Position}}, true
}

// Learned is what a committed claim found out about a queue.
type Learned struct {
	Asked   time.Time     // the time before the claim
	Began   Event         // an event before the claim; if a Reset came since, nothing is learned; 0: unknown
	Taken   []Spot        // in the order in which they were taken
	Took    time.Duration // duration of the full scan; 0: unknown
	Full    bool          // the claim scanned everything from low on, in the jobs' order
	All     bool          // everything from low on was scanned, or comes after the last job taken
	Whole   bool          // with All: from the beginning on
	Left    bool          // the range behind the heads was left out
	Returns int64         // the queue's count, after the claim
	Begun   int64         // the transactions of all positions that were given by now have numbers below this; 0: see Numbered
	Ended   int64         // all transactions numbered below this are over
	Below   int64         // if positions are times: no later position is smaller than this; 0: they aren't times
}

// Learn moves the cursor of a queue.
func (s *Set) Learn(queue string, l Learned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Began != 0 && l.Began < s.reset {
		return
	}
	c := s.of[queue]
	if none := c == nil || l.Asked.Sub(c.began) > forgetAfter; none || c.returns != l.Returns {
		l.All = l.All && none // otherwise the claim scanned from the lows of the former cursor
		c = s.begin(queue, l)
	}
	s.event++
	c.lastUse = s.event
	s.ended = max(s.ended, l.Ended)
	if l.All {
		c.fullScan, c.fullScanTook = l.Asked, l.Took
		if l.Whole {
			c.wholeScan, c.wholeScanTook = l.Asked, l.Took
		}
	}
	for _, taken := range l.Taken {
		m := c.at(taken.Urgency)
		m.head = taken.Position
		m.low = min(m.low, max(taken.Position-1, 0)) // if low was wrong, more jobs can be there
		c.last, c.taken = taken.Urgency, true
	}
	for i := range c.marks {
		m, upTo := &c.marks[i], c.marks[i].head
		if l.Below > 0 {
			upTo = min(upTo, l.Below)
		}
		if m.check == 0 && upTo-m.low > provenStep {
			m.check, m.after, m.set, m.checkFrom = upTo, l.Begun, s.event, l.Asked
		}
	}
	if len(c.marks) > maxMarks {
		delete(s.of, queue)
	}
}

func (s *Set) begin(queue string, l Learned) *cursor {
	if s.of == nil {
		s.of = map[string]*cursor{}
	}
	if s.of[queue] == nil && len(s.of) >= maxCursors {
		s.dropOne()
	}
	c := &cursor{returns: l.Returns, began: l.Asked}
	s.of[queue] = c
	return c
}

// dropOne drops the least recently used one of a few cursors. A range over a map starts at a random one.
func (s *Set) dropOne() {
	drop, seen := "", 0
	for q, c := range s.of {
		if seen == 0 || c.lastUse < s.of[drop].lastUse {
			drop = q
		}
		if seen++; seen == dropAmong {
			break
		}
	}
	delete(s.of, drop)
}

// at returns the mark of an urgency. It inserts one if there is none.
func (c *cursor) at(urgency int32) *mark {
	i, found := slices.BinarySearchFunc(c.marks, urgency, func(m mark, u int32) int { return cmp.Compare(m.urgency, u) })
	if !found {
		c.marks = slices.Insert(c.marks, i, mark{urgency: urgency})
	}
	return &c.marks[i]
}

// GiveBack is a job that this Store returned to its old position, and its queue's count after that.
type GiveBack struct {
	Queue   string
	Spot    Spot
	Returns int64
}

// Back makes the next claims begin where a committed transaction returned jobs to their old positions.
func (s *Set) Back(backs []GiveBack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range backs {
		c := s.of[b.Queue]
		switch {
		case c == nil:
			continue
		case c.returns == b.Returns-1: // no other sidecar returned jobs in between
			c.returns = b.Returns
		case c.returns != b.Returns:
			delete(s.of, b.Queue)
			continue
		}
		c.lower(b.Spot)
	}
}

// Lower makes the claims of a transaction see jobs that it has itself returned to their old positions. It calls Back when it is
// committed: until then their returns don't count.
func (s *Set) Lower(backs []GiveBack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range backs {
		if c := s.of[b.Queue]; c != nil {
			c.lower(b.Spot)
		}
	}
}

// lower makes the next claims begin at the spot or before.
func (c *cursor) lower(at Spot) {
	m := c.at(at.Urgency)
	m.low, m.head, m.check = min(m.low, at.Position-1), min(m.head, at.Position-1), 0
}

// Returned reports whether jobs returned to their old positions since the cursor began.
func (s *Set) Returned(queue string, returns int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[queue]
	return c != nil && c.returns != returns
}

// Forget makes the next claim scan the whole queue.
func (s *Set) Forget(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, queue)
}

// Reset forgets all cursors, because positions that were passed can be given again: after a failover (epoch.go and sequence.go of package
// postgres), a restore (Store.HeartbeatAnswered of package core), or when the server's clock was set back (SawTime of MySQL's claims). For one queue, see
// Forget and Back. If a claim began before the
// reset, pass its Learned either without All or with Began.
func (s *Set) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.of)
	s.ended, s.laterNumber, s.over = 0, 0, 0
	s.event++
	s.reset = s.event
}

// Lows returns one spot of each urgency of a queue. Nothing at or below it in that urgency is ready.
func (s *Set) Lows(queue string) (lows []Spot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.of[queue]; c != nil {
		for _, m := range c.marks {
			lows = append(lows, Spot{m.urgency, m.low})
		}
	}
	return lows
}
