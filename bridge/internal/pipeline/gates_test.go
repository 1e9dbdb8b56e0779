package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// gatedDB is a database that counts the claims of queue "q".
type gatedDB struct {
	*memory.Backend
	claims, prefetch, mixed atomic.Int64
	write                   time.Duration // how long a commit of writes takes
	result                  time.Duration // after how long the result of a claim comes
	locked                  atomic.Bool   // another program keeps each row locked
}

func (g *gatedDB) Commit(ctx context.Context, batch backends.CommitContent) (backends.Results, error) {
	for _, c := range batch.Claims {
		for _, p := range c.Queues {
			if p.Queue != "q" || !p.Gated {
				continue
			}
			g.claims.Add(1)
			if len(batch.Writes) > 0 || len(batch.Claims) > 1 {
				g.mixed.Add(1)
			}
			if slices.ContainsFunc(c.Slots, func(s backends.Slot) bool { return s.Prefetch }) {
				g.prefetch.Add(1)
			}
		}
	}
	if len(batch.Claims) > 0 {
		defer time.Sleep(g.result)
	}
	if len(batch.Writes) > 0 {
		time.Sleep(g.write)
	}
	if len(batch.Writes) > 0 && g.locked.Load() {
		if batch.WaitForLocks {
			time.Sleep(time.Second)
		}
		return backends.Results{Writes: slices.Repeat([]backends.WriteResult{{Err: &backends.LockedError{Err: errors.New("locked")}}}, len(batch.Writes))}, nil
	}
	return g.Backend.Commit(ctx, batch)
}

func (g *gatedDB) limit(t *testing.T, c backends.LimitsChange) {
	t.Helper()
	if _, _, err := g.Command(t.Context(), backends.Command{Kind: backends.Limit, Queue: "q", Limits: c}); err != nil {
		t.Fatal(err)
	}
}

// fleet runs n workers on each of two sidecars until the context of the test ends. Each claims a job of q, works, and acks it.
func (g *gatedDB) fleet(t *testing.T, n int, work func()) {
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 {
		p := start(t, g)
		for range n {
			w := newWorker(p)
			all.Go(func() {
				for ctx.Err() == nil {
					r := &ClaimRequest{Session: &w.Session, Slots: 1, Since: time.Now()}
					a, answered := p.Claim(r, []string{"q"})
					if !answered {
						a = p.AwaitClaim(ctx.Done(), r)
					}
					if len(a.Jobs) == 0 {
						continue
					}
					jobs, err := p.HandOut(r, &a, func(jobs []backends.Job) int { return len(jobs) })
					if err != nil {
						t.Error(err)
						return
					}
					work()
					ack(t, p, &w.Session, jobs)
				}
			})
		}
	}
	t.Cleanup(func() {
		stop()
		all.Wait()
	})
}

func (g *gatedDB) fill(t *testing.T, n int) {
	t.Helper()
	if _, err := g.Backend.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "q"}}, n)}}}); err != nil {
		t.Fatal(err)
	}
}

func newGatedDB() *gatedDB { return &gatedDB{Backend: memory.New()} }

// TestCapOverTwoSidecars shows that a cap holds over sidecars, is used fully, and causes no claims without a reason.
func TestCapOverTwoSidecars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, jobs = 3, 300
		db, most := newGatedDB(), int64(limit)
		db.limit(t, backends.LimitsChange{MaxClaimed: &most})
		db.fill(t, jobs)
		var now, done atomic.Int64
		db.fleet(t, 5, func() {
			if n := now.Add(1); n > limit {
				t.Errorf("%d jobs run at a time, want %d at most", n, limit)
			}
			time.Sleep(50 * time.Millisecond)
			now.Add(-1)
			done.Add(1)
		})
		time.Sleep(jobs / limit * 50 * time.Millisecond * 100 / 95)
		synctest.Wait()
		if n := done.Load(); n < jobs {
			t.Errorf("%d of %d jobs are done in a time that %d workers need", n, jobs, limit)
		}
		if n := db.claims.Load(); n > 3*jobs {
			t.Errorf("%d claims for %d jobs", n, jobs)
		}
		if db.prefetch.Load() > 0 || db.mixed.Load() > 0 {
			t.Errorf("of the claims of a queue with limits, %d prefetch, and %d are in commits of others", db.prefetch.Load(), db.mixed.Load())
		}
	})
}

// TestRateOverTwoSidecars shows that a rate holds in each window, and is used.
func TestRateOverTwoSidecars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, burst, seconds = 100, 10, 10
		db := newGatedDB()
		n := int64(burst)
		db.limit(t, backends.LimitsChange{Rate: &backends.Rate{Jobs: rate, Per: time.Second}, Burst: &n})
		db.fill(t, 2*rate*seconds)
		var mu sync.Mutex
		var starts []time.Time
		db.fleet(t, 10, func() {
			mu.Lock()
			starts = append(starts, time.Now())
			mu.Unlock()
			time.Sleep(time.Millisecond)
		})
		time.Sleep(seconds * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for i := range starts {
			for k := i; k < len(starts); k++ {
				if window := starts[k].Sub(starts[i]); float64(k-i+1) > burst+rate*window.Seconds()+0.001 {
					t.Fatalf("%d jobs started in %v", k-i+1, window)
				}
			}
		}
		if len(starts) < rate*seconds*98/100 {
			t.Errorf("%d jobs started in %d s", len(starts), seconds)
		}
		if n := db.claims.Load(); n > 2*seconds*60 {
			t.Errorf("%d claims in %d s", n, seconds)
		}
	})
}

// TestClosedGateIsNotPolled shows that claims behind a full cap cause few commits, even while jobs are enqueued. They go on
// within a second after a settle, wherever the job was settled.
func TestClosedGateIsNotPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, one := newGatedDB(), int64(1)
		db.limit(t, backends.LimitsChange{MaxClaimed: &one})
		db.fill(t, 3)
		here, there := start(t, db), start(t, db)
		first, second := newWorker(here), newWorker(there)
		jobs := first.claim(t, "q", true)
		r := second.queued(t, false, "q")
		synctest.Wait()
		before := db.claims.Load()
		for range 1000 {
			first.enqueue(t, "q")
			time.Sleep(10 * time.Millisecond)
		}
		if n := db.claims.Load() - before; n > 25 {
			t.Errorf("%d claims in ten seconds", n)
		}
		ack(t, here, &first.Session, jobs)
		time.Sleep(time.Second)
		synctest.Wait()
		if !answered(there, r) {
			t.Error("a claim elsewhere still waits a second after the settle")
		}
	})
}

// TestClaimAfterASettleIsNotHeldBack shows that a claim that arrives after a settle, when no other one waits, gets the next job at once.
func TestClaimAfterASettleIsNotHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, one := newGatedDB(), int64(1)
		db.limit(t, backends.LimitsChange{MaxClaimed: &one})
		db.fill(t, 3)
		p := start(t, db)
		first, second := newWorker(p), newWorker(p)
		jobs := first.claim(t, "q", true)
		if len(second.claim(t, "q", false)) > 0 {
			t.Fatal("two jobs are claimed although the cap is 1")
		}
		ack(t, p, &first.Session, jobs)
		r := second.queued(t, false, "q")
		synctest.Wait()
		if !answered(p, r) {
			t.Error("the claim is held back")
		}
	})
}

// TestSettleDuringAClaimIsNotForgotten shows that a claim that finds the cap full asks again at once if a job was settled before
// its result came.
func TestSettleDuringAClaimIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, one := newGatedDB(), int64(1)
		db.limit(t, backends.LimitsChange{MaxClaimed: &one})
		db.fill(t, 3)
		p := start(t, db)
		first, second := newWorker(p), newWorker(p)
		jobs := first.claim(t, "q", true)
		db.result = 5 * time.Millisecond
		r := second.queued(t, false, "q")
		synctest.Wait()
		ack(t, p, &first.Session, jobs)
		began := time.Now()
		p.AwaitClaim(nil, r)
		if took := time.Since(began); took > 4*db.result {
			t.Errorf("the next job is claimed %v after the settle", took)
		}
	})
}

// TestNextClaimSeesItsAck shows that a claim that doesn't wait gets the next job of a queue with a cap if an ack that was sent before it
// frees the slot, although the commit of the claim is faster. While the cap is full, no claim begins before. If that ack can't end soon, the claim doesn't wait for it.
func TestNextClaimSeesItsAck(t *testing.T) {
	for name, c := range map[string]struct {
		locked bool
		want   int
	}{"acked": {false, 1}, "locked": {true, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, one := newGatedDB(), int64(1)
				db.limit(t, backends.LimitsChange{MaxClaimed: &one})
				db.fill(t, 3)
				p := start(t, db)
				w := newWorker(p)
				jobs := w.claim(t, "q", true)
				db.write = 5 * time.Millisecond
				db.locked.Store(c.locked)
				st := &Settle{Leases: []backends.Lease{jobs[0].Lease()}}
				if err := p.SubmitSettle(st, &w.Session, backends.Ack{Leases: st.Leases}, 0); err != nil {
					t.Fatal(err)
				}
				began, claims := time.Now(), db.claims.Load()
				next := w.claim(t, "q", false)
				if n := db.claims.Load() - claims; len(next) != c.want || n != 1 || time.Since(began) > 4*db.write {
					t.Errorf("got %d jobs after %v, with %d claims; want %d, with one claim", len(next), time.Since(began), n, c.want)
				}
				db.locked.Store(false)
				if _, err := p.AwaitSettle(st, nil); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestEnqueueWakesAClaimInItsOwnCommit shows that a claim that waits in a queue with limits gets a job as soon as its sidecar has
// stored it. Such a claim has a commit of its own, which can't see the job before. A claim of other queues too is one of these.
func TestEnqueueWakesAClaimInItsOwnCommit(t *testing.T) {
	for _, to := range []string{"q", "free"} {
		t.Run(to, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, limit := newGatedDB(), int64(10)
				db.limit(t, backends.LimitsChange{MaxClaimed: &limit})
				db.write = 5 * time.Millisecond
				p := start(t, db)
				w := newWorker(p)
				r := w.queued(t, false, "q", "free")
				synctest.Wait()
				began := time.Now()
				w.enqueue(t, to)
				if synctest.Wait(); !answered(p, r) {
					p.AwaitClaim(nil, r)
					t.Errorf("the job is claimed %v after its enqueue began, want as soon as it is stored", time.Since(began))
				}
			})
		})
	}
}

// TestLimitsChangeWithinASecond shows that a sidecar notices limits that another one set or removed. A claim that doesn't wait gets
// its job in both cases.
func TestLimitsChangeWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, one := newGatedDB(), int64(1)
		p := start(t, db)
		w := newWorker(p)
		db.fill(t, 5)
		if len(w.claim(t, "q", false)) != 1 {
			t.Fatal("no job without limits")
		}
		db.limit(t, backends.LimitsChange{MaxClaimed: &one})
		if len(w.claim(t, "q", false)) != 0 {
			t.Fatal("a second job although the cap is 1")
		}
		two := int64(2)
		db.limit(t, backends.LimitsChange{MaxClaimed: &two})
		if len(w.claim(t, "q", false)) != 1 {
			t.Fatal("no second job although the cap is 2")
		}
		r := w.queued(t, false, "q")
		synctest.Wait()
		db.limit(t, backends.LimitsChange{None: true, Rate: &backends.Rate{Jobs: 1, Per: time.Hour}})
		time.Sleep(time.Second)
		next := newWorker(p).queued(t, false, "q")
		time.Sleep(time.Second)
		synctest.Wait()
		if !answered(p, r) || answered(p, next) {
			t.Error("the rate is not 1 in an hour")
		}
		r = next
		db.limit(t, backends.LimitsChange{None: true})
		time.Sleep(time.Second)
		synctest.Wait()
		if !answered(p, r) {
			t.Error("a claim still waits a second after the limits were removed")
		}
		if p.executor.gates.has("q") {
			t.Error("the queue still counts as one with limits")
		}
	})
}
