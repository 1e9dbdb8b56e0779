// Package cursor remembers how far queues have been taken, so that claims need
// not walk again over what earlier ones left behind.
package cursor

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// A cursor remembers how far a queue's ready jobs have been taken, so that a
// claim does not walk again over what earlier ones left behind: index entries of
// jobs that are gone stay until nobody's snapshot can see them.
//
// Inside a priority positions only grow, with exceptions, and for each
// there is a rule, so that no ready job waits behind the cursor for longer than
// fullLook while claims are made, and none is missed by a claim that comes back
// short:
//
//   - A row that was locked when it was passed becomes ready again (a claim was
//     rolled back), or a row with a smaller position is committed late. So a claim
//     that comes back short has looked at everything from low on, and so does one
//     claim in every fullLook; low moves on only where it is proven that nothing
//     ready is below it or will ever be (see advance).
//   - A job is given back in its old position. That is counted in the database
//     (qsidecar_queues.returns), and a new count makes the cursor start again.
//   - What gives positions was set back, by hand. forgetAfter bounds the harm.
//   - A low was not proven beyond doubt (see Set.Unproven). So a claim looks at
//     everything, below the lows too, once in every wholeLook, or less often where
//     such looks would take more than a small share of the time.
type cursor struct {
	marks   []mark // by urgency; urgency is -priority
	returns int64
	full    time.Time     // when a claim last looked at everything from low on
	took    time.Duration // that look
	whole   time.Time     // when a claim last looked at everything from the beginning on
	wholeIn time.Duration // how long that took
	last    int32         // the urgency of what was taken last
	taken   bool          // there is such
	fresh   time.Time     // when the cursor began
	used    time.Time
}

// mark is how far one priority has been taken.
type mark struct {
	urgency int32
	low     int64 // nothing ready is at or below it
	head    int64 // where the last claim ended

	// To be proven: that nothing ready is at or below check. The proof is a look
	// to which everything numbered below after is over.
	check int64 // 0: nothing
	after int64 // 0: the number of a transaction that began after event set
	set   Event // when check was
}

// Bounds of cursors.
const (
	fullLook    = 400 * time.Millisecond
	rarestLook  = 800 * time.Millisecond // where full looks are slow
	wholeLook   = time.Second
	wholeShare  = 50              // a whole look takes no more than this part of the time
	forgetAfter = 5 * time.Minute // start again from nothing, whatever was proven
	maxMarks    = 16              // priorities of one queue
	maxCursors  = 4096
	provenStep  = 500 // positions between low and head that are worth a proof

	minUrgency = -math.MaxInt16 - 1 // below each
	maxUrgency = math.MaxInt16 + 2  // above each
)

// Segment is a piece of the index of a queue's ready jobs: after from, up to to.
type Segment struct {
	From, To Spot
}

// Spot is a place in the order of a queue's ready jobs. Urgency is -priority.
type Spot struct {
	Urgency  int32
	Position int64
}

// Beginning is before every spot, End after each.
var (
	Beginning = Spot{minUrgency, 0}
	End       = Spot{maxUrgency, math.MaxInt64}
)

// Set are the cursors of one Store, by queue.
type Set struct {
	// Unproven: the engine can't prove that no row will come in below a low. It is
	// set before the first use.
	Unproven bool

	mu    sync.Mutex
	of    map[string]*cursor
	ended int64 // the highest that was learned
	event Event // the latest
	reset Event // the latest one

	// The transaction with this number began after event later.
	later       Event
	laterNumber int64
}

// Event counts what cursors learn, so that transactions can be compared with it.
type Event int64

// Never is before each event.
const Never Event = -1

// Now is an event of its own. A transaction that begins after the call gets its
// number after all positions of earlier events were given.
func (c *Set) Now() Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.event++
	return c.event
}

// Numbered is told of a transaction that began after an event, and of its number.
// No other proof of "after" will do where numbers are given in the order in which
// transactions write: the one whose job was claimed may have begun before others
// that have smaller positions and higher numbers.
func (c *Set) Numbered(began Event, number int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began < c.reset {
		return
	}
	if c.laterNumber == 0 || began > c.later || began == c.later && number < c.laterNumber {
		c.later, c.laterNumber = began, number
	}
}

// numberAfter is what m's proof waits for to be over, as soon as it is known.
func (c *Set) numberAfter(m *mark) int64 {
	if m.check != 0 && m.after == 0 && c.laterNumber != 0 && c.later >= m.set {
		m.after = c.laterNumber
	}
	return m.after
}

// Segments lists the pieces to look through, in their order: from each head on,
// then what is between each low and head. Together they are everything from the
// lows on. It is a full look where everything comes in its own order, from the
// lows on.
func (c *Set) Segments(queue string, now time.Time, full bool) []Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil || now.Sub(k.fresh) > forgetAfter || c.wholeDue(k, now) {
		return []Segment{Whole}
	}
	full = full || now.Sub(k.full) >= fullLook
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

// Whole is everything.
var Whole = Segment{Beginning, End}

// wholeDue: a claim has to look at everything.
func (c *Set) wholeDue(k *cursor, now time.Time) bool {
	return c.Unproven && now.Sub(k.whole) >= min(max(wholeLook, wholeShare*k.wholeIn), forgetAfter)
}

// LookedAtWhole is told that a look without a claim went through everything in a queue
// and found nothing ready. Where it finds something, the next claim has to look there.
func (c *Set) LookedAtWhole(queue string, asked time.Time, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.of[queue]; k != nil && asked.After(k.whole) {
		k.whole, k.wholeIn = asked, took
	}
}

// Near is the piece from where the last claim ended to the end of that urgency:
// the next job is most likely there. false: a look at everything is due.
func (c *Set) Near(queue string, now time.Time) (near Segment, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil || !k.taken || now.Sub(k.fresh) > forgetAfter || c.wholeDue(k, now) || now.Sub(k.full) >= min(max(fullLook, 10*k.took), rarestLook) {
		return Segment{}, false
	}
	return Segment{Spot{k.last, k.at(k.last).head}, Spot{k.last, End.Position}}, true
}

// Learned is what a committed claim tells about a queue.
type Learned struct {
	Asked   time.Time     // before the claim
	Began   Event         // before the claim; nothing is learned where a reset came since. 0: not known
	Taken   []Spot        // in the order in which they were taken
	Took    time.Duration // the look at everything; 0: not known
	Full    bool          // the claim looked at everything from low on, in its own order
	All     bool          // everything from low on was looked at, or comes after the last taken
	Whole   bool          // with All: from the beginning on
	Returns int64         // the queue's, after the claim
	Begun   int64         // all that has a position by now is numbered below; 0: see Numbered
	Ended   int64         // all that is numbered below is over
	Below   int64         // where positions are instants: a later one is never smaller; 0: they are none
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
		l.All = l.All && none // else what it looked at everything from was the former's lows
		k = c.begin(queue, l)
	}
	k.used = l.Asked
	c.event++
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
		m.low = min(m.low, max(s.Position-1, 0)) // where it was wrong, more may be there
		k.last, k.taken = s.Urgency, true
	}
	for i := range k.marks {
		m, upTo := &k.marks[i], k.marks[i].head
		if l.Below > 0 {
			upTo = min(upTo, l.Below)
		}
		if m.check == 0 && upTo-m.low > provenStep {
			m.check, m.after, m.set = upTo, l.Begun, c.event
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
	if len(c.of) >= maxCursors {
		for q, k := range c.of {
			if l.Asked.Sub(k.used) > time.Minute {
				delete(c.of, q)
			}
		}
		if len(c.of) >= maxCursors {
			clear(c.of)
		}
	}
	k := &cursor{returns: l.Returns, fresh: l.Asked}
	c.of[queue] = k
	return k
}

// at is the mark of an urgency, made where there was none.
func (k *cursor) at(urgency int32) *mark {
	i, found := slices.BinarySearchFunc(k.marks, urgency, func(m mark, u int32) int { return cmp.Compare(m.urgency, u) })
	if !found {
		k.marks = slices.Insert(k.marks, i, mark{urgency: urgency})
	}
	return &k.marks[i]
}

// Proof is a look at what a cursor would like to have behind it: of each of some
// urgencies, what is after Low, up to High.
type Proof struct {
	Queue          string
	Urgency        []int32
	Low, High      []int64
	after, returns int64
	made           Event
}

// ToProve is a proof that can succeed by now.
func (c *Set) ToProve(queue string) (p Proof, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil {
		return p, false
	}
	p = Proof{Queue: queue, returns: k.returns, made: c.event}
	for i := range k.marks {
		m := &k.marks[i]
		if after := c.numberAfter(m); m.check != 0 && after != 0 && after <= c.ended {
			p.Urgency, p.Low, p.High = append(p.Urgency, m.urgency), append(p.Low, m.low), append(p.High, m.check)
			p.after = max(p.after, after)
		}
	}
	return p, len(p.Urgency) > 0
}

// Advance moves the lows, by a look to which all that is numbered below ended was
// over: the first ready position of each piece, 0 where there is none. The look
// must see each job that is ready or that may become ready by a rollback, locked
// or not; then nothing can come up below, because each later change gives a new
// position or counts a return.
func (c *Set) Advance(p Proof, ended int64, first []int64) {
	if ended < p.after || len(first) != len(p.Urgency) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[p.Queue]
	if k == nil || k.returns != p.returns || p.made < c.reset {
		return
	}
	for i, u := range p.Urgency {
		m := k.at(u)
		if m.low != p.Low[i] || m.check != p.High[i] {
			continue // another claim's proof came first
		}
		if m.check = 0; first[i] == 0 {
			m.low = p.High[i]
		} else {
			m.low = first[i] - 1
		}
		m.head = max(m.head, m.low)
	}
}

// GiveBack is a job given back in its old position by this Store, and the count
// of its queue with that.
type GiveBack struct {
	Queue   string
	Spot    Spot
	Returns int64
}

// Back has the next claims begin where jobs were given back, by a commit that is done.
func (c *Set) Back(backs []GiveBack) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range backs {
		k := c.of[b.Queue]
		switch {
		case k == nil:
			continue
		case k.returns == b.Returns-1: // nobody else gave back meanwhile
			k.returns = b.Returns
		case k.returns != b.Returns:
			delete(c.of, b.Queue)
			continue
		}
		m := k.at(b.Spot.Urgency)
		m.low, m.head, m.check = min(m.low, b.Spot.Position-1), min(m.head, b.Spot.Position-1), 0
	}
}

// Returned reports whether jobs were given back since the cursor began.
func (c *Set) Returned(queue string, returns int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	return k != nil && k.returns != returns
}

// Forget has the next claim look at the whole queue.
func (c *Set) Forget(queue string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, queue)
}

// Reset forgets all: positions may be given again that were passed. What a claim
// learned before is to be told without All, or with Began.
func (c *Set) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.of)
	c.ended, c.laterNumber = 0, 0
	c.event++
	c.reset = c.event
}

// Lows are the spots of a queue, one of each urgency, at or below which nothing
// is ready.
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
