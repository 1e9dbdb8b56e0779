package cursor

import (
	"slices"
	"time"
)

// Event numbers what cursors learn, so that transactions can be ordered relative to it.
type Event int64

// Never is before every event.
const Never Event = -1

// Now returns a new event. A transaction that begins after the call gets its number after all positions of
// earlier events were given.
func (c *Set) Now() Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.event++
	return c.event
}

// Numbered records the number of a transaction that began after an event. If numbers are given in the order in
// which transactions write, nothing else proves "after": the transaction whose job was claimed may have begun
// before others that have smaller positions and higher numbers.
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

// Over records that all transactions are over that drew a position before an event.
func (c *Set) Over(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e >= c.reset {
		c.over = max(c.over, e)
	}
}

// blockedFor is how long a proof waits for the lower-numbered transactions. After that it is worth finding out
// which of them can own a position.
const blockedFor = time.Second

// Blocked reports whether a proof for the queue waits for long-running transactions.
func (c *Set) Blocked(queue string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[queue]
	return k != nil && slices.ContainsFunc(k.marks, func(m mark) bool {
		return m.check != 0 && m.set > c.over && now.Sub(m.asked) >= blockedFor
	})
}

// numberAfter returns the number below which every transaction must be over for the proof of m. 0: it isn't
// known yet.
func (c *Set) numberAfter(m *mark) int64 {
	if m.check != 0 && m.after == 0 && c.laterNumber != 0 && c.later >= m.set {
		m.after = c.laterNumber
	}
	return m.after
}

// Proof describes a scan that would let a cursor advance: for each listed urgency, the positions after Low, up
// to High.
type Proof struct {
	Queue          string
	Urgency        []int32
	Low, High      []int64
	after, returns int64
	made           Event
}

// ToProve returns a proof that can succeed now. ok is false if there is none.
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
		after := c.numberAfter(m)
		if m.set <= c.over {
			after = 0
		} else if after == 0 {
			continue
		}
		if m.check != 0 && after <= c.ended {
			p.Urgency, p.Low, p.High = append(p.Urgency, m.urgency), append(p.Low, m.low), append(p.High, m.check)
			p.after = max(p.after, after)
		}
	}
	return p, len(p.Urgency) > 0
}

// Advance moves the lows after a scan. ended: all transactions numbered below it were over when the scan saw
// the database. first holds the first ready position of each segment, 0 if there is none.
//
// The scan must see each job that is ready or that a rollback can make ready, locked or not. Then nothing can
// appear below, because each later change gives a new position or counts a return.
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
			continue // the proof of another claim came first
		}
		if m.check = 0; first[i] == 0 {
			m.low = p.High[i]
		} else {
			m.low = first[i] - 1
		}
		m.head = max(m.head, m.low)
	}
}
