// Package cursor remembers how far the ready jobs of each queue have been claimed. So claims don't read again
// the index entries that earlier claims left behind.
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
// guarantee two things: as long as workers claim, no ready job stays behind the cursor for longer than fullLook;
// and a claim that returns fewer jobs than requested has missed none.
//
//   - A row that was locked when a claim passed it becomes ready again because that claim was rolled back. Or a row with
//     a smaller position is committed late. So a claim that comes back short has scanned everything from low on, and so
//     has one claim in every fullLook. low moves only if it is proven that nothing ready is below it or ever will be
//     (see Advance). If low can't move, the range behind the heads grows. Then both kinds of claims scan it less often
//     (see Pieces).
//   - A job returns to its old position. The database counts this (qsidecar_queues.returns), and a new count makes the
//     cursor start again.
//   - Someone resets the source of positions by hand. forgetAfter limits the damage.
//   - A low was not proven beyond doubt (see Set.Share). So once in every wholeLook a claim scans everything, also
//     below the lows. If such scans would take more than a small share of the time, they are less frequent.
type cursor struct {
	marks   []mark // ordered by urgency, which is -priority
	returns int64
	full    time.Time     // when a claim last scanned everything from low on
	took    time.Duration // duration of that scan
	whole   time.Time     // when a claim last scanned everything from the beginning on
	wholeIn time.Duration // duration of that scan
	last    int32         // the urgency of the job that was taken last
	taken   bool          // last is valid
	fresh   time.Time     // when the cursor began
	used    Event         // when a claim last moved the cursor
}

// mark is how far one priority has been claimed.
type mark struct {
	urgency int32
	low     int64 // nothing ready is at or below it
	head    int64 // where the last claim ended

	// A pending proof that nothing ready is at or below check. The proof is a scan for which every transaction
	// numbered below after is over.
	check int64 // 0: no proof is pending
	after int64 // 0: not known yet; it becomes the number of a transaction that began after the event set
	set   Event // when check was set
	asked time.Time
}

// Limits of cursors.
const (
	fullLook    = 400 * time.Millisecond
	rarestLook  = 800 * time.Millisecond // if full scans are slow
	rarestFull  = 10 * time.Second       // the same, if claims leave out the range behind the heads
	fullShare   = 20                     // full scans take at most 1/fullShare of the time, within the limits above
	nearBehind  = 40_000                 // in positions: scanning so few is never slow
	quickLook   = 20 * time.Millisecond
	wholeLook   = time.Second
	forgetAfter = 5 * time.Minute // start again from nothing, even if lows are proven
	maxMarks    = 16              // priorities of one queue
	maxCursors  = 4096
	dropAmong   = 2   // how many cursors to choose from if one has to go: with more, queues that are used in turn lose theirs too early
	provenStep  = 500 // a proof must move low by at least this many positions

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
func (c *Set) Segments(queue string, now time.Time, full bool) []Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil || now.Sub(k.fresh) > forgetAfter || c.wholeDue(k, now) {
		return []Segment{Whole}
	}
	return k.segments(full || now.Sub(k.full) >= fullLook)
}

// Pieces returns the segments that a claim scans. Usually they are those of Segments, and all is true. all is
// false if the range behind the heads is large (most of its jobs are gone) and the last scan there was slow.
// Then that range is left out, unless a full scan is due. If there is a Share, nothing is left out.
func (c *Set) Pieces(queue string, now time.Time) (pieces []Segment, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil || now.Sub(k.fresh) > forgetAfter || c.wholeDue(k, now) {
		return []Segment{Whole}, true
	}
	behind := int64(0)
	for _, m := range k.marks {
		behind += max(m.head-m.low, 0)
	}
	every, slow := fullLook, c.Share == 0 && behind > nearBehind && k.took >= quickLook
	if slow {
		every = min(max(fullLook, fullShare*k.took), rarestFull)
	}
	due := now.Sub(k.full) >= every
	pieces = k.segments(due)
	if all = due || !slow; !all {
		pieces = pieces[:len(k.marks)+1]
	}
	return pieces, all
}

// Scanned records a scan without a claim that covered all segments of a queue and found nothing ready. It
// started at asked.
func (c *Set) Scanned(queue string, asked time.Time, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.of[queue]; k != nil && asked.After(k.full) {
		k.full, k.took = asked, took
	}
}

// segments returns the segments from the heads on, then those behind. With full they start at the lows.
func (k *cursor) segments(full bool) []Segment {
	var main, behind []Segment
	from := Beginning
	for _, m := range k.marks {
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
func (c *Set) wholeDue(k *cursor, now time.Time) bool {
	return c.Share > 0 && now.Sub(k.whole) >= min(max(wholeLook, time.Duration(c.Share)*k.wholeIn), forgetAfter)
}

// ScannedWhole records a scan without a claim that covered the whole index of a queue and found nothing ready.
// It must not be called if the scan found something, because then the next claim has to scan there.
func (c *Set) ScannedWhole(queue string, asked time.Time, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.of[queue]; k != nil && asked.After(k.whole) {
		k.whole, k.wholeIn = asked, took
	}
}

// Near returns the segment from where the last claim ended to the end of that urgency, where the next job most
// likely is. ok is false if a full scan is due.
func (c *Set) Near(queue string, now time.Time) (near Segment, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil || !k.taken || now.Sub(k.fresh) > forgetAfter || c.wholeDue(k, now) || now.Sub(k.full) >= min(max(fullLook, 10*k.took), rarestLook) {
		return Segment{}, false
	}
	return Segment{Spot{k.last, k.at(k.last).head}, Spot{k.last, End.Position}}, true
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
func (c *Set) Learn(queue string, l Learned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.Began != 0 && l.Began < c.reset {
		return
	}
	k := c.of[queue]
	if none := k == nil || l.Asked.Sub(k.fresh) > forgetAfter; none || k.returns != l.Returns {
		l.All = l.All && none // otherwise the claim scanned from the lows of the former cursor
		k = c.begin(queue, l)
	}
	c.event++
	k.used = c.event
	c.ended = max(c.ended, l.Ended)
	if l.All {
		k.full, k.took = l.Asked, l.Took
		if l.Whole {
			k.whole, k.wholeIn = l.Asked, l.Took
		}
	}
	for _, s := range l.Taken {
		m := k.at(s.Urgency)
		m.head = s.Position
		m.low = min(m.low, max(s.Position-1, 0)) // if low was wrong, more jobs can be there
		k.last, k.taken = s.Urgency, true
	}
	for i := range k.marks {
		m, upTo := &k.marks[i], k.marks[i].head
		if l.Below > 0 {
			upTo = min(upTo, l.Below)
		}
		if m.check == 0 && upTo-m.low > provenStep {
			m.check, m.after, m.set, m.asked = upTo, l.Begun, c.event, l.Asked
		}
	}
	if len(k.marks) > maxMarks {
		delete(c.of, queue)
	}
}

func (c *Set) begin(queue string, l Learned) *cursor {
	if c.of == nil {
		c.of = map[string]*cursor{}
	}
	if c.of[queue] == nil && len(c.of) >= maxCursors {
		c.dropOne()
	}
	k := &cursor{returns: l.Returns, fresh: l.Asked}
	c.of[queue] = k
	return k
}

// dropOne drops the least recently used one of a few cursors. A range over a map starts at a random one.
func (c *Set) dropOne() {
	drop, seen := "", 0
	for q, k := range c.of {
		if seen == 0 || k.used < c.of[drop].used {
			drop = q
		}
		if seen++; seen == dropAmong {
			break
		}
	}
	delete(c.of, drop)
}

// at returns the mark of an urgency. It inserts one if there is none.
func (k *cursor) at(urgency int32) *mark {
	i, found := slices.BinarySearchFunc(k.marks, urgency, func(m mark, u int32) int { return cmp.Compare(m.urgency, u) })
	if !found {
		k.marks = slices.Insert(k.marks, i, mark{urgency: urgency})
	}
	return &k.marks[i]
}

// GiveBack is a job that this Store returned to its old position, and its queue's count after that.
type GiveBack struct {
	Queue   string
	Spot    Spot
	Returns int64
}

// Back makes the next claims begin where a committed transaction returned jobs to their old positions.
func (c *Set) Back(backs []GiveBack) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range backs {
		k := c.of[b.Queue]
		switch {
		case k == nil:
			continue
		case k.returns == b.Returns-1: // no other sidecar returned jobs in between
			k.returns = b.Returns
		case k.returns != b.Returns:
			delete(c.of, b.Queue)
			continue
		}
		m := k.at(b.Spot.Urgency)
		m.low, m.head, m.check = min(m.low, b.Spot.Position-1), min(m.head, b.Spot.Position-1), 0
	}
}

// Returned reports whether jobs returned to their old positions since the cursor began.
func (c *Set) Returned(queue string, returns int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	return k != nil && k.returns != returns
}

// Forget makes the next claim scan the whole queue.
func (c *Set) Forget(queue string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, queue)
}

// Reset forgets all cursors, because positions that were passed can be given again. If a claim began before the
// reset, pass its Learned either without All or with Began.
func (c *Set) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.of)
	c.ended, c.laterNumber, c.over = 0, 0, 0
	c.event++
	c.reset = c.event
}

// Lows returns one spot of each urgency of a queue. Nothing at or below it in that urgency is ready.
func (c *Set) Lows(queue string) (lows []Spot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.of[queue]; k != nil {
		for _, m := range k.marks {
			lows = append(lows, Spot{m.urgency, m.low})
		}
	}
	return lows
}
