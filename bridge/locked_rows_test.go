package bridge

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/leasestring"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// rowLocked is a backend where another program has a job's row locked. A commit that does not wait returns that
// error, and one that waits does so until open is closed.
type rowLocked struct {
	*memory.Backend
	token uint64
	waits chan struct{} // each commit that waits sends
	open  chan struct{}
}

func (l *rowLocked) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	locked := -1
	for n, w := range b.Writes {
		if ack, ok := w.(backends.Ack); ok && ack.Leases[0].Token.Number == l.token {
			locked = n
		}
	}
	if locked < 0 {
		return l.Backend.Commit(ctx, b)
	}
	if b.WaitForLocks {
		l.waits <- struct{}{}
		select {
		case <-l.open:
			return l.Backend.Commit(ctx, b)
		case <-ctx.Done():
			return backends.Results{}, &backends.LockedError{Err: ctx.Err()}
		}
	}
	all := backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	for n, w := range b.Writes {
		if n == locked {
			all.Writes[n].Err = &backends.LockedError{Err: errors.New("locked")}
			continue
		}
		got, err := l.Backend.Commit(ctx, backends.Batch{Writes: []backends.Write{w}})
		if err != nil {
			return got, err
		}
		all.Writes[n] = got.Writes[0]
	}
	return all, nil
}

// TestLockedRowIsTriedAlone shows that a write that waits for a row that another program has locked does not delay
// the other writes. It is answered when the row is unlocked, and a sidecar that stops waits for it.
func TestLockedRowIsTriedAlone(t *testing.T) {
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprint(stops), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &rowLocked{Backend: memory.New(), waits: make(chan struct{}, 100), open: make(chan struct{})}
				s := start(t, options(db))
				c, other := s.dial(t), s.dial(t)
				c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"},{"queue":"q"}]}`)
				lease := c.call(`{"op":"claim","queue":"q"}`).Jobs[0].Lease
				_, proof, ok := leasestring.Parse(lease)
				if !ok {
					t.Fatal(lease)
				}
				db.token = proof.Token.Number
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
				close(db.open)
				if r := c.receive(); r.Acked != 1 {
					t.Errorf("when the row is free: %+v", r)
				}
			})
		})
	}
}

// keyLocked is a backend where another program has stored a key in an open transaction. A commit of a job with a key
// fails as a whole if it does not wait, and otherwise waits until open is closed.
type keyLocked struct {
	*memory.Backend
	waits, open chan struct{}
}

func (l *keyLocked) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	for _, w := range b.Writes {
		e, ok := w.(backends.Enqueue)
		if !ok || e.Jobs[0].Key == "" {
			continue
		}
		if !b.WaitForLocks {
			return backends.Results{}, &backends.LockedError{Err: errors.New("locked")}
		}
		l.waits <- struct{}{}
		select {
		case <-l.open:
		case <-ctx.Done():
			return backends.Results{}, &backends.LockedError{Err: ctx.Err()}
		}
	}
	return l.Backend.Commit(ctx, b)
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

func (l *releaseLocked) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	for _, w := range b.Writes {
		if _, ok := w.(backends.Release); ok && l.failures > 0 {
			l.failures--
			return backends.Results{}, &backends.LockedError{Err: errors.New("locked")}
		}
	}
	return l.Backend.Commit(ctx, b)
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
