package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// start runs a pipeline on the database in a synctest bubble, until the test ends.
func start(t testing.TB, db backends.Backend) *Pipeline {
	t.Helper()
	p := newPipeline(db)
	run(t, p)
	return p
}

// run runs a pipeline until the test ends.
func run(t testing.TB, p *Pipeline) {
	t.Helper()
	p.Join(t.Context())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, ctx, context.Background()) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// newPipeline returns a pipeline that does not run.
func newPipeline(db backends.Backend) *Pipeline {
	p := New(Config{
		Name:           "main",
		Backend:        db,
		SidecarTimeout: 30 * time.Second,
		RestartGrace:   30 * time.Second,
		Log:            slog.New(slog.DiscardHandler),
		Clock:          func() time.Duration { return time.Duration(time.Now().UnixNano()) }, // never jumps in a bubble
		Memory:         &quota.Memory{Limit: func() int64 { return 64 << 20 }},
		Policy: func(queue string) (backends.Policy, bool) {
			return backends.Policy{Queue: queue, MaxAttempts: 20, Backoff: time.Second, BackoffMax: time.Hour}, true
		},
		MaxPayload: func() int64 { return 1 << 20 },
		ClaimBytes: func() int64 { return 4 << 20 },
		Trace:      func(map[string]string) (string, string) { return "", "" },
		Lost:       func(lease.Lost, string) {},
	})
	p.Metrics.Store(metrics.New().Databases.Of("main"))
	return p
}

// worker is a session without a connection.
type worker struct {
	quota.Session
	p *Pipeline
}

func newWorker(p *Pipeline) *worker {
	w := &worker{p: p}
	w.Client = w
	return w
}

func (w *worker) Identify() (string, string) { return "s", "w" }
func (w *worker) MayClaim([]string) bool     { return true }
func (w *worker) MaxJobs() int               { return 100 }
func (w *worker) TooManyJobs() error         { return errors.New("too many jobs") }
func (w *worker) WakeClaims()                { w.p.WakeClaims() }
func (w *worker) Evict(bool)                 {}

// claim claims one job. Without wait it returns nil if there is none.
func (w *worker) claim(t *testing.T, queue string, wait bool) []backends.Job {
	t.Helper()
	r := &ClaimRequest{Session: &w.Session, Slots: 1, Since: time.Now(), Once: !wait}
	a, answered := w.p.Claim(r, []string{queue})
	if !answered {
		a = w.p.AwaitClaim(t.Context().Done(), r)
	}
	if a.Err != nil {
		t.Errorf("a claim of %s: %v", queue, a.Err)
	}
	if len(a.Jobs) == 0 {
		w.SettleJobs(r.Reserved, 0)
		return nil
	}
	jobs, err := w.p.HandOut(r, &a, func(jobs []backends.Job) int { return len(jobs) })
	if err != nil {
		t.Errorf("a claim of %s: %v", queue, err)
	}
	w.SettleJobs(r.Reserved, len(jobs))
	return jobs
}

// ack acks a claimed job.
func ack(tb testing.TB, p *Pipeline, s *quota.Session, jobs []backends.Job) {
	tb.Helper()
	st := &Settle{Leases: []backends.Lease{jobs[0].Lease()}}
	if err := p.SubmitSettle(st, s, backends.Ack{Leases: st.Leases}, 0); err != nil {
		tb.Error(err)
		return
	}
	if res, err := p.AwaitSettle(st, nil); err != nil || len(res.Lost) > 0 {
		tb.Errorf("acked: %+v, %v", res, err)
	}
}

func (w *worker) enqueue(t testing.TB, queue string) {
	t.Helper()
	w.enqueueKeyed(t, queue, "")
}

// enqueueKeyed stores no second job with a key.
func (w *worker) enqueueKeyed(t testing.TB, queue, key string) {
	t.Helper()
	p, err := w.p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: queue, Key: key}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.p.AwaitWrite(p, time.Second); err != nil {
		t.Fatal(err)
	}
}

// answered reports whether a queued claim has its answer.
func answered(p *Pipeline, r *ClaimRequest) bool {
	var yes atomic.Bool
	p.WhenAnswered(r, func() { yes.Store(true) })
	return yes.Load()
}

// TestJobWithoutASocket follows a job through a pipeline, from the enqueue to the ack. When a session ends, its job
// goes back to the database.
func TestJobWithoutASocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, memory.New())
		producer, first, second := newWorker(p), newWorker(p), newWorker(p)
		claimed := make(chan []backends.Job, 1)
		go func() { claimed <- first.claim(t, "q", true) }()
		synctest.Wait()
		if s := p.Snapshot(); s.IdleClaims != 1 || s.Claims != 1 {
			t.Errorf("while a claim waits: %+v", s)
		}
		producer.enqueue(t, "q")
		jobs := <-claimed
		if len(jobs) != 1 || jobs[0].Attempt != 1 || first.Jobs.Count() != 1 || p.HeldBySessions() != 1 {
			t.Fatalf("claimed %+v, the session holds %d jobs", jobs, first.Jobs.Count())
		}
		_, released := p.ReleaseSession(&first.Session, backends.Release{Cause: backends.CauseDisconnected, Message: "gone"}, false)
		if o := <-released.Done; o.Err != nil || first.Jobs.Count() != 0 {
			t.Fatalf("released: %v, the session holds %d jobs", o.Err, first.Jobs.Count())
		}
		jobs = second.claim(t, "q", true)
		if len(jobs) != 1 || jobs[0].Attempt != 2 {
			t.Fatalf("claimed %+v after its worker was gone, want attempt 2", jobs)
		}
		ack(t, p, &second.Session, jobs)
		if second.Jobs.Count() != 0 || p.Leases() != 0 {
			t.Errorf("after the ack %d leases are known", p.Leases())
		}
		if jobs := second.claim(t, "q", false); len(jobs) > 0 {
			t.Errorf("claimed %+v after the ack", jobs)
		}
	})
}

// TestWriteAfterTheEndFailsAtOnce shows that a write that reaches a pipeline after its end is answered at once. A request that began before
// a reload removed the database can be as late.
func TestWriteAfterTheEndFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipeline(memory.New())
		p.Join(t.Context())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx, ctx, t.Context()) }()
		w := newWorker(p)
		w.enqueue(t, "q")
		jobs := w.claim(t, "q", true)
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		write, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
		if err != nil {
			t.Fatal(err)
		}
		_, ofEnqueue := p.AwaitWrite(write, 5*time.Second)
		st := &Settle{Leases: []backends.Lease{jobs[0].Lease()}}
		if err := p.SubmitSettle(st, &w.Session, backends.Ack{Leases: st.Leases}, 0); err != nil {
			t.Fatal(err)
		}
		_, ofAck := p.AwaitSettle(st, nil)
		for _, err := range []error{ofEnqueue, ofAck} {
			if _, ok := errors.AsType[*backends.UnavailableError](err); !ok {
				t.Errorf("answered with %v, want unavailable", err)
			}
		}
		p.ReturnUndelivered(jobs)
		if synctest.Wait(); p.Leases() != 0 || time.Since(began) > 0 {
			t.Errorf("after %v, %d leases are known", time.Since(began), p.Leases())
		}
	})
}

// TestWaitingClaimsAreAnsweredWhenJobsAreBack shows that claims that don't wait are held while a job is on its way back.
// They are answered when it is back, however many other claims wait before them.
func TestWaitingClaimsAreAnsweredWhenJobsAreBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, memory.New())
		d := p.dispatcher
		d.MarkReturning([]backends.Job{{Queue: "q"}})
		waiting, once := newWorker(p), newWorker(p)
		for range 10 {
			go waiting.p.AwaitClaim(t.Context().Done(), waiting.queued(t, false, "q"))
		}
		synctest.Wait()
		answers := make(chan Answer, 10)
		for range 10 {
			r := once.queued(t, true, "q")
			go func() { answers <- p.AwaitClaim(t.Context().Done(), r) }()
		}
		synctest.Wait()
		if len(answers) > 0 {
			t.Errorf("%d claims are answered before the job is back", len(answers))
		}
		d.Returned([]string{"q"}) // another sidecar has it now
		synctest.Wait()
		for range 10 {
			select {
			case a := <-answers:
				if a.Err != nil || len(a.Jobs) > 0 {
					t.Errorf("answered %+v, want no job", a)
				}
			default:
				t.Fatal("a claim is forgotten")
			}
		}
	})
}

// queued is a claim of one job that waits for its answer.
func (w *worker) queued(t *testing.T, once bool, queues ...string) *ClaimRequest {
	t.Helper()
	r := &ClaimRequest{Session: &w.Session, Slots: 1, Since: time.Now(), Once: once}
	if a, answered := w.p.Claim(r, queues); answered {
		t.Fatalf("answered at once: %+v", a)
	}
	return r
}
