package pipeline

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// counted is a database that counts the slots of its claims.
type counted struct {
	*memory.Backend
	concurrent bool // claims and writes have a commit loop each
	mu         sync.Mutex
	slots      int // guarded by mu
}

func (b *counted) Info() backends.Info {
	info := b.Backend.Info()
	info.Concurrent = b.concurrent
	return info
}

func (b *counted) Commit(ctx context.Context, batch backends.CommitContent) (backends.Results, error) {
	b.mu.Lock()
	for _, c := range batch.Claims {
		b.slots += len(c.Slots)
	}
	b.mu.Unlock()
	return b.Backend.Commit(ctx, batch)
}

// take returns the number of slots since the last call.
func (b *counted) take() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.slots
	b.slots = 0
	return n
}

// waiter is a worker that counts how often a commit considers its claims. Each time, it is asked for its quota.
type waiter struct {
	worker
	visits *int // the dispatcher's lock guards it
}

func (w *waiter) MaxJobs() int { *w.visits++; return w.worker.MaxJobs() }

// addWaiters queues n waiting claims of one job of q, each of another session, and waits for their first commit.
func addWaiters(tb testing.TB, p *Pipeline, n int, visits *int) (all []*ClaimRequest) {
	for range n {
		w := &waiter{worker: worker{p: p}, visits: visits}
		w.Client = w
		r := &ClaimRequest{Session: &w.Session, Slots: 1, Since: time.Now()}
		if a, answered := p.Claim(r, []string{"q"}); answered {
			tb.Fatalf("answered at once: %+v", a)
		}
		all = append(all, r)
	}
	return all
}

// enqueueJobs stores ready jobs of the queues, and as many that are not ready.
func enqueueJobs(tb testing.TB, w *worker, queues ...string) {
	var jobs []backends.NewJob
	for _, q := range queues {
		jobs = append(jobs, backends.NewJob{Queue: q}, backends.NewJob{Queue: q, Delay: time.Hour})
	}
	write, err := w.p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: jobs})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := w.p.AwaitWrite(write, time.Minute); err != nil {
		tb.Fatal(err)
	}
}

// TestEnqueueCostsByItsJobs shows that an enqueue claims for as many waiting claims as it has ready jobs and one more,
// which finds that there is no other. The number of waiting claims does not matter, and nor does the rate at which the
// queue had jobs before.
func TestEnqueueCostsByItsJobs(t *testing.T) {
	for _, concurrent := range []bool{false, true} {
		for _, waiting := range []int{10, 5000} {
			t.Run(fmt.Sprintf("concurrent=%v/waiters=%d", concurrent, waiting), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					db, visits := &counted{Backend: memory.New(), concurrent: concurrent}, 0
					p := start(t, db)
					producer := newWorker(p)
					for range 500 { // a worker takes jobs at a high rate, and leaves none
						producer.enqueue(t, "q")
						ack(t, p, &producer.Session, producer.claim(t, "q", true))
						time.Sleep(100 * time.Microsecond)
					}
					claims := addWaiters(t, p, waiting, &visits)
					for _, jobs := range []int{1, 1, 5} {
						synctest.Wait()
						db.take()
						visits = 0
						var queues []string
						for range jobs {
							queues = append(queues, "q")
						}
						enqueueJobs(t, producer, queues...)
						synctest.Wait()
						if n := db.take(); n != jobs+1 || visits != jobs+1 {
							t.Errorf("an enqueue of %d jobs claims %d slots and considers %d claims, want %d", jobs, n, visits, jobs+1)
						}
						for i, r := range claims[:jobs] { // first come, first served
							if !answered(p, r) {
								t.Errorf("claim %d of those that waited longest has no answer", i)
							}
						}
						claims = claims[jobs:]
					}
				})
			})
		}
	}
}

// TestBatchForManyQueuesCostsByItsJobs shows that an enqueue to several queues does not claim all of its jobs from each.
func TestBatchForManyQueuesCostsByItsJobs(t *testing.T) {
	const queues = 20
	for _, concurrent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := &counted{Backend: memory.New(), concurrent: concurrent}
			p := start(t, db)
			var names []string
			for i := range queues {
				name := fmt.Sprint("q", i)
				names = append(names, name)
				for range 2 * queues {
					p.Claim(&ClaimRequest{Session: &newWorker(p).Session, Slots: 1, Since: time.Now()}, []string{name})
				}
			}
			synctest.Wait()
			db.take()
			enqueueJobs(t, newWorker(p), names...)
			synctest.Wait()
			if n := db.take(); n != 2*queues {
				t.Errorf("concurrent=%v: a job in each of %d queues claims %d slots, want two of each queue", concurrent, queues, n)
			}
		})
	}
}

// TestIdleWaitQueuesAreForgotten shows that nothing is left of claims of very many queues, whether they found no job,
// stopped waiting, or got a job.
func TestIdleWaitQueuesAreForgotten(t *testing.T) {
	const queues = 30000
	synctest.Test(t, func(t *testing.T) {
		p := start(t, &counted{Backend: memory.New(), concurrent: true})
		w := newWorker(p)
		ended, end := context.WithCancel(t.Context())
		end()
		for i := range queues {
			name := fmt.Sprint("q", i)
			if w.claim(t, name, false) != nil {
				t.Fatalf("%s has a job", name)
			}
			r := &ClaimRequest{Session: &w.Session, Slots: 1, Since: time.Now()}
			p.Claim(r, []string{name})
			if i%100 == 0 {
				w.enqueue(t, name)
				if !awaitAndSettle(t, p, r) {
					t.Fatalf("no job of %s", name)
				}
				continue
			}
			p.AwaitClaim(ended.Done(), r)
		}
		time.Sleep(time.Minute) // longer than a wait queue keeps its rate
		synctest.Wait()
		if n := p.Snapshot().WaitQueues; n != 0 {
			t.Errorf("after claims of %d queues there are %d wait queues, want none", queues, n)
		}
	})
}

// BenchmarkEnqueueBesideWaiters prints the work of an enqueue of one job, of its claim, its ack and the next claim of
// the worker that got it, while the other workers wait.
func BenchmarkEnqueueBesideWaiters(b *testing.B) {
	for _, waiting := range []int{10, 5000} {
		b.Run(fmt.Sprintf("waiters=%d", waiting), func(b *testing.B) {
			db, visits := &counted{Backend: memory.New(), concurrent: true}, 0
			p := start(b, db)
			producer, acked := newWorker(p), make(chan struct{})
			for _, r := range addWaiters(b, p, waiting, &visits) {
				go func() {
					for awaitAndSettle(b, p, r) {
						r = &ClaimRequest{Session: r.Session, Slots: 1, Since: time.Now()}
						p.Claim(r, []string{"q"}) // nothing is prefetched: every job has a claim that waits for it
						acked <- struct{}{}
					}
				}()
			}
			testwait.Until(b, "all claims are idle", func() bool { return p.Snapshot().IdleClaims == waiting })
			db.take()
			p.dispatcher.Locker().Lock()
			visits = 0
			p.dispatcher.Locker().Unlock()
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				producer.enqueue(b, "q")
				<-acked
			}
			n := float64(b.N)
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/n, "cpu-ns/op")
			b.ReportMetric(float64(db.take())/n, "slots/op")
			p.dispatcher.Locker().Lock()
			b.ReportMetric(float64(visits)/n, "visits/op")
			p.dispatcher.Locker().Unlock()
			p.StopClaims(context.Canceled)
		})
	}
}

// awaitAndSettle waits for the job of a claim and acks it. It returns false if the claim got none.
func awaitAndSettle(tb testing.TB, p *Pipeline, r *ClaimRequest) bool {
	a := p.AwaitClaim(nil, r)
	if len(a.Jobs) == 0 {
		return false
	}
	jobs, err := p.HandOut(r, &a, func(jobs []backends.Job) int { return len(jobs) })
	if err != nil {
		tb.Error(err)
		return false
	}
	r.Session.SettleJobs(r.Reserved, len(jobs))
	ack(tb, p, r.Session, jobs)
	return true
}

func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
