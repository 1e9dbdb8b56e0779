package fairshare

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
// S identifies a session. The zero S stands for none.
//
// The caller guards a Share with a lock. For each commit it calls Begin, then Admit for each write in order, then
// End.
type Share[S comparable] struct {
	Debts map[S]int           // units above their share that sessions had in earlier commits
	total int                 // units that wait for this commit
	parts map[S]*sessionShare // nil: every write is admitted
	heavy int                 // units of each heavy session; 0: as much as of all others

	light, earlierLight map[S]struct{} // light sessions of the last commits, and of those before
	commits, quiet      int            // since light was emptied; since a light session wrote
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
// them are settled jobs. The zero session belongs to no client.
func (s *Share[S]) Begin(writes int, work func(i int) (session S, units, settled int)) {
	s.parts, s.total = nil, 0
	if writes == 0 {
		s.Debts = nil
		return
	}
	s.nextCommit()
	for i := range writes {
		_, n, _ := work(i)
		s.total += n
	}
	if s.total <= lightMax && len(s.Debts) == 0 {
		for i := range writes {
			session, _, _ := work(i)
			s.noteLight(session)
		}
		return
	}
	s.parts = make(map[S]*sessionShare, 64)
	var x *sessionShare
	var last S
	for i := range writes {
		session, n, settled := work(i)
		if x == nil || session != last { // the writes of a heavy session come in long runs
			x, last = s.parts[session], session
		}
		if x == nil {
			x = &sessionShare{}
			s.parts[session] = x
		}
		x.waiting += n
		x.settled += settled
	}
	s.divide()
}

// divide computes the share of each heavy session.
func (s *Share[S]) divide() {
	heavy, left := 0, 0
	for session, x := range s.parts {
		if x.heavy = !isNone(session) && x.waiting-x.settled+x.settled/settlesPerUnit+s.Debts[session] > lightMax; x.heavy {
			heavy++
			continue
		}
		left += x.waiting
		s.noteLight(session)
	}
	present := len(s.light)
	for session := range s.earlierLight {
		if _, twice := s.light[session]; !twice {
			present++
		}
	}
	switch {
	case heavy == len(s.parts) && (present == 0 || s.quiet > maxQuiet): // no light session exists
		s.heavy = 0
		if heavy == 1 {
			s.Debts, s.parts = nil, nil
		}
	case heavy > 0:
		least := max(1, lightMax/max(1, present)) << min(s.quiet, maxQuiet)
		s.heavy = max(1, max(left/lightPerHeavy, least)/heavy)
	}
}

// nextCommit forgets light sessions that have not written in the last commits.
func (s *Share[S]) nextCommit() {
	s.quiet++
	if s.commits++; s.commits > RecentCommits {
		s.earlierLight, s.light, s.commits = s.light, nil, 0
	}
}

// noteLight records that a light session has a write.
func (s *Share[S]) noteLight(session S) {
	if isNone(session) {
		return
	}
	if s.light == nil {
		s.light = make(map[S]struct{})
	}
	s.light[session] = struct{}{}
	s.quiet = 0
}

// allowance returns how many units of a session this commit admits.
func (s *Share[S]) allowance(x *sessionShare) int {
	switch {
	case !x.heavy:
		return max(lightMax, x.waiting, s.total-x.waiting)
	case s.heavy > 0:
		return s.heavy
	}
	return max(lightMax, s.total-x.waiting)
}

// Admit reports whether a write of the session, of that many units, is part of this commit. If not, no later write of
// the session is either. Writes without a session are always admitted: they release jobs.
func (s *Share[S]) Admit(session S, units int) bool {
	if s.parts == nil || isNone(session) {
		return true
	}
	x := s.parts[session]
	if x.over = x.over || x.admitted+s.Debts[session] >= s.allowance(x); x.over {
		return false
	}
	x.admitted += units
	return true
}

// Over reports whether the session used up its share of the last commit and has more to write.
func (s *Share[S]) Over(session S) bool {
	x := s.parts[session]
	return x != nil && x.over
}

// End records which sessions exceeded their share, and reduces the debts of the others.
func (s *Share[S]) End() {
	if s.parts == nil {
		return
	}
	for session, x := range s.parts {
		if x.admitted > 0 && !isNone(session) {
			s.setDebt(session, s.Debts[session]+x.admitted-s.allowance(x))
		}
	}
	for session, debt := range s.Debts {
		switch x := s.parts[session]; {
		case x == nil:
			s.setDebt(session, debt-s.allowance(&sessionShare{}))
		case x.admitted == 0:
			s.setDebt(session, debt-s.allowance(x))
		}
	}
}

func (s *Share[S]) setDebt(session S, debt int) {
	if debt <= 0 {
		delete(s.Debts, session)
		return
	}
	if s.Debts == nil {
		s.Debts = make(map[S]int)
	}
	s.Debts[session] = debt
}

// isNone reports whether a write has no session.
func isNone[S comparable](session S) bool {
	var none S
	return session == none
}
