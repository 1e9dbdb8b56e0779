package postgres

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
// Inside a priority positions only grow, with three exceptions, and for each
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
//   - A sequence that was set back, by hand. forgetAfter bounds the harm.
type cursor struct {
	marks   []mark // by urgency; urgency is -priority
	returns int64
	full    time.Time // when a claim last looked at everything from low on
	fresh   time.Time // when the cursor began
	used    time.Time
}

// mark is how far one priority has been taken.
type mark struct {
	urgency int32
	low     int64 // nothing ready is at or below it
	head    int64 // where the last claim ended

	// To be proven: that nothing ready is at or below check. The proof is a look
	// by a snapshot to which every transaction below after has ended.
	check int64 // 0: nothing
	after int64
}

// Bounds of cursors.
const (
	fullLook    = 400 * time.Millisecond
	forgetAfter = 5 * time.Minute // start again from nothing, whatever was proven
	maxMarks    = 16              // priorities of one queue
	maxCursors  = 4096
	provenStep  = 500 // positions between low and head that are worth a proof

	minUrgency = -math.MaxInt16 - 1 // below each
	maxUrgency = math.MaxInt16 + 2  // above each
)

// segment is a piece of the index of a queue's ready jobs: after from, up to to.
type segment struct {
	from, to spot
}

type spot struct {
	urgency  int32
	position int64
}

func (x spot) compare(y spot) int {
	return cmp.Or(cmp.Compare(x.urgency, y.urgency), cmp.Compare(x.position, y.position))
}

var (
	beginning = spot{minUrgency, 0}
	theEnd    = spot{maxUrgency, math.MaxInt64}
)

// cursors are those of a Store, by queue.
type cursors struct {
	mu   sync.Mutex
	of   map[string]*cursor
	xmin int64 // the highest that any snapshot had
}

// segments lists the pieces to look through, in their order: from each head on,
// then what is between each low and head. Together they are everything from the
// lows on. It is a full look where everything comes in its own order, from the
// lows on.
func (c *cursors) segments(queue string, now time.Time, full bool) []segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil || now.Sub(k.fresh) > forgetAfter {
		return []segment{{beginning, theEnd}}
	}
	full = full || now.Sub(k.full) >= fullLook
	var main, behind []segment
	from := beginning
	for _, m := range k.marks {
		main = append(main, segment{from, spot{m.urgency - 1, math.MaxInt64}})
		if from = (spot{m.urgency, m.head}); full {
			from.position = m.low
		} else if m.low < m.head {
			behind = append(behind, segment{spot{m.urgency, m.low}, from})
		}
	}
	main = append(main, segment{from, theEnd})
	return append(main, behind...)
}

// learned is what a committed claim tells about a queue.
type learned struct {
	asked   time.Time // before the claim
	taken   []spot    // in the order in which they were taken
	full    bool      // the claim looked at everything from low on, in its own order
	all     bool      // everything from low on was looked at, or comes after the last taken
	returns int64
	xmin    int64 // of a snapshot after the claim
	xmax    int64
}

// learn moves the cursor of a queue.
func (c *cursors) learn(queue string, l learned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil || k.returns != l.returns || l.asked.Sub(k.fresh) > forgetAfter {
		k = c.begin(queue, l)
	}
	k.used = l.asked
	c.xmin = max(c.xmin, l.xmin)
	if l.all {
		k.full = l.asked
	}
	for _, s := range l.taken {
		k.at(s.urgency).head = s.position
	}
	for i := range k.marks {
		if m := &k.marks[i]; m.check == 0 && m.head-m.low > provenStep {
			m.check, m.after = m.head, l.xmax
		}
	}
	if len(k.marks) > maxMarks {
		delete(c.of, queue)
	}
}

func (c *cursors) begin(queue string, l learned) *cursor {
	if c.of == nil {
		c.of = map[string]*cursor{}
	}
	if len(c.of) >= maxCursors {
		for q, k := range c.of {
			if l.asked.Sub(k.used) > time.Minute {
				delete(c.of, q)
			}
		}
		if len(c.of) >= maxCursors {
			clear(c.of)
		}
	}
	k := &cursor{returns: l.returns, fresh: l.asked}
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

// proof is a look at what a cursor would like to have behind it.
type proof struct {
	queue          string
	urgency        []int32
	low, high      []int64
	after, returns int64
}

// toProve is a proof that can succeed by now.
func (c *cursors) toProve(queue string) (p proof, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	if k == nil {
		return p, false
	}
	p = proof{queue: queue, returns: k.returns}
	for _, m := range k.marks {
		if m.check != 0 && m.after <= c.xmin {
			p.urgency, p.low, p.high = append(p.urgency, m.urgency), append(p.low, m.low), append(p.high, m.check)
			p.after = max(p.after, m.after)
		}
	}
	return p, len(p.urgency) > 0
}

// advance moves the lows, by what a snapshot with that xmin saw: the first ready
// position of each piece, 0 where there is none.
//
// Why nothing can come up below: a job that is ready, or that may become ready
// by a rollback, is seen by the snapshot, locked or not. A job whose INSERT was
// not committed has a transaction that had its id before the job had its number
// (qsidecar_next), and its number is below one that a claim saw; so that
// transaction's id is below the `after` of that claim, and it has ended before
// the snapshot. And each later change gives a new position or counts a return.
func (c *cursors) advance(p proof, xmin int64, first []int64) {
	if xmin < p.after || len(first) != len(p.urgency) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[p.queue]
	if k == nil || k.returns != p.returns {
		return
	}
	for i, u := range p.urgency {
		m := k.at(u)
		if m.low != p.low[i] || m.check != p.high[i] {
			continue // another claim's proof came first
		}
		if m.check = 0; first[i] == 0 {
			m.low = p.high[i]
		} else {
			m.low = first[i] - 1
		}
		m.head = max(m.head, m.low)
	}
}

// giveBack is a job given back in its old position by this Store, and the count
// of its queue with that.
type giveBack struct {
	queue   string
	spot    spot
	returns int64
}

// back has the next claims begin where jobs were given back, by a commit that is done.
func (c *cursors) back(backs []giveBack) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range backs {
		k := c.of[b.queue]
		switch {
		case k == nil:
			continue
		case k.returns == b.returns-1: // nobody else gave back meanwhile
			k.returns = b.returns
		case k.returns != b.returns:
			delete(c.of, b.queue)
			continue
		}
		m := k.at(b.spot.urgency)
		m.low, m.head, m.check = min(m.low, b.spot.position-1), min(m.head, b.spot.position-1), 0
	}
}

// returned reports whether jobs were given back since the cursor began.
func (c *cursors) returned(queue string, returns int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	return k != nil && k.returns != returns
}

// forget has the next claim look at the whole queue.
func (c *cursors) forget(queue string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, queue)
}
