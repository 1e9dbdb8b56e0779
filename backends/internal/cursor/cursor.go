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
//     ready is below it or will ever be (see advance). Where low can't move, what is
//     behind grows: then both look there less often (see Pieces).
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
	asked time.Time
}

// Bounds of cursors.
const (
	fullLook    = 400 * time.Millisecond
	rarestLook  = 800 * time.Millisecond // where full looks are slow
	rarestFull  = 10 * time.Second       // and claims do without them
	fullShare   = 20                     // a full look takes no more than this part of the time, except for the above
	nearBehind  = 40_000                 // positions: so much is never slow
	quickLook   = 20 * time.Millisecond
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
	over  Event // all transactions are that may own a position of up to this event

	// The transaction with this number began after event later.
	later       Event
	laterNumber int64
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
	return k.segments(full || now.Sub(k.full) >= fullLook)
}

// Pieces lists the pieces that a claim looks through. If much is behind the heads, most of
// which is gone, and the last look there was slow, all is false: what is behind is left
// out, unless the time for a full look has come. If floors are Unproven nothing is left out.
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
	every, slow := fullLook, !c.Unproven && behind > nearBehind && k.took >= quickLook
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

// Looked is told that a look without a claim went through all of a queue's pieces and
// found nothing ready.
func (c *Set) Looked(queue string, asked time.Time, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.of[queue]; k != nil && asked.After(k.full) {
		k.full, k.took = asked, took
	}
}

// segments are the pieces from the heads on, then those behind; full: from the lows on.
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
	Left    bool          // what is behind the heads was left out
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
	c.ended, c.laterNumber, c.over = 0, 0, 0
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
