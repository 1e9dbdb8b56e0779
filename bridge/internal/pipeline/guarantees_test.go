package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// scripted is a database whose commits the test can fail, delay or count.
type scripted struct {
	*memory.Backend
	commit atomic.Pointer[func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error)]
}

func newScripted(f func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error)) *scripted {
	s := &scripted{Backend: memory.New()}
	s.commit.Store(&f)
	return s
}

func (s *scripted) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	return (*s.commit.Load())(b, func() (backends.Results, error) { return s.Backend.Commit(ctx, b) })
}

// has reports whether a batch has a write of type W.
func has[W backends.Write](b backends.CommitContent) bool {
	return slices.ContainsFunc(b.Writes, func(w backends.Write) bool { _, ok := w.(W); return ok })
}

// TestWriteInACommitIsAnsweredByTheCommit shows that a write whose time ends during its commit gets the commit's
// outcome. An error that nothing was written would be false.
func TestWriteInACommitIsAnsweredByTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		p := start(t, newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
			if has[backends.Enqueue](b) {
				<-proceed
			}
			return commit()
		}))
		w := newWorker(p)
		write, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan error, 1)
		go func() {
			_, err := p.AwaitWrite(write, time.Second)
			answered <- err
		}()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		select {
		case err := <-answered:
			t.Errorf("answered with %v during the commit", err)
			answered <- err
		default:
		}
		close(proceed)
		if err := <-answered; err != nil {
			t.Errorf("the commit succeeded, and the write failed with %v", err)
		}
	})
}

// TestUnknownOutcomeIsRepeatedWhereItMustHappen shows that the release of a dead worker's jobs, and the record of a
// hand-out, are committed again if it is unknown whether they were, and if another program has locked a row. Otherwise
// the job would stay claimed, or its attempt would not count and its time limit would not begin.
func TestUnknownOutcomeIsRepeatedWhereItMustHappen(t *testing.T) {
	for what, write := range map[string]backends.Write{
		"release":  backends.Release{Leases: []backends.Lease{{Token: backends.Token{Sidecar: 1, Number: 2}}}, Owner: 1},
		"hand-out": backends.Deliver{Deliveries: []backends.Delivery{{Lease: backends.Lease{Token: backends.Token{Sidecar: 1, Number: 2}}, Ago: time.Second}}},
	} {
		for why, failure := range map[string]error{"unknown": backends.ErrUnknownOutcome, "locked": &backends.LockedError{Err: errors.New("it waited")}} {
			t.Run(what+" "+why, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var tries atomic.Int32
					p := start(t, newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
						if has[backends.Release](b) || has[backends.Deliver](b) {
							n := tries.Add(1)
							if d, ok := b.Writes[0].(backends.Deliver); ok && d.Deliveries[0].Ago != time.Second+time.Duration(n-1)*5*time.Second {
								t.Errorf("at try %d the hand-out was %v ago, want the time until then added to 1s", n, d.Deliveries[0].Ago)
							}
							if n == 1 {
								time.Sleep(5 * time.Second)
								return backends.Results{}, failure
							}
						}
						return commit()
					}))
					if o := <-p.executor.pushFree(&PendingWrite{write: write}).Done; o.Err != nil || tries.Load() != 2 {
						t.Errorf("after %d tries: %v, want a success at the second one", tries.Load(), o.Err)
					}
				})
			})
		}
	}
}

// TestUnknownClaimsReturnAtOnce shows that jobs of a claim that a backend carried out apart from the rest of its commit, or in parts, are
// returned at once if it is unknown whether they were claimed. Otherwise they stay claimed until the next heartbeat.
func TestUnknownClaimsReturnAtOnce(t *testing.T) {
	for what, result := range map[string]func(r *backends.ClaimResult){
		"all":    func(r *backends.ClaimResult) { *r = backends.ClaimResult{Err: backends.ErrUnknownOutcome} },
		"a part": func(r *backends.ClaimResult) { r.Jobs, r.Unknown = r.Jobs[:1], true },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lost := false
				p := start(t, newScripted(func(_ backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
					res, err := commit()
					for i := range res.Claims {
						if r := &res.Claims[i]; !lost && len(r.Jobs) == 2 {
							lost = true
							result(r)
						}
					}
					return res, err
				}))
				w := newWorker(p)
				write, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}, {Queue: "q"}}})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.AwaitWrite(write, time.Second); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for got := 0; got < 2; {
					r := &ClaimRequest{Session: &w.Session, Slots: 2, Since: began}
					a, answered := p.Claim(r, []string{"q"})
					if !answered {
						a = p.AwaitClaim(t.Context().Done(), r)
					}
					if got += len(a.Jobs); len(a.Jobs) == 0 && !errors.Is(a.Err, backends.ErrUnknownOutcome) {
						t.Fatal(a.Err)
					}
				}
				if took := time.Since(began); !lost || took > time.Second {
					t.Errorf("the jobs are claimed after %v", took)
				}
			})
		})
	}
}

// TestHandOutsAreRecordedApart shows that hand-outs are recorded although another program has locked the row of one of
// them, or the database refuses it.
func TestHandOutsAreRecordedApart(t *testing.T) {
	for _, failure := range []error{&backends.LockedError{Err: errors.New("it waited")}, backends.Refused(errors.New("a trigger"))} {
		synctest.Test(t, func(t *testing.T) {
			const bad = 2
			var recorded []uint64
			tries := 0
			p := start(t, newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
				var numbers []uint64
				for _, w := range b.Writes {
					for _, l := range backends.LeasesOf(w) {
						numbers = append(numbers, l.Token.Number)
					}
				}
				if slices.Contains(numbers, bad) {
					if tries++; tries < 10 {
						time.Sleep(time.Second)
						return backends.Results{}, failure
					}
				}
				recorded = append(recorded, numbers...)
				return commit()
			}))
			var d backends.Deliver
			for n := range uint64(4) {
				d.Deliveries = append(d.Deliveries, backends.Delivery{Lease: backends.Lease{Token: backends.Token{Sidecar: 1, Number: n + 1}}})
			}
			o := <-p.executor.pushFree(&PendingWrite{write: d}).Done
			want := []uint64{1, 3, 4}
			if locked := isLocked(failure); locked {
				want = append(want, bad)
			} else if !errors.Is(o.Err, failure) {
				t.Errorf("it ended with %v, want the refusal", o.Err)
			}
			if !slices.Equal(recorded, want) {
				t.Errorf("%v: recorded in the order %v, want %v", failure, recorded, want)
			}
		})
	}
}

// TestWritesSurviveAnEviction shows that writes are committed although the claims of their commit find out that other
// sidecars declared this one dead.
func TestWritesSurviveAnEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var evictions atomic.Int32
		p := start(t, newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
			if len(b.Claims) > 0 && len(b.Writes) > 0 && evictions.Add(1) == 1 {
				return backends.Results{}, backends.ErrEvicted
			}
			return commit()
		}))
		w := newWorker(p)
		before := p.heartbeat.Identity()
		claimed := make(chan []backends.Job, 1)
		go func() { claimed <- w.claim(t, "q", true) }()
		synctest.Wait()
		w.enqueue(t, "q")
		if jobs := <-claimed; len(jobs) != 1 || jobs[0].Token.Sidecar == before || evictions.Load() == 0 {
			t.Errorf("claimed %+v after %d evictions, want a job under a new identity", jobs, evictions.Load())
		}
	})
}

// TestClaimIsMadeAgainAfterAStall shows that a claim whose jobs are old because the process stood still goes back to its session.
// Only the session finds out that a reload has moved the queue.
func TestClaimIsMadeAgainAfterAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, memory.New())
		w := newWorker(p)
		r := w.queued(t, false, "q")
		w.enqueue(t, "q")
		synctest.Wait()
		p.stalls.ended.Store(int64(p.stalls.clock() + 1))
		if a := p.AwaitClaim(t.Context().Done(), r); len(a.Jobs) > 0 || !errors.Is(a.Err, ErrAgain) {
			t.Errorf("after the stall: %+v, want ErrAgain", a)
		}
		time.Sleep(time.Second)
		if jobs := w.claim(t, "q", true); len(jobs) != 1 || jobs[0].Attempt != 1 {
			t.Errorf("made again: %+v", jobs)
		}
	})
}

// TestNoHandOutOfADroppedLease shows that jobs are not handed out if their leases were dropped after the commit, as
// happens when other sidecars declare this one dead.
func TestNoHandOutOfADroppedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, memory.New())
		w := newWorker(p)
		w.enqueue(t, "q")
		r := w.queued(t, false, "q")
		a := p.AwaitClaim(t.Context().Done(), r)
		if len(a.Jobs) != 1 {
			t.Fatalf("claimed %+v", a)
		}
		p.leaseTable.DropAll()
		jobs, err := p.HandOut(r, &a, func(jobs []backends.Job) int { return len(jobs) })
		if _, ok := errors.AsType[*backends.UnavailableError](err); !ok || len(jobs) > 0 || p.HeldBySessions() > 0 {
			t.Errorf("handed out %+v, %v; %d jobs are held", jobs, err, p.HeldBySessions())
		}
	})
}

// TestFailedSettleLeavesTheLeaseToTheHeartbeat shows that after a settle or a bind with an error, the heartbeater
// compares the lease with the database again. Otherwise the session would keep a lease that it lost.
func TestFailedSettleLeavesTheLeaseToTheHeartbeat(t *testing.T) {
	for what, settle := range map[string]func(p *Pipeline, st *Settle, w *worker) error{
		"ack": func(p *Pipeline, st *Settle, w *worker) error {
			return p.SubmitSettle(st, &w.Session, backends.Ack{Leases: st.Leases}, 0)
		},
		"bind": func(p *Pipeline, st *Settle, w *worker) error {
			return p.SubmitBind(st, &w.Session, backends.Extend{Leases: st.Leases}, 0)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := start(t, newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
					if has[backends.Ack](b) || has[backends.Extend](b) {
						return backends.Results{}, backends.ErrUnknownOutcome
					}
					return commit()
				}))
				w := newWorker(p)
				w.enqueue(t, "q")
				jobs := w.claim(t, "q", true)
				st := &Settle{Leases: []backends.Lease{jobs[0].Lease()}}
				if err := settle(p, st, w); err != nil {
					t.Fatal(err)
				}
				if n := len(p.leaseTable.Confirmed()); n != 0 {
					t.Errorf("%d leases are compared with the database during the settle", n)
				}
				if _, err := p.AwaitSettle(st, nil); !errors.Is(err, backends.ErrUnknownOutcome) {
					t.Fatalf("settled with %v", err)
				}
				if n := len(p.leaseTable.Confirmed()); n != 1 || p.HeldBySessions() != 1 {
					t.Errorf("%d leases are compared with the database, the session holds %d; want 1 and 1", n, p.HeldBySessions())
				}
			})
		})
	}
}

// TestReleaseNeedsNoMemory shows that the jobs of a dead worker are released although all memory for writes is taken.
func TestReleaseNeedsNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, memory.New())
		w := newWorker(p)
		w.enqueue(t, "q")
		w.claim(t, "q", true)
		if !p.executor.enqueueMemory.TryAcquire(queueBytes) || !p.executor.settleMemory.TryAcquire(settleBytes) {
			t.Fatal("some memory is taken already")
		}
		_, released := p.ReleaseSession(&w.Session, backends.Release{Cause: backends.CauseDisconnected}, false)
		if o := <-released.Done; o.Err != nil || len(o.Result.Lost) > 0 || p.Leases() != 0 {
			t.Errorf("released: %+v, %d leases are known", o, p.Leases())
		}
	})
}

// TestNotificationDuringACommitIsNotLost shows that a claim is included again if its queue got a job while a commit
// that did not see the job was under way.
func TestNotificationDuringACommitIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		var stored atomic.Bool
		var db *scripted
		db = newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
			res, err := commit()
			if len(b.Claims) > 0 && !stored.Swap(true) { // another sidecar enqueues after this commit has read the queue
				if _, err := db.Backend.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}); err != nil {
					t.Error(err)
				}
				<-proceed
			}
			return res, err
		})
		p := start(t, db)
		w := newWorker(p)
		claimed := make(chan []backends.Job, 1)
		go func() { claimed <- w.claim(t, "q", true) }()
		synctest.Wait()
		p.dispatcher.NotifyReady([]string{"q"})
		close(proceed)
		synctest.Wait()
		select {
		case jobs := <-claimed:
			if len(jobs) != 1 {
				t.Errorf("claimed %+v", jobs)
			}
		default:
			t.Error("the claim waits although its queue has a job")
			w.enqueue(t, "q")
			<-claimed
		}
	})
}

// TestReleasesNameTheirOwner shows that each release names this sidecar, so that it frees no job whose lease a worker
// has bound to another sidecar.
func TestReleasesNameTheirOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var owners []backends.Identity
		p := start(t, newScripted(func(b backends.CommitContent, commit func() (backends.Results, error)) (backends.Results, error) {
			for _, w := range b.Writes {
				if r, ok := w.(backends.Release); ok {
					owners = append(owners, r.Owner)
				}
			}
			return commit()
		}))
		w := newWorker(p)
		w.enqueue(t, "q")
		w.claim(t, "q", true)
		_, released := p.ReleaseSession(&w.Session, backends.Release{Uncounted: true}, false)
		<-released.Done
		a := p.AwaitClaim(t.Context().Done(), w.queued(t, false, "q"))
		p.ReturnUndelivered(a.Jobs)
		synctest.Wait()
		if id := p.heartbeat.Identity(); !slices.Equal(owners, []backends.Identity{id, id}) {
			t.Errorf("releases of %x, want two of %x", owners, id)
		}
	})
}
