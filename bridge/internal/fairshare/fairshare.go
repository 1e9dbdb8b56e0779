package fairshare

import (
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Bounds of turns.
const (
	// leastTurn is how much a session may have waiting and not be greedy, and what one that is
	// may have in a commit beside a single other: beside more of them it is less.
	lightMax = 32
	// greedyPart of what the others have in a commit is what all who are greedy have: half of it.
	lightPerHeavy = 2
	// unitBytes of payload are as much work as a write's rest.
	unitBytes = 8 << 10
	// lately is in how many commits who wrote counts as one who will write again.
	RecentCommits = 16
	// quietMost is after how many commits without a write of others there is no limit.
	maxQuiet = 10
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
type Share struct {
	Debts map[*quota.Session]int
	total int                              // what waits for the commit that is being gathered
	parts map[*quota.Session]*sessionShare // nil: all of it may go
	heavy int                              // what may go of each session that is greedy; 0: as much as of all others

	light, earlierLight map[*quota.Session]struct{} // who were not, in the last commits, and in those before
	commits, quiet      int                         // since others began; since one of them wrote
}

// turn is a session's part of a commit.
type sessionShare struct {
	waiting, admitted int
	heavy             bool
	over              bool // its next write stays behind, and so do those after it
}

// units are the work of a write with so many jobs, of so many bytes together.
func Units(jobs int, bytes int64) int { return max(1, jobs) + int(bytes/unitBytes) }

// begin looks who waits, in so many writes: work is whose the i-th is, and its units.
func (t *Share) Begin(writes int, work func(i int) (s *quota.Session, units int)) {
	t.parts, t.total = nil, 0
	if writes == 0 {
		t.Debts = nil
		return
	}
	t.nextCommit()
	for i := range writes {
		_, n := work(i)
		t.total += n
	}
	if t.total <= lightMax && len(t.Debts) == 0 {
		for i := range writes {
			s, _ := work(i)
			t.noteLight(s)
		}
		return
	}
	t.parts = make(map[*quota.Session]*sessionShare, 64)
	var x *sessionShare
	var last *quota.Session
	for i := range writes {
		s, n := work(i)
		if x == nil || s != last { // the greedy's come in long rows
			x, last = t.parts[s], s
		}
		if x == nil {
			x = &sessionShare{}
			t.parts[s] = x
		}
		x.waiting += n
	}
	t.divide()
}

// divide says what the greedy may have.
func (t *Share) divide() {
	greedy, left := 0, 0
	for s, x := range t.parts {
		if x.heavy = s != nil && x.waiting+t.Debts[s] > lightMax; x.heavy {
			greedy++
			continue
		}
		left += x.waiting
		t.noteLight(s)
	}
	present := len(t.light)
	for s := range t.earlierLight {
		if _, twice := t.light[s]; !twice {
			present++
		}
	}
	switch {
	case greedy == len(t.parts) && (present == 0 || t.quiet > maxQuiet): // there are no others
		t.heavy = 0
		if greedy == 1 {
			t.Debts, t.parts = nil, nil
		}
	case greedy > 0:
		least := max(1, lightMax/max(1, present)) << min(t.quiet, maxQuiet)
		t.heavy = max(1, max(left/lightPerHeavy, least)/greedy)
	}
}

// next begins a commit.
func (t *Share) nextCommit() {
	t.quiet++
	if t.commits++; t.commits > RecentCommits {
		t.earlierLight, t.light, t.commits = t.light, nil, 0
	}
}

// note has a session be one of the others, who wait.
func (t *Share) noteLight(s *quota.Session) {
	if s == nil {
		return
	}
	if t.light == nil {
		t.light = make(map[*quota.Session]struct{})
	}
	t.light[s] = struct{}{}
	t.quiet = 0
}

// share is what may go of a session.
func (t *Share) allowance(x *sessionShare) int {
	if x.heavy && t.heavy > 0 {
		return t.heavy
	}
	return max(lightMax, t.total-x.waiting)
}

// goes reports whether a write of the session, of so many units, goes with this commit.
func (t *Share) Admit(s *quota.Session, units int) bool {
	if t.parts == nil || s == nil {
		return true // nobody's: what was given up goes back at once
	}
	x := t.parts[s]
	if x.over = x.over || x.admitted+t.Debts[s] >= t.allowance(x); x.over {
		return false
	}
	x.admitted += units
	return true
}

// over reports whether the session had its turn, and has more to write.
func (t *Share) Over(s *quota.Session) bool {
	x := t.parts[s]
	return x != nil && x.over
}

// end notes who had more than its share.
func (t *Share) End() {
	if t.parts == nil {
		return
	}
	for s, x := range t.parts {
		if x.admitted > 0 && s != nil {
			t.setDebt(s, t.Debts[s]+x.admitted-t.allowance(x))
		}
	}
	for s, debt := range t.Debts {
		switch x := t.parts[s]; {
		case x == nil:
			t.setDebt(s, debt-t.allowance(&sessionShare{}))
		case x.admitted == 0:
			t.setDebt(s, debt-t.allowance(x))
		}
	}
}

func (t *Share) setDebt(s *quota.Session, debt int) {
	if debt <= 0 {
		delete(t.Debts, s)
		return
	}
	if t.Debts == nil {
		t.Debts = make(map[*quota.Session]int)
	}
	t.Debts[s] = debt
}
