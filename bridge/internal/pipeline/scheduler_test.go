package pipeline

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/fairshare"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// queuedWrites returns a scheduler whose queue has the writes.
func queuedWrites(writes ...*PendingWrite) *scheduler {
	s := newScheduler(backends.Info{})
	for _, p := range writes {
		add(&s, p)
	}
	return &s
}

// add queues a write.
func add(s *scheduler, p *PendingWrite) (wake bool) {
	p.size = sizeOf(p.write)
	return s.push(p)
}

// nextBatch returns the writes of a commit that is not under way any more.
func nextBatch(s *scheduler) []*PendingWrite {
	c, _ := s.next(0, nil)
	if c == nil {
		return nil
	}
	writes := c.writes
	if c.claims {
		s.endClaims()
	}
	s.cancel(c)
	return writes
}

func jobsOf(s *quota.Session, n, bytes int) (all []*PendingWrite) {
	for range n {
		all = append(all, &PendingWrite{session: s, write: backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, bytes)}}}})
	}
	return all
}

// had counts a session's writes in a batch, and checks that they are its next ones.
func had(t *testing.T, batch []*PendingWrite, s *quota.Session, next *[]*PendingWrite) (n int) {
	t.Helper()
	for _, p := range batch {
		if p.session != s {
			continue
		}
		if p != (*next)[0] {
			t.Error("a session's writes change their order")
		}
		*next = (*next)[1:]
		n++
	}
	return n
}

// TestHeavySessionGetsAThirdOfACommit shows that a session that has a thousand writes queued gets half as much of a commit as all others, and
// all of it when it is alone.
func TestHeavySessionGetsAThirdOfACommit(t *testing.T) {
	greedy := &quota.Session{}
	its := jobsOf(greedy, 900, 10)
	c := queuedWrites(its...)
	others := func() {
		for range 50 {
			p := jobsOf(&quota.Session{}, 1, 10)[0]
			add(c, p)
		}
	}
	for range 3 {
		others()
		batch := nextBatch(c)
		if n := had(t, batch, greedy, &its); n != 25 || len(batch) != 75 {
			t.Fatalf("of a commit of %d writes one session has %d, want 25 of 75", len(batch), n)
		}
		if !c.fair.Over(greedy) {
			t.Error("it is not known to have had its turn")
		}
	}
	if n := c.countWaiting(nil); n != 0 {
		t.Errorf("of no writes %d are of others", n)
	}
	for had := 2; len(c.queue) > 0; had *= 2 { // 50 other sessions wrote one each
		if n := len(nextBatch(c)); n != min(had, 825-had+2) {
			t.Errorf("without other writers it has %d writes in a commit, want %d", n, had)
		}
	}
	if nextBatch(c); len(c.fair.Debts) > 0 {
		t.Errorf("there are %d debts", len(c.fair.Debts))
	}
	for range fairshare.RecentCommits + 1 {
		add(c, jobsOf(greedy, 1, 10)[0])
		nextBatch(c)
	}
	for _, p := range jobsOf(greedy, 900, 10) {
		add(c, p)
	}
	for range fairshare.RecentCommits {
		nextBatch(c)
	}
	for _, p := range jobsOf(greedy, 900, 10) {
		add(c, p)
	}
	if n := len(nextBatch(c)); n != 900 {
		t.Errorf("alone it has %d of its 900 writes in a commit", n)
	}
}

// TestHeavySessionsShareOnePart shows that several heavy sessions get no more of a commit than one would, and share it.
func TestHeavySessionsShareOnePart(t *testing.T) {
	one, two := &quota.Session{}, &quota.Session{}
	ones, twos := jobsOf(one, 500, 10), jobsOf(two, 500, 10)
	c := queuedWrites(append(slices.Clone(ones), twos...)...)
	for range 3 {
		for range 80 {
			p := jobsOf(&quota.Session{}, 1, 10)[0]
			add(c, p)
		}
		batch := nextBatch(c)
		if n, m := had(t, batch, one, &ones), had(t, batch, two, &twos); n != 20 || m != 20 || len(batch) != 120 {
			t.Fatalf("a commit has %d writes of the one, %d of the other, %d in all; want 20, 20, 120", n, m, len(batch))
		}
	}
}

// TestLightSessionIsNotDelayed shows that a session with one write is in the next commit, however many writes wait before
// it.
func TestLightSessionIsNotDelayed(t *testing.T) {
	c := queuedWrites()
	for range 10 {
		for _, p := range jobsOf(&quota.Session{}, 1000, 10) {
			add(c, p)
		}
	}
	worker := &quota.Session{}
	p := jobsOf(worker, 1, 10)[0]
	add(c, p)
	if !slices.Contains(nextBatch(c), p) {
		t.Error("a worker's write is left behind ten thousand of others")
	}
}

// TestLargeWritesCountTowardsTheShare shows that after a large write only those of other sessions are admitted for a while, and
// that no session waits indefinitely.
func TestLargeWritesCountTowardsTheShare(t *testing.T) {
	greedy, worker := &quota.Session{}, &quota.Session{}
	its := jobsOf(greedy, 3, 4<<20)
	c := queuedWrites(its...)
	var at []int
	for i := range 100 {
		for _, p := range jobsOf(worker, 1, 10) {
			add(c, p)
		}
		batch := nextBatch(c)
		if n := had(t, batch, greedy, &its); n == 1 {
			at = append(at, i)
		} else if n > 1 {
			t.Fatalf("commit %d has %d large writes", i, n)
		}
		if len(batch) == 0 || batch[len(batch)-1].session != worker {
			t.Fatalf("commit %d leaves out the session with a small write", i)
		}
	}
	if len(at) != 3 || at[0] != 0 || at[1] < 5 || at[2] > 60 {
		t.Errorf("large writes were in the commits %v", at)
	}
}

// TestDebtsArePaidWithLaterCommits shows that a commit begins again if all waiting sessions were over their share. Writes
// without a session never wait.
func TestDebtsArePaidWithLaterCommits(t *testing.T) {
	a, b := &quota.Session{}, &quota.Session{}
	release := &PendingWrite{write: backends.Release{Leases: make([]backends.Lease, 3000)}}
	c := queuedWrites(append(jobsOf(a, 1, 10), append(jobsOf(b, 1, 10), release)...)...)
	c.fair.Debts = map[*quota.Session]int{a: 1 << 20, b: 1 << 20}
	if batch := nextBatch(c); len(batch) != 1 || batch[0] != release {
		t.Errorf("%d writes go, want the release alone", len(batch))
	}
	if batch := nextBatch(c); len(batch) != 2 {
		t.Errorf("then %d, want both that waited", len(batch))
	}
}

// TestSettlesOfManyWorkersAreLight shows that a connection with many workers, which all settle at once, has all its settles
// in a commit beside many producers: their number is that of the jobs that it was given.
func TestSettlesOfManyWorkersAreLight(t *testing.T) {
	worker := &quota.Session{}
	c := queuedWrites()
	for i := range 256 {
		p := &PendingWrite{session: worker, write: backends.Ack{Leases: []backends.Lease{{Token: backends.Token{Number: uint64(i)}}}}}
		add(c, p)
	}
	for range 32 {
		p := jobsOf(&quota.Session{}, 1, 10)[0]
		add(c, p)
	}
	if n := len(nextBatch(c)); n != 256+32 {
		t.Errorf("%d writes are in the commit, want all %d", n, 256+32)
	}
}

// TestLingering shows that the committer waits for a group of workers and not for a single one, and that waits in
// vain become rare.
func TestLingering(t *testing.T) {
	t.Parallel()
	var l lingerPlan
	if d := l.plan(lingerFrom-1, time.Millisecond); d != 0 {
		t.Errorf("after a commit of %d writes the loop waits %v", lingerFrom-1, d)
	}
	if d := l.plan(16, 300*time.Microsecond); d != 600*time.Microsecond {
		t.Errorf("after a commit of 0.3 ms it waits %v", d)
	}
	if d := l.plan(16, time.Second); d != lingerMost {
		t.Errorf("after a commit of a second it waits %v, want %v at most", d, lingerMost)
	}
	waits := 0
	for range 10_000 {
		if l.plan(16, time.Millisecond) > 0 {
			waits++
			l.learn(10, 16)
		}
	}
	if waits < 10 || waits > 100 {
		t.Errorf("of 10,000 commits %d were followed by a wait in vain", waits)
	}
	for again := time.Duration(0); again == 0; {
		again = l.plan(16, time.Millisecond)
	}
	l.learn(13, 16)
	if l.plan(16, time.Millisecond) == 0 {
		t.Error("after a wait that was worth it there is none")
	}
}

// TestLinger shows that the wait after a commit ends as soon as enough writes came, or at its time limit. The writes that
// came are in the next commit, and later writes wake the loop again.
func TestLinger(t *testing.T) {
	const ms = time.Millisecond
	s := queuedWrites()
	push := func(n int) (wakes []bool) {
		for range n {
			wakes = append(wakes, add(s, &PendingWrite{write: backends.Ack{}}))
		}
		return wakes
	}
	commit := func(now, took time.Duration) (writes int) {
		c, _ := s.next(now, nil)
		if c == nil {
			return 0
		}
		writes = len(c.writes)
		c.end = now + took
		s.endClaims()
		s.ended(c, c.end)
		return writes
	}
	lingers := func(now, until time.Duration) {
		t.Helper()
		if c, u := s.next(now, nil); c != nil || u != until {
			t.Fatalf("at %v it begins a commit, or waits until %v: %v, want %v", now, u, c, until)
		}
	}
	push(5)
	if n := commit(0, ms/2); n != 5 {
		t.Fatalf("%d writes in the first commit", n)
	}
	lingers(ms, ms/2+ms) // twice the commit
	if wakes := push(5); !slices.Equal(wakes, []bool{false, false, false, false, true}) {
		t.Errorf("the expected writes wake the loop: %v", wakes)
	}
	if n := commit(ms, ms); n != 5 {
		t.Errorf("%d writes in the commit after the wait, want 5", n)
	}
	push(1)
	lingers(3*ms, 4*ms)
	if n := commit(4*ms, ms); n != 1 {
		t.Errorf("%d writes in the commit after a wait in vain, want 1", n)
	}
	push(batchWrites)
	if n := commit(5*ms, ms); n != batchWrites {
		t.Errorf("%d writes in a full commit", n)
	}
	push(batchWrites - 2)
	for range 3 { // after a wait in vain there is none for a while
		s.plan = lingerPlan{}
	}
	s.beginLinger(6*ms, 16, ms)
	if s.linger.expected != 2 {
		t.Errorf("beside %d writes it waits for %d of 16, want 2", batchWrites-2, s.linger.expected)
	}
	if s.stopped = true; commit(6*ms, ms) != batchWrites-2 {
		t.Error("it lingers although it stops")
	}
	if !push(1)[0] {
		t.Error("a write after the wait does not wake the loop")
	}
}

// TestOneCommitHasEachLeaseOnce shows that two writes about one lease never share a commit, whatever the database
// does with them.
func TestOneCommitHasEachLeaseOnce(t *testing.T) {
	lease := backends.Lease{Token: backends.Token{Sidecar: 1, Number: 2}, Job: "7"}
	other := backends.Lease{Token: backends.Token{Sidecar: 1, Number: 3}, Job: "8"}
	c := queuedWrites(
		&PendingWrite{write: backends.Ack{Leases: []backends.Lease{lease}}},
		&PendingWrite{write: backends.Nack{Leases: []backends.Lease{other, lease}}},
		&PendingWrite{write: backends.Deliver{Deliveries: []backends.Delivery{{Lease: lease}}}})
	for i := range 3 {
		if batch := nextBatch(c); len(batch) != 1 {
			t.Errorf("commit %d has %d writes, want 1", i, len(batch))
		}
	}
}

// TestOneCommitIsBounded shows that a commit has no more jobs, bytes and writes than its limits, however many writes
// wait. Their order stays.
func TestOneCommitIsBounded(t *testing.T) {
	for what, x := range map[string]struct{ writes, jobs, bytes, want int }{
		"jobs":   {10, batchJobs / 4, 1, 4},
		"bytes":  {10, 1, batchBytes / 4, 4},
		"writes": {batchWrites + 10, 1, 1, batchWrites},
	} {
		var writes []*PendingWrite
		for range x.writes { // each of its own session, so that fair share does not limit them
			w := &PendingWrite{session: &quota.Session{}, write: backends.Enqueue{Jobs: make([]backends.NewJob, x.jobs)}}
			w.write.(backends.Enqueue).Jobs[0].Payload = make([]byte, x.bytes)
			writes = append(writes, w)
		}
		c := queuedWrites(writes...)
		if batch := nextBatch(c); len(batch) != x.want || !slices.Equal(batch, writes[:x.want]) {
			t.Errorf("%s: the commit has %d of %d writes, want the first %d", what, len(batch), x.writes, x.want)
		}
	}
}

// TestCommitsAtOnceShareNoLease shows that two writes about one lease are never in commits at once.
func TestCommitsAtOnceShareNoLease(t *testing.T) {
	s := newScheduler(backends.Info{WriteCommits: 2})
	spare := func() bool { return true }
	lease := backends.Lease{Job: "1", Token: backends.Token{Sidecar: 1, Number: 1}}
	for range 2 {
		add(&s, &PendingWrite{write: backends.Ack{Leases: []backends.Lease{lease}}, session: &quota.Session{}})
	}
	first, _ := s.next(0, spare)
	if len(first.writes) != 1 {
		t.Errorf("the first commit has %d writes", len(first.writes))
	}
	add(&s, &PendingWrite{write: backends.Ack{Leases: []backends.Lease{lease}, Enqueue: make([]backends.NewJob, overlapUnits)}, session: &quota.Session{}})
	if second, _ := s.next(0, spare); second != nil {
		t.Errorf("beside the first commit another one has %d writes about its lease", len(second.writes))
	}
	s.ended(first, 0)
	if second, _ := s.next(0, spare); second == nil || len(second.writes) != 1 {
		t.Errorf("after the first commit: %+v", second)
	}
}

// TestRepeatedLeaseHoldsUpNoOther shows that a session whose writes are all about one lease, of which a commit has one, holds up no
// write of others, also among the locked ones. Its own keep their order.
func TestRepeatedLeaseHoldsUpNoOther(t *testing.T) {
	ack := func(s *quota.Session, number uint64) *PendingWrite {
		return &PendingWrite{session: s, write: backends.Ack{Leases: []backends.Lease{{Token: backends.Token{Sidecar: 1, Number: number}}}}}
	}
	lock := func(s *scheduler, writes ...*PendingWrite) {
		for _, p := range writes {
			p.state = committing
			s.setAside(p)
		}
	}
	repeats, worker := &quota.Session{}, &quota.Session{}
	its, other := []*PendingWrite{ack(repeats, 1), ack(repeats, 1), ack(repeats, 1), ack(repeats, 2)}, ack(worker, 3)
	all := slices.Concat(its[:3], []*PendingWrite{other, its[3]})
	for name, c := range map[string]struct {
		queue func(s *scheduler)
		next  func(s *scheduler) []*PendingWrite
	}{
		"queued": {func(s *scheduler) {
			for _, p := range all {
				p.state = queued
				add(s, p)
			}
		}, nextBatch},
		"locked": {func(s *scheduler) { lock(s, all...) }, func(s *scheduler) []*PendingWrite { writes, _ := s.takeLocked(false); return writes }},
	} {
		s := queuedWrites()
		c.queue(s)
		for i, want := range [][]*PendingWrite{{its[0], other}, {its[1]}, {its[2], its[3]}, nil} {
			if got := c.next(s); !slices.Equal(got, want) {
				t.Errorf("%s: commit %d has %d writes, want %d: one about the lease, and those of others", name, i, len(got), len(want))
			}
		}
	}
	s := newScheduler(backends.Info{WriteCommits: 2})
	add(&s, ack(repeats, 1))
	first, _ := s.next(0, nil)
	add(&s, ack(&quota.Session{}, 1))
	for _, p := range jobsOf(worker, overlapUnits, 1) {
		add(&s, p)
	}
	if second, _ := s.next(0, func() bool { return true }); second == nil || len(first.writes) != 1 || len(second.writes) == 0 {
		t.Error("a lease in the commit under way holds up the writes of others behind it")
	}
}

// TestReleaseStaysBehindAnAckThatWaits shows that the release of a job does not pass an ack of it from another session, which waits
// because that session used up its share. Before, the job was returned, and ran again.
func TestReleaseStaysBehindAnAckThatWaits(t *testing.T) {
	greedy := &quota.Session{}
	lease := backends.Lease{Job: "1", Token: backends.Token{Sidecar: 1, Number: 7}}
	ack := &PendingWrite{session: greedy, write: backends.Ack{Leases: []backends.Lease{lease}}}
	release := &PendingWrite{write: backends.Release{Leases: []backends.Lease{lease}, Cause: backends.CauseDisconnected}}
	other := &PendingWrite{write: backends.Release{Leases: []backends.Lease{{Job: "2", Token: backends.Token{Sidecar: 1, Number: 8}}}}}
	c := queuedWrites(append(jobsOf(greedy, 300, 10), ack, release, other)...)
	for range 50 {
		add(c, jobsOf(&quota.Session{}, 1, 10)[0])
	}
	batch := nextBatch(c)
	if slices.Contains(batch, ack) || slices.Contains(batch, release) {
		t.Fatalf("the first commit has the ack: %v, and the release: %v; want neither", slices.Contains(batch, ack), slices.Contains(batch, release))
	}
	if !slices.Contains(batch, other) {
		t.Error("the first commit lacks the release of another job")
	}
	for len(c.queue) > 0 {
		batch = nextBatch(c)
		if at, ends := slices.Index(batch, ack), slices.Index(batch, release); ends >= 0 && (at < 0 || at > ends) && slices.Contains(c.queue, ack) {
			t.Fatal("the release passed the ack")
		}
	}
}
