package fairshare

import (
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

const (
	// lightMax is how many units a light session can have waiting. It is also the share of a heavy session beside
	// one light session that has nothing waiting. Beside more of them the share is smaller.
	lightMax = 32
	// settlesPerUnit is how many settled jobs weigh as much as another unit when lightMax is applied. A connection with many
	// workers settles as many jobs as that many connections with one do, and no more than it was given.
	settlesPerUnit = 8
	// lightPerHeavy is how much more of a commit the light sessions get than the heavy ones.
	lightPerHeavy = 2
	// unitBytes of payload cost as much as the rest of a write.
	unitBytes = 8 << 10
	// RecentCommits is for how many commits a light session counts after its last write.
	RecentCommits = 16
	// maxQuiet is after how many commits without a write of a light session heavy sessions have no limit.
	maxQuiet = 10
)

// Share splits each commit between sessions. A session is heavy if more than lightMax units of its writes wait
// (see settlesPerUnit), else it is light. All heavy sessions together get half as much of a commit as the light ones. If a single large
// write exceeded a session's share, the excess counts against its next commits (Debts).
//
// Light sessions count although they have nothing waiting at the moment: a worker that runs a job writes nothing,
// and later finds a commit under way that can be as long as a thousand writes take. So the share of heavy sessions
// doubles with each commit in which no light session wrote. A worker that comes back then waits about as long as
// it was quiet. A producer that feeds idle workers gets whole commits, because the workers write nothing.
//
// The caller guards a Share with a lock. For each commit it calls Begin, then Admit for each write in order, then
// End.
type Share struct {
	Debts map[*quota.Session]int           // units above their share that sessions had in earlier commits
	total int                              // units that wait for this commit
	parts map[*quota.Session]*sessionShare // nil: every write is admitted
	heavy int                              // units of each heavy session; 0: as much as of all others

	light, earlierLight map[*quota.Session]struct{} // light sessions of the last commits, and of those before
	commits, quiet      int                         // since light was emptied; since a light session wrote
}

// sessionShare is a session's part of a commit.
type sessionShare struct {
	waiting, admitted int
	settled           int // of waiting: jobs that are settled
	heavy             bool
	over              bool // its next write waits, and so do those after it
}

// Units returns the cost of a write with that many jobs and bytes.
func Units(jobs int, bytes int64) int { return max(1, jobs) + int(bytes/unitBytes) }

// Begin starts a commit from the writes that wait. work returns the session of the i-th write, its units, and how many of
// them are settled jobs. A nil session belongs to no client.
func (t *Share) Begin(writes int, work func(i int) (s *quota.Session, units, settled int)) {
	t.parts, t.total = nil, 0
	if writes == 0 {
		t.Debts = nil
		return
	}
	t.nextCommit()
	for i := range writes {
		_, n, _ := work(i)
		t.total += n
	}
	if t.total <= lightMax && len(t.Debts) == 0 {
		for i := range writes {
			s, _, _ := work(i)
			t.noteLight(s)
		}
		return
	}
	t.parts = make(map[*quota.Session]*sessionShare, 64)
	var x *sessionShare
	var last *quota.Session
	for i := range writes {
		s, n, settled := work(i)
		if x == nil || s != last { // the writes of a heavy session come in long runs
			x, last = t.parts[s], s
		}
		if x == nil {
			x = &sessionShare{}
			t.parts[s] = x
		}
		x.waiting += n
		x.settled += settled
	}
	t.divide()
}

// divide computes the share of each heavy session.
func (t *Share) divide() {
	heavy, left := 0, 0
	for s, x := range t.parts {
		if x.heavy = s != nil && x.waiting-x.settled+x.settled/settlesPerUnit+t.Debts[s] > lightMax; x.heavy {
			heavy++
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
	case heavy == len(t.parts) && (present == 0 || t.quiet > maxQuiet): // no light session exists
		t.heavy = 0
		if heavy == 1 {
			t.Debts, t.parts = nil, nil
		}
	case heavy > 0:
		least := max(1, lightMax/max(1, present)) << min(t.quiet, maxQuiet)
		t.heavy = max(1, max(left/lightPerHeavy, least)/heavy)
	}
}

// nextCommit forgets light sessions that have not written in the last commits.
func (t *Share) nextCommit() {
	t.quiet++
	if t.commits++; t.commits > RecentCommits {
		t.earlierLight, t.light, t.commits = t.light, nil, 0
	}
}

// noteLight records that a light session has a write.
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

// allowance returns how many units of a session this commit admits.
func (t *Share) allowance(x *sessionShare) int {
	switch {
	case !x.heavy:
		return max(lightMax, x.waiting, t.total-x.waiting)
	case t.heavy > 0:
		return t.heavy
	}
	return max(lightMax, t.total-x.waiting)
}

// Admit reports whether a write of the session, of that many units, is part of this commit. If not, no later write of
// the session is either. Writes without a session are always admitted: they release jobs.
func (t *Share) Admit(s *quota.Session, units int) bool {
	if t.parts == nil || s == nil {
		return true
	}
	x := t.parts[s]
	if x.over = x.over || x.admitted+t.Debts[s] >= t.allowance(x); x.over {
		return false
	}
	x.admitted += units
	return true
}

// Over reports whether the session used up its share of the last commit and has more to write.
func (t *Share) Over(s *quota.Session) bool {
	x := t.parts[s]
	return x != nil && x.over
}

// End records which sessions exceeded their share, and reduces the debts of the others.
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
