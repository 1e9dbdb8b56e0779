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
func (s *Set) Now() Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.event++
	return s.event
}

// Numbered records the number of a transaction that began after an event. If numbers are given in the order in
// which transactions write, nothing else proves "after": the transaction whose job was claimed may have begun
// before others that have smaller positions and higher numbers.
func (s *Set) Numbered(began Event, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if began < s.reset {
		return
	}
	if s.laterNumber == 0 || began > s.later || began == s.later && number < s.laterNumber {
		s.later, s.laterNumber = began, number
	}
}

// Over records that all transactions are over that drew a position before an event.
func (s *Set) Over(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = max(s.over, e) // marks are from after the last Reset, so an event before it proves none
}

// blockedFor is how long a proof waits for the lower-numbered transactions. After that it is worth finding out
// which of them can own a position.
const blockedFor = time.Second

// Blocked reports whether a proof for the queue waits for long-running transactions.
func (s *Set) Blocked(queue string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[queue]
	return c != nil && slices.ContainsFunc(c.marks, func(m mark) bool {
		return m.check != 0 && m.set > s.over && now.Sub(m.checkFrom) >= blockedFor
	})
}

// numberAfter returns the number below which every transaction must be over for the proof of m. 0: it isn't
// known yet.
func (s *Set) numberAfter(m *mark) int64 {
	if m.check != 0 && m.after == 0 && s.laterNumber != 0 && s.later >= m.set {
		m.after = s.laterNumber
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
func (s *Set) ToProve(queue string) (p Proof, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[queue]
	if c == nil {
		return p, false
	}
	p = Proof{Queue: queue, returns: c.returns, made: s.event}
	for i := range c.marks {
		m := &c.marks[i]
		after := s.numberAfter(m)
		if m.set <= s.over {
			after = 0
		} else if after == 0 {
			continue
		}
		if m.check != 0 && after <= s.ended {
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
func (s *Set) Advance(p Proof, ended int64, first []int64) {
	if ended < p.after || len(first) != len(p.Urgency) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[p.Queue]
	if c == nil || c.returns != p.returns || p.made < s.reset {
		return
	}
	for i, u := range p.Urgency {
		m := c.at(u)
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
