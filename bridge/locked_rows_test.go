package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// rowLocked is a backend where another program has rows of jobs locked. A commit that does not wait returns an error
// for their acks, and one that waits does so until its row is unlocked.
type rowLocked struct {
	*memory.Backend
	waits chan struct{} // each commit that waits sends

	mu   sync.Mutex
	rows map[uint64]chan struct{} // by the number of the lease's token; closed when the row is unlocked
}

func newRowLocked() *rowLocked {
	return &rowLocked{Backend: memory.New(), waits: make(chan struct{}, 100), rows: map[uint64]chan struct{}{}}
}

// lock locks the row of a claimed job until unlock is called.
func (r *rowLocked) lock(t *testing.T, lease string) (unlock func()) {
	t.Helper()
	_, proof, ok := wirejob.ParseLease(lease)
	if !ok {
		t.Fatal(lease)
	}
	n, free := proof.Token.Number, make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows[n] = free
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.rows, n)
		close(free)
	}
}

// lockOf returns the lock of the row that a write acks or extends, or nil if there is none.
func (r *rowLocked) lockOf(w backends.Write) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch w := w.(type) {
	case backends.Ack:
		return r.rows[w.Leases[0].Token.Number]
	case backends.Extend:
		return r.rows[w.Leases[0].Token.Number]
	}
	return nil
}

func (r *rowLocked) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	if len(b.Writes) == 0 {
		return r.Backend.Commit(ctx, b)
	}
	all := backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	for n, w := range b.Writes {
		if lock := r.lockOf(w); lock != nil {
			if !b.WaitForLocks {
				all.Writes[n].Err = &backends.LockedError{Err: errors.New("locked")}
				continue
			}
			r.waits <- struct{}{}
			select {
			case <-lock:
			case <-ctx.Done():
				return backends.Results{}, &backends.LockedError{Err: ctx.Err()}
			}
		}
		got, err := r.Backend.Commit(ctx, backends.CommitContent{Writes: []backends.Write{w}})
		if err != nil {
			return got, err
		}
		all.Writes[n] = got.Writes[0]
	}
	if len(b.Claims) > 0 {
		claimed, err := r.Backend.Commit(ctx, backends.CommitContent{Sidecar: b.Sidecar, Claims: b.Claims})
		all.Claims = claimed.Claims
		return all, err
	}
	return all, nil
}

// TestLockedRowIsTriedAlone shows that a write that waits for a row that another program has locked does not delay
// the other writes. It is answered when the row is unlocked, and a sidecar that stops waits for it.
func TestLockedRowIsTriedAlone(t *testing.T) {
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprint(stops), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newRowLocked()
				s := start(t, options(db))
				c, other := s.dial(t), s.dial(t)
				c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"},{"queue":"q"}]}`)
				lease := c.call(`{"op":"claim","queue":"q"}`).Jobs[0].Lease
				unlock := db.lock(t, lease)
				c.send(`{"op":"ack","lease":"%s"}`, lease)
				<-db.waits
				for range 2 {
					next := other.call(`{"op":"claim","queue":"q"}`).Jobs[0].Lease
					if r := other.call(`{"op":"ack","lease":"%s"}`, next); r.Acked != 1 {
						t.Errorf("beside the locked row: %+v", r)
					}
				}
				if stops {
					s.stop()
					synctest.Wait()
				}
				unlock()
				if r := c.receive(); r.Acked != 1 {
					t.Errorf("when the row is free: %+v", r)
				}
			})
		})
	}
}

// TestDeadWorkersJobsWaitForNoLockedRow shows that the jobs of a worker that died come back at once, although a write about one
// of them waits for a locked row. If that job comes back later, its message has as many jobs.
func TestDeadWorkersJobsWaitForNoLockedRow(t *testing.T) {
	const message = "the client hung up while it had 2 jobs"
	for _, write := range []string{`"op":"ack"`, `"op":"extend"`} {
		t.Run(write, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newRowLocked()
				s := start(t, options(db))
				c, other := s.dial(t), s.dial(t)
				c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
				first, second := c.claim1("q"), c.claim1("q")
				unlock := db.lock(t, first.Lease)
				c.send(`{%s,"lease":"%s","id":1}`, write, first.Lease)
				<-db.waits
				c.close()
				r := other.call(`{"op":"claim","queue":"q","wait_ms":3000}`)
				if len(r.Jobs) != 1 || r.Jobs[0].ID != second.ID || r.Jobs[0].Attempt != 2 || !strings.HasPrefix(r.Jobs[0].LastError, message) {
					t.Errorf("beside the locked row: %+v", r)
				}
				unlock()
				time.Sleep(time.Minute)
				r = other.call(`{"op":"claim","queue":"q"}`)
				if strings.Contains(write, "ack") {
					if len(r.Jobs) != 0 {
						t.Errorf("the job that the dead worker acked came back: %+v", r)
					}
				} else if len(r.Jobs) != 1 || !strings.HasPrefix(r.Jobs[0].LastError, message) {
					t.Errorf("the other job: %+v", r)
				}
			})
		})
	}
}

// TestClaimBesideALockedSettle shows that the jobs of a claim that a settle carries aren't old when they are handed out: the settle
// can wait for a locked row for longer than their leases last.
func TestClaimBesideALockedSettle(t *testing.T) {
	for _, prefetched := range []bool{false, true} {
		t.Run(fmt.Sprint(prefetched), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newRowLocked()
				s := start(t, options(db))
				c := s.dial(t)
				c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q","payload":"x"},{"queue":"q"},{"queue":"q"}]}`)
				held := c.claim1("q")
				if prefetched {
					for range 2 {
						c.call(`{"op":"ack","lease":"%s"}`, held.Lease)
						held = c.claim1("q")
					}
				}
				unlock := db.lock(t, held.Lease)
				c.send(`{"op":"ack","lease":"%s","claim":{"queue":"q","lease_ms":1000}}`, held.Lease)
				<-db.waits
				time.Sleep(3 * time.Second)
				unlock()
				r := c.receive()
				if r.Acked != 1 || len(r.Jobs) != 1 || r.Jobs[0].Attempt != 1 {
					t.Fatalf("after the lock: %+v", r)
				}
				time.Sleep(900 * time.Millisecond)
				if r := c.call(`{"op":"ack","lease":"%s"}`, r.Jobs[0].Lease); r.Acked != 1 {
					t.Errorf("the ack within the lease: %+v", r)
				}
			})
		})
	}
}

// TestUnlockedRowWaitsForNoOther shows that the ack of a row that was unlocked does not wait for all rows
// that are still locked.
func TestUnlockedRowWaitsForNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newRowLocked()
		s := start(t, options(db))
		var clients [3]*client
		var unlock [3]func()
		for i := range clients {
			clients[i] = s.dial(t)
			clients[i].call(`{"op":"enqueue","queue":"q"}`)
			lease := clients[i].call(`{"op":"claim","queue":"q"}`).Jobs[0].Lease
			unlock[i] = db.lock(t, lease)
			clients[i].send(`{"op":"ack","lease":"%s"}`, lease)
			if i == 0 {
				<-db.waits // it waits alone, and the others queue behind it
			}
			synctest.Wait()
		}
		unlock[2]()
		unlock[0]()
		for _, i := range []int{0, 2} {
			if r := clients[i].receive(); r.Acked != 1 {
				t.Errorf("ack %d of an unlocked row: %+v", i, r)
			}
		}
		unlock[1]()
		if r := clients[1].receive(); r.Acked != 1 {
			t.Errorf("ack of the row that was locked for longest: %+v", r)
		}
	})
}

// keyLocked is a backend where another program has stored a key in an open transaction. A commit of a job with a key
// fails as a whole if it does not wait, and otherwise waits until open is closed.
type keyLocked struct {
	*memory.Backend
	waits, open chan struct{}
}

func (k *keyLocked) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	for _, w := range b.Writes {
		e, ok := w.(backends.Enqueue)
		if !ok || e.Jobs[0].Key == "" {
			continue
		}
		if !b.WaitForLocks {
			return backends.Results{}, &backends.LockedError{Err: errors.New("locked")}
		}
		k.waits <- struct{}{}
		select {
		case <-k.open:
		case <-ctx.Done():
			return backends.Results{}, &backends.LockedError{Err: ctx.Err()}
		}
	}
	return k.Backend.Commit(ctx, b)
}

// TestLockedKeyIsTriedAlone shows that an enqueue that waits for a key that another program has stored in an open
// transaction does not delay the other writes.
func TestLockedKeyIsTriedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &keyLocked{Backend: memory.New(), waits: make(chan struct{}, 100), open: make(chan struct{})}
		s := start(t, options(db))
		c, other := s.dial(t), s.dial(t)
		c.send(`{"op":"enqueue","queue":"q","key":"k"}`)
		testwait.Receive(t, "the commit of the enqueue alone", db.waits)
		other.call(`{"op":"enqueue","queue":"q"}`)
		other.call(`{"op":"ack","lease":%q}`, other.claim1("q").Lease)
		close(db.open)
		if r := c.receive(); !r.OK {
			t.Errorf("the enqueue whose key was locked: %+v", r)
		}
	})
}

// releaseLocked is a backend where another program has the row of a job locked that a session left behind. Its first
// releases fail, also those that wait.
type releaseLocked struct {
	*memory.Backend
	failures int
}

func (r *releaseLocked) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	for _, w := range b.Writes {
		if _, ok := w.(backends.Release); ok && r.failures > 0 {
			r.failures--
			return backends.Results{}, &backends.LockedError{Err: errors.New("locked")}
		}
	}
	return r.Backend.Commit(ctx, b)
}

// TestReleaseOfLockedRowIsRepeated shows that the job of a session that ended is free after its row is unlocked. The
// sidecar finds the job when it compares its rows with its leases.
func TestReleaseOfLockedRowIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(&releaseLocked{Backend: memory.New(), failures: 3}))
		c, other := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		c.claim1("q")
		c.close()
		other.claim1("q")
	})
}
