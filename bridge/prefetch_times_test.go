package bridge

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// shortRuns are options with a queue of jobs that run at most once, and not for long.
func shortRuns(db backends.Backend) Options {
	o := options(db)
	o.Queues = map[string]Queue{"*": {Timeout: 2 * time.Second, MaxAttempts: 1}}
	return o
}

// TestPrefetchedJobsOutlastAStall shows that prefetched jobs whose time limit is shorter than a stall of the sidecar's database are not dead
// after it: no worker had them. Another sidecar reaps at that time.
func TestPrefetchedJobsOutlastAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		db := &faulty{Backend: mem}
		f := slow
		db.after.Store(&f)
		s := start(t, shortRuns(db))
		start(t, shortRuns(mem))
		c := busyQueue(t, s, "q")[0]
		db.heartbeat.Store(&errDown)
		db.commit.Store(&errDown)
		pass(10 * time.Second)
		db.heartbeat.Store(nil)
		db.commit.Store(nil)
		pass(10 * time.Second)
		if q := c.call(`{"op":"stats","queue":"q"}`).Queues[0]; q["dead"] != float64(0) || q["claimed"] != float64(0) {
			t.Errorf("after the stall: %v, want no job dead", q)
		}
	})
}

// TestTimeLimitOfAPrefetchedJobBeginsAtItsHandOut shows when such a job times out: its time limit after the hand-out, or as soon as
// the database can be reached again after that.
func TestTimeLimitOfAPrefetchedJobBeginsAtItsHandOut(t *testing.T) {
	for _, away := range []time.Duration{0, time.Second, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			db := &faulty{Backend: memory.New()}
			f := slow
			db.after.Store(&f)
			s := start(t, shortRuns(db))
			c := busyQueue(t, s, "q")[0]
			c.call(`{"op":"hello","events":["lost"]}`)
			if s.prefetched() == 0 {
				t.Fatal("nothing is prefetched")
			}
			j := c.call(`{"op":"claim","queue":"q"}`).Jobs[0]
			began := time.Now()
			if away > 0 {
				db.heartbeat.Store(&errDown)
				db.commit.Store(&errDown)
				pass(away)
				db.heartbeat.Store(nil)
				db.commit.Store(nil)
			}
			watcher := s.dial(t) // gets no event
			state := func() job { return watcher.call(`{"op":"peek","queue":"q","ids":[%q]}`, j.ID).Jobs[0] }
			for state().State == "claimed" {
				pass(10 * time.Millisecond)
			}
			most := max(away, 2*time.Second) + 3*time.Second // the commits and maintenance are tried again, and the job is reaped
			if away == 0 {
				most = 2*time.Second + 100*time.Millisecond
			}
			if took := time.Since(began); took < max(away, 2*time.Second) || took > most {
				t.Errorf("the database was away for %v: timed out after %v, want from %v to %v", away, took, max(away, 2*time.Second), most)
			}
			if v := state(); v.State != "dead" || len(v.Errors) != 1 || v.Errors[0].Cause != "timed_out" || v.Attempt != 1 {
				t.Errorf("the database was away for %v: it is %+v", away, v)
			}
		})
	}
}

// TestHandOutIsRecordedInTime shows how long it takes until the delivery of a prefetched job counts although its host dies.
func TestHandOutIsRecordedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := prefetchingSidecar(t)
		c := busyQueue(t, s, "q")[0]
		if s.prefetched() == 0 {
			t.Fatal("nothing is prefetched")
		}
		j := c.call(`{"op":"claim","queue":"q"}`).Jobs[0]
		began := time.Now()
		attempts := func() int {
			v, err := db.Peek(t.Context(), backends.Peek{Queue: "q", IDs: []string{j.ID}, Max: 1})
			if err != nil || len(v) != 1 {
				t.Fatalf("%+v, %v", v, err)
			}
			return v[0].Attempt
		}
		if attempts() != 0 {
			t.Fatal("it was not prefetched")
		}
		for attempts() == 0 {
			pass(time.Millisecond)
		}
		if took := time.Since(began); took < recordAge || took > recordAge+recordCheck+5*time.Millisecond { // and the commit
			t.Errorf("recorded after %v, want from %v to %v", took, recordAge, recordAge+recordCheck)
		}
	})
}

// TestPausedQueueHandsOutNothingAfterAStall shows a sidecar whose process stands still for some seconds, in which another one pauses
// a queue: with prefetched jobs, and with the answer to a claim on its way.
func TestPausedQueueHandsOutNothingAfterAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		f := slow
		db.after.Store(&f)
		var skew atomic.Int64
		s := run(t, newWithClock(t, options(db), func(now time.Duration) time.Duration { return now + time.Duration(skew.Load()) }))
		stall := func(kind backends.CommandKind) {
			if _, _, err := db.Command(t.Context(), backends.Command{Kind: kind, Queue: "q"}); err != nil {
				t.Error(err)
			}
			skew.Add(int64(5 * time.Second)) // the heartbeat is not late
		}
		clients := busyQueue(t, s, "q")
		if s.prefetched() < 3 {
			t.Fatal("hardly any jobs are prefetched")
		}
		stall(backends.Pause)
		for _, c := range clients {
			if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) > 0 {
				t.Errorf("a prefetched job was handed out: %+v", r.Jobs)
			}
		}
		pass(time.Second)
		if q := clients[0].call(`{"op":"stats","queue":"q"}`).Queues[0]; q["claimed"] != float64(0) {
			t.Errorf("after that: %v, want the jobs ready", q)
		}
		clients[0].call(`{"op":"resume","queue":"q"}`)
		for i, kind := range []backends.CommandKind{backends.Pause, backends.Resume} {
			pass(5 * time.Second) // nothing is prefetched any more
			var once atomic.Bool
			g := func(_ backends.CommitContent, res backends.Results) error {
				if len(res.Claims) > 0 && len(res.Claims[0].Jobs) > 0 && once.CompareAndSwap(false, true) {
					stall(kind)
				}
				return nil
			}
			db.after.Store(&g)
			if r := clients[0].call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != i || !once.Load() {
				t.Errorf("a claim during a stall with command %d got %d jobs, want %d", kind, len(r.Jobs), i)
			}
			clients[0].call(`{"op":"resume","queue":"q"}`)
		}
		clients[1].send(`{"op":"claim","queue":"q2","wait_ms":60000}`)
		synctest.Wait()
		var once atomic.Bool
		g := func(_ backends.CommitContent, res backends.Results) error {
			if len(res.Claims) > 0 && len(res.Claims[0].Jobs) > 0 && once.CompareAndSwap(false, true) {
				stall(backends.Resume)
			}
			return nil
		}
		db.after.Store(&g)
		clients[2].call(`{"op":"enqueue","queue":"q2"}`)
		if r := clients[1].receive(); len(r.Jobs) != 1 || r.Jobs[0].Attempt != 1 || !once.Load() {
			t.Errorf("a waiting claim got %+v after a stall, want its job", r)
		}
	})
}
