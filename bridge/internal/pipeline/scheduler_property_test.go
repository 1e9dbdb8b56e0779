package pipeline

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// world is a scheduler, and an executor that carries out what rapid draws. Both loops run only when the product's would: when
// they are woken, a commit of theirs ends, or a linger is over.
type world struct {
	s         scheduler
	now       time.Duration
	until     time.Duration // end of the linger that the loop of the writes waits for; 0: none
	sessions  []*quota.Session
	live      []*PendingWrite // without an outcome
	commits   []*writeCommit  // under way
	claims    bool            // a commit of claims alone is under way
	wanted    bool            // a claim waits for a commit
	expired   int             // units of writes that were abandoned
	spares    bool            // the pool has a connection for a second commit
	committed map[*quota.Session]uint64
	disorder  map[*quota.Session]bool // sessions with writes that were set aside, which come later than others
	woken     struct{ writes, claims bool }
}

func newWorld(t *rapid.T) *world {
	info := backends.Info{
		Concurrent:   rapid.Bool().Draw(t, "concurrent"),
		JoinJobs:     rapid.SampledFrom([]int{0, 8}).Draw(t, "joinJobs"),
		WriteCommits: rapid.IntRange(0, 2).Draw(t, "writeCommits"),
	}
	w := &world{s: newScheduler(info), spares: true, committed: map[*quota.Session]uint64{}, disorder: map[*quota.Session]bool{}}
	w.sessions = []*quota.Session{nil, {}, {}, {}, {}}
	return w
}

func (w *world) push(t *rapid.T) {
	session := rapid.SampledFrom(w.sessions).Draw(t, "session")
	for range rapid.IntRange(1, 40).Draw(t, "writes") {
		p := &PendingWrite{session: session, write: backends.Enqueue{}, size: size{jobs: 1}}
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			p.size.jobs = rapid.SampledFrom([]int{2, 9, 300, batchJobs + 1}).Draw(t, "jobs")
		case 1:
			p.size.bytes = rapid.SampledFrom([]int64{1 << 10, 1 << 20, batchBytes + 1}).Draw(t, "bytes")
		case 2:
			n := uint64(rapid.IntRange(1, 9).Draw(t, "lease"))
			p.write, p.size.settled = backends.Ack{Leases: []backends.Lease{{Token: backends.Token{Sidecar: 1, Number: n}}}}, 1
		}
		w.live = append(w.live, p)
		if w.s.push(p) {
			if n := len(w.commits); n == w.s.writeCommits || n > 0 && w.units()+w.expired < overlapUnits {
				t.Fatalf("a push wakes the loop beside %d commits, when %d units wait", n, w.units())
			}
			w.woken.writes = true
		}
	}
}

// units returns the size of the queue.
func (w *world) units() (n int) {
	for _, p := range w.s.queue {
		n += p.size.units()
	}
	return n
}

// wakeClaims is loops.WakeClaims.
func (w *world) wakeClaims() {
	if w.wanted = true; w.s.joined {
		w.woken.writes = true
	} else {
		w.woken.claims = true
	}
}

// endClaims is executor.endClaims, and what its callers do then.
func (w *world) endClaims(ofWrites bool) {
	switch joined := w.s.endClaims(); {
	case ofWrites && !joined:
		w.woken.claims = true
	case !ofWrites:
		w.woken.claims = true // the loop goes on
	}
}

// run runs both loops until they sleep, or are in a commit.
func (w *world) run(t *rapid.T) {
	for {
		switch {
		case w.woken.claims && !w.claims:
			w.woken.claims = false
			w.runClaims(t)
		case w.woken.writes || w.until > 0 && w.now >= w.until:
			w.woken.writes = false
			w.runWrites(t)
		default:
			return
		}
	}
}

func (w *world) runClaims(t *rapid.T) {
	switch begins := w.s.separateClaims(); {
	case begins && w.s.joined:
		t.Fatal("claims have a commit of their own, and commits of writes include them")
	case begins && w.wanted:
		w.wanted, w.claims = false, true
	case begins:
		if w.s.endClaims() {
			w.woken.writes = true
		}
	case w.s.joined:
		w.woken.writes = true
	}
}

func (w *world) runWrites(t *rapid.T) {
	for {
		units := w.units()
		var c *writeCommit
		if c, w.until = w.s.next(w.now, func() bool { return w.spares }); c == nil {
			return
		}
		w.woken.claims = w.woken.claims || c.separates
		w.checkCommit(t, c, units)
		if c.claims && !w.wanted {
			w.endClaims(true)
			c.claims = false
		}
		if len(c.writes) == 0 && !c.claims {
			w.s.cancel(c)
			return
		}
		w.wanted = w.wanted && !c.claims
		w.commits = append(w.commits, c)
	}
}

// checkCommit checks a commit that begins. units waited before.
func (w *world) checkCommit(t *rapid.T, c *writeCommit, units int) {
	var sum size
	for i, p := range c.writes {
		sum.jobs, sum.bytes = sum.jobs+p.size.jobs, sum.bytes+p.size.bytes
		if p.state != committing || !slices.Contains(w.live, p) {
			t.Fatalf("a write in state %d is in a commit", p.state)
		}
		if last := w.committed[p.session]; p.session != nil && !w.disorder[p.session] && p.position < last {
			t.Fatalf("write %d of a session comes after %d", p.position, last)
		}
		w.committed[p.session] = p.position
		for _, other := range w.commits {
			if p.session != nil && slices.ContainsFunc(other.writes, func(q *PendingWrite) bool { return q.session == p.session }) {
				t.Fatal("two commits at once have writes of a session")
			}
		}
		for _, l := range backends.LeasesOf(p.write) {
			mine := slices.ContainsFunc(c.writes[:i], func(q *PendingWrite) bool { return slices.Contains(backends.LeasesOf(q.write), l) })
			if mine || slices.ContainsFunc(w.commits, func(other *writeCommit) bool {
				return slices.ContainsFunc(other.writes, func(q *PendingWrite) bool { return slices.Contains(backends.LeasesOf(q.write), l) })
			}) {
				t.Fatalf("lease %v is in two writes at once", l)
			}
		}
	}
	if n := len(c.writes); n > batchWrites || n > 1 && (sum.jobs > batchJobs || sum.bytes > batchBytes) {
		t.Fatalf("a commit has %d writes, %+v", n, sum)
	}
	if n := len(w.commits) + 1; n > w.s.writeCommits || n > 1 && (units < overlapUnits || !w.spares) {
		t.Fatalf("it is commit %d at once, for %d units", n, units)
	}
	if c.claims && (w.claims || sum.jobs > w.s.joinJobs) {
		t.Fatalf("a commit of %d jobs has claims, beside others: %v", sum.jobs, w.claims)
	}
}

// end ends the commit at i, as rapid draws.
func (w *world) end(t *rapid.T, i int, succeeds bool) {
	c := w.commits[i]
	w.commits = slices.Delete(w.commits, i, i+1)
	if !succeeds && rapid.Bool().Draw(t, "fails") {
		w.finish(w.s.putBack(c.writes))
		for _, p := range c.writes {
			w.committed[p.session] = 0
		}
	} else {
		for _, p := range c.writes {
			if !succeeds && rapid.IntRange(0, 9).Draw(t, "locked") == 0 {
				w.disorder[p.session] = true
				_, over := w.s.setAside(p)
				w.finish(over)
				continue
			}
			w.finish([]*PendingWrite{p})
		}
	}
	c.end = w.now
	if c.claims {
		w.endClaims(true)
	}
	w.s.ended(c, w.now)
	w.woken.writes = true
}

func (w *world) finish(writes []*PendingWrite) {
	w.live = slices.DeleteFunc(w.live, func(p *PendingWrite) bool { return slices.Contains(writes, p) })
}

// endLocked ends the commit of locked writes, and begins the next one.
func (w *world) endLocked(alone bool) {
	if w.s.lockedLeft == 0 {
		return
	}
	writes, n := w.s.takeLocked(alone)
	w.finish(writes)
	w.s.endLocked(n)
	w.woken.writes = true
}

// check fails if a loop sleeps although it has work.
func (w *world) check(t *rapid.T) {
	w.run(t)
	if w.until > w.now && w.s.arrived >= w.s.wakeAt {
		t.Fatalf("the loop lingers although the writes came")
	}
	if len(w.commits) > 0 || w.until > w.now {
		return // the end of the commit, or of the linger, wakes the loop
	}
	if n := len(w.s.queue); n > 0 {
		t.Fatalf("%d writes wait, and the loop sleeps", n)
	}
	if w.wanted && !w.claims {
		t.Fatalf("a claim waits, and both loops sleep; joined: %v", w.s.joined)
	}
}

// TestSchedulerForgetsNothing draws what sessions and the database do, in every mode. No write is lost or in two commits, a
// session's writes keep their order, a commit stays within its bounds, and no loop sleeps although it has work.
func TestSchedulerForgetsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"push": w.push,
			"expire": func(t *rapid.T) {
				if len(w.live) == 0 {
					return
				}
				p := rapid.SampledFrom(w.live).Draw(t, "write")
				units := p.size.units()
				if w.s.expire(p) {
					w.expired += units
					w.finish([]*PendingWrite{p})
				}
			},
			"end": func(t *rapid.T) {
				if n := len(w.commits); n > 0 {
					w.end(t, rapid.IntRange(0, n-1).Draw(t, "commit"), false)
				}
			},
			"end claims": func(*rapid.T) {
				if w.claims {
					w.claims = false
					w.endClaims(false)
				}
			},
			"claim":  func(*rapid.T) { w.wakeClaims() },
			"locked": func(t *rapid.T) { w.endLocked(rapid.Bool().Draw(t, "alone")) },
			"cycle": func(t *rapid.T) { // of workers that are answered and come back
				if w.push(t); len(w.commits) > 0 {
					w.now += time.Millisecond
					w.end(t, 0, true)
				}
			},
			"time": func(t *rapid.T) { w.now += time.Duration(rapid.IntRange(1, 3000).Draw(t, "µs")) * time.Microsecond },
			"pool": func(t *rapid.T) { w.spares = rapid.Bool().Draw(t, "spares") },
			"":     w.check,
		})
		for range 10 * (len(w.live) + 10) { // each commit makes progress
			w.now += time.Second
			w.run(t)
			if len(w.commits) > 0 {
				w.end(t, 0, true)
			}
			if w.claims {
				w.claims = false
				w.endClaims(false)
			}
			w.endLocked(false)
		}
		if len(w.live) > 0 || w.s.queued() > 0 || w.wanted {
			t.Fatalf("at the end %d writes have no outcome, %d are queued, a claim waits: %v", len(w.live), w.s.queued(), w.wanted)
		}
		if len(w.s.sessions) > 0 {
			t.Fatalf("it keeps %d sessions", len(w.s.sessions))
		}
	})
}
