package bridge

// Bounds of turns.
const (
	// leastTurn is what a session may always have in a commit: thirty workers that ack a
	// job each and one that enqueues thousands have about half of it each.
	leastTurn = 32
	// unitBytes of payload are as much work as a write's rest.
	unitBytes = 8 << 10
	// counted is how many writes are looked at to see who waits.
	counted = 4096
)

// turns see that no session has more of a commit than all others together while these
// wait, so that one that sends without end, or large payloads, leaves them half of it.
// What was more, because a single write was so large, counts in its next commits. The
// committer's mu guards it.
type turns struct {
	debts map[*session]int
	total int                // what waits for the commit that is being gathered
	of    map[*session]*turn // nil: all of it may go
}

// turn is a session's part of a commit.
type turn struct {
	waiting, had int
	over         bool // its next write stays behind, and so do those after it
}

// units are the work of a write.
func (s size) units() int { return max(1, s.jobs) + int(s.bytes/unitBytes) }

// begin looks who waits.
func (t *turns) begin(queue []*pending) {
	t.of, t.total = nil, 0
	for _, p := range queue[:min(len(queue), counted)] {
		t.total += p.size.units()
	}
	if t.total <= leastTurn && len(t.debts) == 0 {
		return
	}
	of := make(map[*session]*turn, 64)
	for _, p := range queue[:min(len(queue), counted)] {
		x := of[p.sess]
		if x == nil {
			x = &turn{}
			of[p.sess] = x
		}
		x.waiting += p.size.units()
	}
	if len(of) <= 1 { // there are no others
		t.debts = nil
		return
	}
	t.of = of
}

// share is what may go of a session that waits with so much.
func (t *turns) share(waiting int) int { return max(leastTurn, t.total-waiting) }

// goes reports whether the write goes with this commit.
func (t *turns) goes(p *pending) bool {
	if t.of == nil || p.sess == nil {
		return true // nobody's: what was given up goes back at once
	}
	x := t.of[p.sess]
	if x == nil {
		return false // it is behind those that were counted
	}
	if x.over = x.over || x.had+t.debts[p.sess] >= t.share(x.waiting); x.over {
		return false
	}
	x.had += p.size.units()
	return true
}

// over reports whether the session had its turn, and has more to write.
func (t *turns) over(s *session) bool {
	x := t.of[s]
	return x != nil && x.over
}

// others counts the writes of those who did not have more to write than their turn. over:
// there is one who had.
func (c *committer) others(writes []*pending) (n int, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range writes {
		if c.turns.over(p.sess) {
			over = true
		} else {
			n++
		}
	}
	return n, over
}

// end notes who had more than its share.
func (t *turns) end() {
	if t.of == nil {
		return
	}
	for s, x := range t.of {
		if x.had > 0 && s != nil {
			t.owe(s, t.debts[s]+x.had-t.share(x.waiting))
		}
	}
	for s, debt := range t.debts {
		switch x := t.of[s]; {
		case x == nil:
			t.owe(s, debt-t.share(0))
		case x.had == 0:
			t.owe(s, debt-t.share(x.waiting))
		}
	}
}

func (t *turns) owe(s *session, debt int) {
	if debt <= 0 {
		delete(t.debts, s)
		return
	}
	if t.debts == nil {
		t.debts = make(map[*session]int)
	}
	t.debts[s] = debt
}
