package bridge

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// reporting is a memory backend that counts the writes of progress and the queries for it.
type reporting struct {
	*memory.Backend
	writes, reports, reads atomic.Int64
	locked                 atomic.Bool // its table answers nothing
}

func (r *reporting) SaveProgress(ctx context.Context, all []backends.LeaseProgress) ([]backends.ProgressOutcome, error) {
	r.writes.Add(1)
	r.reports.Add(int64(len(all)))
	if r.locked.Load() {
		<-ctx.Done()
		return nil, backends.Unavailable(context.Cause(ctx))
	}
	return r.Backend.SaveProgress(ctx, all)
}

func (r *reporting) ProgressOf(ctx context.Context, ids []string) (map[string]backends.Progress, error) {
	r.reads.Add(1)
	if r.locked.Load() {
		<-ctx.Done()
		return nil, backends.Unavailable(context.Cause(ctx))
	}
	return r.Backend.ProgressOf(ctx, ids)
}

func (r *reporting) done(t *testing.T, id string) int64 {
	t.Helper()
	all, err := r.Backend.ProgressOf(t.Context(), []string{id})
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := all[id]; ok {
		return p.Done
	}
	return -1
}

// wantProgress claims the job of the queue and checks its progress.
func (c *client) wantProgress(queue string, done int64) job {
	c.t.Helper()
	j := c.claim1(queue)
	switch {
	case done < 0 && j.Progress != nil, done >= 0 && (j.Progress == nil || j.Progress.Done != done):
		c.t.Errorf("job %s has the progress %+v, want %d", j.ID, j.Progress, done)
	}
	return j
}

// TestProgressComesBack shows that however an attempt ends, the next one gets the last report, through any sidecar.
func TestProgressComesBack(t *testing.T) {
	for name, end := range map[string]func(s *sidecar, c *client, j job){
		"nack": func(_ *sidecar, c *client, j job) { c.call(`{"op":"nack","lease":%q,"delay_ms":0}`, j.Lease) },
		"snooze": func(_ *sidecar, c *client, j job) {
			c.call(`{"op":"nack","lease":%q,"snooze":true,"delay_ms":0}`, j.Lease)
		},
		"bye":        func(_ *sidecar, c *client, _ job) { c.call(`{"op":"bye"}`) },
		"disconnect": func(_ *sidecar, c *client, _ job) { c.close() },
		"stop": func(s *sidecar, _ *client, _ job) {
			s.stop()
			if err := s.wait(t); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &reporting{Backend: memory.New()}
				s, other := start(t, options(db)), start(t, options(db))
				c := s.dial(t)
				c.call(`{"op":"enqueue","queue":"q"}`)
				j := c.wantProgress("q", -1)
				c.call(`{"op":"progress","lease":%q,"done":5,"total":10}`, j.Lease)
				c.call(`{"op":"progress","lease":%q,"done":6,"total":10}`, j.Lease)
				end(s, c, j)
				time.Sleep(time.Hour) // longer than the restart grace
				o := other.dial(t)
				again := o.wantProgress("q", 6)
				if again.Attempt == 1 && name != "snooze" && name != "bye" || db.reports.Load() != 1 {
					t.Errorf("attempt %d, %d reports written", again.Attempt, db.reports.Load())
				}
				o.call(`{"op":"ack","lease":%q}`, again.Lease)
			})
		})
	}
}

// TestProgressOfADeadSidecar shows that at most a second of reports is lost with a sidecar.
func TestProgressOfADeadSidecar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &reporting{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		j := c.claim1("q")
		for i := range 50 {
			c.call(`{"op":"progress","lease":%q,"done":%d}`, j.Lease, i)
			time.Sleep(100 * time.Millisecond)
			if stored := db.done(t, j.ID); stored < int64(i)-11 {
				t.Fatalf("after report %d the database has %d", i, stored)
			}
		}
		if n := db.writes.Load(); n > 5 {
			t.Errorf("%d writes in 5 seconds", n)
		}
	})
}

// TestJobsWithoutProgressCostNothing shows that neither their hand-out nor their end reads or writes progress.
func TestJobsWithoutProgressCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &reporting{Backend: memory.New()}
		c := start(t, options(db)).dial(t)
		c.call(`{"op":"enqueue","queue":"reports"}`)
		c.call(`{"op":"progress","lease":%q,"done":1}`, c.claim1("reports").Lease)
		time.Sleep(2 * time.Second)
		writes := db.writes.Load()
		for range 10 {
			c.call(`{"op":"enqueue","queue":"q"}`)
			c.call(`{"op":"nack","lease":%q,"delay_ms":0}`, c.claim1("q").Lease)
			c.call(`{"op":"peek","queue":"q"}`)
			c.call(`{"op":"ack","lease":%q}`, c.claim1("q").Lease)
			time.Sleep(time.Second)
		}
		if reads := db.reads.Load(); reads != 0 || db.writes.Load() != writes || writes != 1 {
			t.Errorf("%d reads, %d writes", reads, db.writes.Load())
		}
	})
}

// TestProgressStopsNothing shows that jobs go on if the table of progress answers nothing: at once if they have no progress, and
// within a second otherwise.
func TestProgressStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &reporting{Backend: memory.New()}
		c := start(t, options(db)).dial(t)
		c.call(`{"op":"enqueue","queue":"reports"}`)
		c.call(`{"op":"enqueue","queue":"q"}`)
		j := c.claim1("reports")
		c.call(`{"op":"progress","lease":%q,"done":1}`, j.Lease)
		time.Sleep(2 * time.Second)
		db.locked.Store(true)
		c.call(`{"op":"progress","lease":%q,"done":2}`, j.Lease)
		time.Sleep(1500 * time.Millisecond)
		began := time.Now()
		c.call(`{"op":"ack","lease":%q}`, c.claim1("q").Lease)
		if took := time.Since(began); took != 0 {
			t.Errorf("a job without progress took %v", took)
		}
		c.call(`{"op":"nack","lease":%q,"delay_ms":0}`, j.Lease)
		j = c.wantProgress("reports", -1)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("a job with progress took %v", took)
		}
		c.call(`{"op":"ack","lease":%q}`, j.Lease)
		db.locked.Store(false)
		time.Sleep(10 * time.Second)
	})
}

// TestProgressOfAForeignLease shows that the lease of another sidecar is checked before the answer, and its reports are then as any.
func TestProgressOfAForeignLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &reporting{Backend: memory.New()}
		a, b := start(t, options(db)).dial(t), start(t, options(db)).dial(t)
		a.call(`{"op":"enqueue","queue":"q"}`)
		r := a.call(`{"op":"claim","queue":"q","lease_ms":60000}`)
		j := r.Jobs[0]
		b.call(`{"op":"progress","lease":%q,"done":3}`, j.Lease)
		if got := db.done(t, j.ID); got != 3 {
			t.Errorf("after the answer the database has %d", got)
		}
		b.call(`{"op":"progress","lease":%q,"done":4}`, j.Lease)
		if got := db.done(t, j.ID); got != 3 {
			t.Errorf("the second report was written at once: %d", got)
		}
		a.call(`{"op":"ack","lease":%q}`, j.Lease)
		time.Sleep(3 * time.Second)
		b.refused("lease_lost", `{"op":"progress","lease":%q,"done":5}`, j.Lease)
		if r := b.refused("lease_lost", `{"op":"ack","lease":"17"}`); !strings.Contains(r.Error.Message, "t a lease of a database of this sidecar") {
			t.Errorf("a text that isn't a lease: %s", r.Error.Message)
		}
		b.refused("lease_lost", `{"op":"progress","lease":"nonsense","done":5}`)
		b.refused("bad_request", `{"op":"progress","lease":%q,"data":%q}`, j.Lease, fmt.Sprintf("%04097d", 0))
	})
}

// without is an engine that keeps no progress.
type without struct{ *memory.Backend }

func (w without) Info() backends.Info {
	info := w.Backend.Info()
	info.Progress = false
	return info
}

// TestProgressIsUnsupported shows that jobs of adopted tables, and engines without the table, get an error with the reason.
func TestProgressIsUnsupported(t *testing.T) {
	for name, x := range map[string]struct {
		db   backends.Backend
		says string
	}{
		"adopted": {&apart{Backend: memory.New()}, "store the progress in a column"},
		"engine":  {without{memory.New()}, "doesn't keep the progress of jobs (memory)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, options(x.db)).dial(t)
				c.call(`{"op":"enqueue","queue":"held"}`)
				j := c.claim1("held")
				if r := c.refused("unsupported", `{"op":"progress","lease":%q,"done":1}`, j.Lease); !strings.Contains(r.Error.Message, x.says) {
					t.Errorf("the error is %q", r.Error.Message)
				}
			})
		})
	}
}
