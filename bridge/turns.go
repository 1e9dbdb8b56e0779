package bridge

// Bounds of turns.
const (
	// leastTurn is how much a session may have waiting and not be greedy, and what one that is
	// may have in a commit beside a single other: beside more of them it is less.
	leastTurn = 32
	// greedyPart of what the others have in a commit is what all who are greedy have: half of it.
	greedyPart = 2
	// unitBytes of payload are as much work as a write's rest.
	unitBytes = 8 << 10
	// lately is in how many commits who wrote counts as one who will write again.
	lately = 16
	// quietMost is after how many commits without a write of others there is no limit.
	quietMost = 10
)

// turns see that those who are greedy (who have more waiting than leastTurn) have half as much
// of a commit, together, as the others: who sends without end, or large payloads, leaves them most
// of what the database does. A producer that feeds workers gets on with that: where they find
// nothing to do they write nothing, and it has all. What was more, because a single
// write was so large, counts in the session's next commits. The committer's mu guards it.
//
// The others need not be waiting at the moment: who works on a job has nothing to write, and
// would find a commit under way that is as long as a thousand writes take. So after a commit in which
// nobody else wrote the greedy may have twice as much in the next: a commit is then about
// as long as it was quiet before it, and who comes back waits no longer for it than that.
type turns struct {
	debts  map[*account]int
	total  int                // what waits for the commit that is being gathered
	of     map[*account]*turn // nil: all of it may go
	greedy int                // what may go of each session that is greedy; 0: as much as of all others

	others, before map[*account]struct{} // who were not, in the last commits, and in those before
	commits, quiet int                   // since others began; since one of them wrote
}

// turn is a session's part of a commit.
type turn struct {
	waiting, had int
	greedy       bool
	over         bool // its next write stays behind, and so do those after it
}

// units are the work of a write.
func (s size) units() int { return max(1, s.jobs) + int(s.bytes/unitBytes) }

// begin looks who waits.
func (t *turns) begin(queue []*pending) {
	t.of, t.total = nil, 0
	if len(queue) == 0 {
		t.debts = nil
		return
	}
	t.next()
	for _, p := range queue {
		t.total += p.size.units()
	}
	if t.total <= leastTurn && len(t.debts) == 0 {
		for _, p := range queue {
			t.note(p.sess)
		}
		return
	}
	t.of = make(map[*account]*turn, 64)
	var x *turn
	for i, p := range queue {
		if i == 0 || p.sess != queue[i-1].sess { // the greedy's come in long rows
			x = t.of[p.sess]
		}
		if x == nil {
			x = &turn{}
			t.of[p.sess] = x
		}
		x.waiting += p.size.units()
	}
	t.divide()
}

// divide says what the greedy may have.
func (t *turns) divide() {
	greedy, left := 0, 0
	for s, x := range t.of {
		if x.greedy = s != nil && x.waiting+t.debts[s] > leastTurn; x.greedy {
			greedy++
			continue
		}
		left += x.waiting
		t.note(s)
	}
	present := len(t.others)
	for s := range t.before {
		if _, twice := t.others[s]; !twice {
			present++
		}
	}
	switch {
	case greedy == len(t.of) && (present == 0 || t.quiet > quietMost): // there are no others
		t.greedy = 0
		if greedy == 1 {
			t.debts, t.of = nil, nil
		}
	case greedy > 0:
		least := max(1, leastTurn/max(1, present)) << min(t.quiet, quietMost)
		t.greedy = max(1, max(left/greedyPart, least)/greedy)
	}
}

// next begins a commit.
func (t *turns) next() {
	t.quiet++
	if t.commits++; t.commits > lately {
		t.before, t.others, t.commits = t.others, nil, 0
	}
}

// note has a session be one of the others, who wait.
func (t *turns) note(s *account) {
	if s == nil {
		return
	}
	if t.others == nil {
		t.others = make(map[*account]struct{})
	}
	t.others[s] = struct{}{}
	t.quiet = 0
}

// share is what may go of a session.
func (t *turns) share(x *turn) int {
	if x.greedy && t.greedy > 0 {
		return t.greedy
	}
	return max(leastTurn, t.total-x.waiting)
}

// goes reports whether the write goes with this commit.
func (t *turns) goes(p *pending) bool {
	if t.of == nil || p.sess == nil {
		return true // nobody's: what was given up goes back at once
	}
	x := t.of[p.sess]
	if x.over = x.over || x.had+t.debts[p.sess] >= t.share(x); x.over {
		return false
	}
	x.had += p.size.units()
	return true
}

// over reports whether the session had its turn, and has more to write.
func (t *turns) over(s *account) bool {
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
			t.owe(s, t.debts[s]+x.had-t.share(x))
		}
	}
	for s, debt := range t.debts {
		switch x := t.of[s]; {
		case x == nil:
			t.owe(s, debt-t.share(&turn{}))
		case x.had == 0:
			t.owe(s, debt-t.share(x))
		}
	}
}

func (t *turns) owe(s *account, debt int) {
	if debt <= 0 {
		delete(t.debts, s)
		return
	}
	if t.debts == nil {
		t.debts = make(map[*account]int)
	}
	t.debts[s] = debt
}
