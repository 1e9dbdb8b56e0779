package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/outbox"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// faulty is one sidecar's way to a database that others reach undisturbed.
type faulty struct {
	*memory.Backend
	heartbeat atomic.Pointer[error] // error that Heartbeat returns instead of sending one
	commit    atomic.Pointer[error] // error that Commit returns instead of committing
	peek      atomic.Pointer[error] // error that Peek returns
	after     atomic.Pointer[func(backends.CommitContent, backends.Results) error]
	block     atomic.Pointer[chan struct{}] // Commit waits for it first
	blocked   atomic.Int32                  // commits that wait
	host      atomic.Uint64                 // of the last heartbeat that succeeded
	evicts    atomic.Bool                   // each claim finds its sidecar evicted
	joins     atomic.Int32                  // heartbeats with a new identity
}

func (f *faulty) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	if err := f.heartbeat.Load(); err != nil {
		return backends.HeartbeatResult{}, *err
	}
	if b.Kind == backends.HeartbeatJoin {
		f.joins.Add(1)
	}
	r, err := f.Backend.Heartbeat(ctx, b)
	if err == nil && r.Alive {
		f.host.Store(uint64(b.Sidecar))
	}
	return r, err
}

func (f *faulty) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	if c := f.block.Load(); c != nil {
		f.blocked.Add(1)
		<-*c
	}
	if err := f.commit.Load(); err != nil {
		return backends.Results{}, *err
	}
	if f.evicts.Load() && len(b.Claims) > 0 {
		return backends.Results{}, backends.ErrEvicted
	}
	res, err := f.Backend.Commit(ctx, b)
	if after := f.after.Load(); after != nil && err == nil {
		err = (*after)(b, res)
	}
	return res, err
}

func (f *faulty) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	if err := f.peek.Load(); err != nil {
		return nil, *err
	}
	return f.Backend.Peek(ctx, p)
}

var errDown = backends.Unavailable(errors.New("the server is away"))

// TestRefusedMemberAloneGetsTheError shows that, of 32 requests in one group commit, only the one that the database
// refuses fails.
func TestRefusedMemberAloneGetsTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New(memory.WithRefuse(func(j backends.NewJob) error {
			if string(j.Payload) == "poison" {
				return errors.New("a trigger rejects it")
			}
			return nil
		}))}
		s := start(t, options(db))
		c := s.dial(t)
		var leases []string
		for range 16 {
			c.call(`{"op":"enqueue","queue":"q"}`)
			leases = append(leases, c.claim1("q").Lease)
		}
		gate := make(chan struct{})
		db.block.Store(&gate)
		c.send(`{"op":"enqueue","queue":"first","id":100}`) // its commit delays the others
		eventually(t, func() bool { return db.blocked.Load() == 1 })
		for i, lease := range leases {
			payload := "fine"
			if i == 7 {
				payload = "poison"
			}
			c.send(`{"op":"enqueue","queue":"out","payload":%q,"id":%d}`, payload, 2*i)
			c.send(`{"op":"ack","lease":%q,"id":%d}`, lease, 2*i+1)
		}
		eventually(t, func() bool {
			return s.pipeline().Snapshot().QueuedWrites >= 32
		})
		db.block.Store(nil)
		close(gate)
		for range 33 {
			r := c.receive()
			switch {
			case r.ID == float64(14):
				if r.OK || r.Error.Code != "bad_request" || !strings.Contains(r.Error.Message, "a trigger rejects it") {
					t.Errorf("the refused enqueue got ok=%v %+v, want the database's words", r.OK, r.Error)
				}
			case !r.OK:
				t.Errorf("request %v, a neighbour of the refused one: %+v", r.ID, r.Error)
			}
		}
		if got := len(c.call(`{"op":"claim","queue":"out","max":100}`).Jobs); got != 15 {
			t.Errorf("%d jobs stored, want 15", got)
		}
	})
}

// TestLostClaimIsFreeAgain shows that a job is ready again at once if its claim was committed, but the answer never
// reached the dispatcher.
func TestLostClaimIsFreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		var lost atomic.Bool
		lose := func(_ backends.CommitContent, res backends.Results) error {
			if len(res.Claims) > 0 && len(res.Claims[0].Jobs) > 0 && lost.CompareAndSwap(false, true) {
				return fmt.Errorf("%w: reset by peer", backends.ErrUnknownOutcome)
			}
			return nil
		}
		db.after.Store(&lose)
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		c.refused("unknown_outcome", `{"op":"claim","queue":"q"}`)
		began := time.Now()
		j := c.claim1("q")
		took := time.Since(began)
		if j.Attempt != 1 {
			t.Errorf("attempt %d, want 1: no worker got the first delivery", j.Attempt)
		}
		if took > longestLinger {
			t.Errorf("it took %v, so the claim waited for the next regular heartbeat", took)
		}
	})
}

func TestWaitingClaimOutlivesALostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		var lost atomic.Bool
		lose := func(_ backends.CommitContent, res backends.Results) error {
			if len(res.Claims) > 0 && len(res.Claims[0].Jobs) > 0 && lost.CompareAndSwap(false, true) {
				return backends.ErrUnknownOutcome
			}
			return nil
		}
		db.after.Store(&lose)
		s := start(t, options(db))
		c, p := s.dial(t), s.dial(t)
		c.send(`{"op":"claim","queue":"q","wait_ms":20000}`)
		eventually(t, func() bool { return s.pipeline().Snapshot().IdleClaims == 1 })
		p.send(`{"op":"enqueue","queue":"q"}`) // in the same commit as the claim: its answer is lost too
		if r := p.receive(); r.OK || r.Error.Code != "unknown_outcome" {
			t.Errorf("enqueue: %+v, want unknown_outcome", r)
		}
		if r := c.receive(); len(r.Jobs) != 1 {
			t.Errorf("got %+v, want the job once it is free again", r)
		}
	})
}

// TestAckOfUnknownOutcome shows that an ack whose commit the engine can't find out about is answered with unknown_outcome. When the client sends it again,
// lease_lost means that an earlier try settled the job, or that it was lost.
func TestAckOfUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		j := c.claim1("q")
		lose := func(backends.CommitContent, backends.Results) error { return backends.ErrUnknownOutcome }
		db.after.Store(&lose)
		c.refused("unknown_outcome", `{"op":"ack","lease":%q}`, j.Lease)
		db.after.Store(nil)
		c.refused("lease_lost", `{"op":"ack","lease":%q}`, j.Lease) // as documented: settled by the earlier try
	})
}

// TestEvictedAgainAndAgain shows that a sidecar that something evicts soon after each join doesn't join in a loop, and claims again
// when that ends.
func TestEvictedAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		db.evicts.Store(true)
		db.joins.Store(0)
		c.send(`{"op":"claim","queue":"q","wait_ms":3600000,"id":1}`)
		time.Sleep(time.Minute)
		if n := db.joins.Load(); n < 3 || n > 20 {
			t.Errorf("joined %d times in a minute", n)
		}
		db.evicts.Store(false)
		if r := c.receive(); len(r.Jobs) != 1 {
			t.Errorf("the claim was answered with %+v", r)
		}
	})
}

// TestOutage shows the behavior while the database is unreachable: claims fail immediately and settles wait. When it
// is back, the jobs of a dead worker are released.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		c, worker := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"r"}]}`)
		j := c.claim1("q")
		worker.claim1("r")
		db.commit.Store(&errDown)
		if r := c.refused("unavailable", `{"op":"claim","queue":"q"}`); r.Error.RetryMS == 0 {
			t.Errorf("unavailable without retry_ms: %+v", r.Error)
		}
		worker.close()
		c.send(`{"op":"ack","id":1,"lease":%q}`, j.Lease)
		c.send(`{"op":"claim","id":2,"queue":"r","wait_ms":20000}`)
		eventually(t, func() bool {
			return s.pipeline().Snapshot().QueuedWrites == 2
		})
		db.commit.Store(nil)
		for range 2 {
			r := c.receive()
			if !r.OK {
				t.Errorf("request %v: %+v", r.ID, r.Error)
			}
			if r.ID == float64(2) && (len(r.Jobs) != 1 || r.Jobs[0].Attempt != 2) {
				t.Errorf("got %+v, want the dead worker's job", r.Jobs)
			}
		}
	})
}

// TestEnqueueDoesNotHang shows that an enqueue is answered with unavailable, and is not stored later.
func TestEnqueueDoesNotHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		db.commit.Store(&errDown)
		began := time.Now()
		if r := c.refused("unavailable", `{"op":"enqueue","queue":"q"}`); !strings.Contains(r.Error.Message, "the server is away") {
			t.Errorf("message %q does not say why", r.Error.Message)
		}
		if took := time.Since(began); took < enqueueWait || took > enqueueWait+longestRetry*3/2 {
			t.Errorf("answered after %v, want about %v", took, enqueueWait)
		}
		db.commit.Store(nil)
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 0 {
			t.Errorf("a job answered unavailable was stored: %+v", r.Jobs)
		}
	})
}

// TestCutOffSidecarLosesItsJobs shows a sidecar that can't send heartbeats: another one hands out its jobs, its late
// settles are lost, and it continues under a new identity.
func TestCutOffSidecarLosesItsJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		db := &faulty{Backend: mem}
		o1, o2 := options(db), options(mem)
		s1, s2 := start(t, o1), start(t, o2)
		c1, c2 := s1.dial(t), s2.dial(t)
		c1.call(`{"op":"hello","events":["lost"]}`)
		c1.call(`{"op":"enqueue","queue":"q"}`)
		j := c1.claim1("q")
		before := db.host.Load()
		db.heartbeat.Store(&errDown)
		db.commit.Store(&errDown)
		began := time.Now()
		j2 := c2.claim1("q")
		if took := time.Since(began); took > DefaultSidecarTimeout*4/3 {
			t.Errorf("its job was free after %v, want at most a third more than the sidecar timeout of %v", took, DefaultSidecarTimeout)
		}
		if j2.ID != j.ID || j2.Attempt != 2 || j2.Fence <= j.Fence {
			t.Errorf("got %+v after %+v, want the same job, attempt 2, a higher fence", j2, j)
		}
		db.commit.Store(nil)
		c1.refused("lease_lost", `{"op":"ack","lease":%q}`, j.Lease)
		db.heartbeat.Store(nil)
		eventually(t, func() bool { return db.host.Load() != before })
		c2.call(`{"op":"ack","lease":%q}`, j2.Lease)
		c1.call(`{"op":"enqueue","queue":"q"}`)
		c1.claim1("q")
		v := c2.call(`{"op":"stats"}`).Queues
		if len(v) != 1 {
			t.Errorf("stats %v", v)
		}
	})
}

// TestSlowReaderIsBounded shows that a client that claims and does not read gets no more jobs than fit the backlog.
func TestSlowReaderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		p, c := s.dial(t), s.dial(t)
		payload := strings.Repeat("x", 1<<20)
		const jobs = 24
		for range jobs {
			p.call(`{"op":"enqueue","queue":"big","payload":"%s"}`, payload)
		}
		for i := range 100 {
			c.send(`{"op":"claim","id":%d,"queue":"big","max":4,"wait_ms":60000}`, i)
		}
		// The claims stop: nothing happens any more except what a clock starts.
		db := s.config.Load().databases[0]
		synctest.Wait()
		for range 50 {
			p.call(`{"op":"enqueue","queue":"other"}`)
		}
		synctest.Wait()
		held := db.HeldBySessions()
		if held < 8 {
			t.Errorf("%d MiB are claimed for it, want as much as fits", held)
		}
		if most := (quota.MaxUnread+outbox.MaxBytes)>>20 + 4 + 4; held > most {
			t.Errorf("%d MiB claimed for a client that does not read, want at most %d", held, most)
		}
		got := 0
		for got < jobs {
			got += len(c.receive().Jobs)
		}
		p.call(`{"op":"claim","queue":"other"}`)
	})
}

func TestTooManyWaitingClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, other := s.dial(t), s.dial(t)
		for i := range maxWaiting {
			c.send(`{"op":"claim","id":%d,"queue":"q","wait_ms":600000}`, i)
		}
		c.refused("busy", `{"op":"claim","id":"one more","queue":"q","wait_ms":1000}`)
		c.call(`{"op":"ping"}`)
		c.close()
		eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.sessions) == 1
		})
		other.call(`{"op":"ping"}`)
	})
}

// TestOwnEndedLeasesAreReported shows that a session gets its event soon after its own sidecar ended the lease: not only with the next
// heartbeat, which is up to 5 s later.
func TestOwnEndedLeasesAreReported(t *testing.T) {
	for name, end := range map[string]func(c, operator *client, id string){
		"time limit": func(_, _ *client, _ string) {},
		"reclaim": func(_, operator *client, id string) {
			operator.call(`{"op":"reclaim","queue":"q","ids":[%q]}`, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, options(memory.New()))
				c, operator := s.dial(t), s.dial(t)
				c.call(`{"op":"hello","events":["lost"]}`)
				for offset := range 5 { // between two heartbeats
					time.Sleep(time.Duration(offset) * 900 * time.Millisecond)
					c.call(`{"op":"enqueue","queue":"q","timeout_ms":2000}`)
					j := c.claim1("q")
					claimed := time.Now()
					if end(c, operator, j.ID); name == "time limit" {
						claimed = claimed.Add(2 * time.Second)
					}
					if r := c.receive(); r.Event != "lost" || len(r.Leases) != 1 || r.Leases[0] != j.Lease {
						t.Fatalf("got %+v, want the event lost with the lease", r)
					}
					if late := time.Since(claimed); late > time.Second {
						t.Errorf("the event came %v after the end of the lease", late)
					}
					operator.call(`{"op":"delete","queue":"q","ids":[%q]}`, j.ID)
				}
			})
		})
	}
}

// TestTimeout shows that a run over its time is reaped as a failed attempt, and that its session gets an event.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		c.call(`{"op":"hello","events":["lost"]}`)
		c.call(`{"op":"enqueue","queue":"q","timeout_ms":50}`)
		j := c.claim1("q")
		if r := c.receive(); r.Event != "lost" || len(r.Leases) != 1 || r.Leases[0] != j.Lease {
			t.Fatalf("got %+v, want the event lost with the lease", r)
		}
		j2 := c.claim1("q")
		if j2.Attempt != 2 {
			t.Errorf("attempt %d, want 2", j2.Attempt)
		}
		if v := c.call(`{"op":"peek","queue":"q","ids":[%q]}`, j.ID).Jobs[0]; len(v.Errors) != 1 || v.Errors[0].Cause != "timed_out" {
			t.Errorf("errors %+v, want one, timed_out", v.Errors)
		}
	})
}
