package pipeline

import (
	"slices"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/fairshare"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// queuedWrites creates a committer whose queue has the writes.
func queuedWrites(writes ...*PendingWrite) *committer {
	c := newCommitter()
	for _, p := range writes {
		p.size = sizeOf(p.write)
		c.push(p)
	}
	return c
}

// nextBatch returns the writes of a commit that is not under way any more.
func nextBatch(c *committer) []*PendingWrite {
	w := newWriteCommit()
	c.takeBatch(w)
	c.forgetCommit(w)
	return w.writes
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
			p.size = sizeOf(p.write)
			c.push(p)
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
	if n, over := c.countWaiting(nil); n != 0 || over {
		t.Errorf("of no writes %d are of others, %v", n, over)
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
		c.push(jobsOf(greedy, 1, 10)[0])
		nextBatch(c)
	}
	for _, p := range jobsOf(greedy, 900, 10) {
		c.push(p)
	}
	for range fairshare.RecentCommits {
		nextBatch(c)
	}
	for _, p := range jobsOf(greedy, 900, 10) {
		c.push(p)
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
			p.size = sizeOf(p.write)
			c.push(p)
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
			p.size = sizeOf(p.write)
			c.push(p)
		}
	}
	worker := &quota.Session{}
	p := jobsOf(worker, 1, 10)[0]
	p.size = sizeOf(p.write)
	c.push(p)
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
			p.size = sizeOf(p.write)
			c.push(p)
		}
		batch := nextBatch(c)
		if n := had(t, batch, greedy, &its); n == 1 {
			at = append(at, i)
		} else if n > 1 {
			t.Fatalf("commit %d has %d large writes", i, n)
		}
		if len(batch) == 0 || batch[len(batch)-1].session != worker {
			t.Fatalf("commit %d has nothing of who has a small write", i)
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
		p.size = sizeOf(p.write)
		c.push(p)
	}
	for range 32 {
		p := jobsOf(&quota.Session{}, 1, 10)[0]
		p.size = sizeOf(p.write)
		c.push(p)
	}
	if n := len(nextBatch(c)); n != 256+32 {
		t.Errorf("%d writes are in the commit, want all %d", n, 256+32)
	}
}
