package sqlite

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

var one = backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}

func ready(t testing.TB, s *Store) int64 {
	t.Helper()
	st, err := s.Stats(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	return st[0].Ready
}

// lock takes SQLite's write lock as another program does, and returns a function that releases it.
func lock(t *testing.T, s *Store) (unlock func()) {
	t.Helper()
	c, err := connect(s.path, "busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.once("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(c.once("ROLLBACK"), c.close()); err != nil {
			t.Error(err)
		}
	}
}

// onWait calls f once, when a write starts to wait for another program's lock.
func (s *Store) onWait(f func()) {
	var hook func()
	hook = func() {
		if s.waits.CompareAndSwap(&hook, nil) {
			f()
		}
	}
	s.waits.Store(&hook)
}

func TestAnotherProgramHoldsTheLock(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	unlock := lock(t, s)
	ctx, cancel := context.WithCancelCause(t.Context())
	s.onWait(func() { cancel(context.DeadlineExceeded) })
	_, err := s.Commit(ctx, one)
	if !backends.Retryable(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while locked: %v", err)
	}
	if n := ready(t, s); n != 0 { // readers continue
		t.Errorf("%d ready", n)
	}
	// Any writer with time left gets the lock once it is free.
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := s.Commit(t.Context(), one); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Timeout: time.Minute}); err != nil {
			t.Error(err)
		}
	})
	unlock()
	wg.Wait()
	if n := ready(t, s); n != 5 {
		t.Errorf("%d ready, want 5", n)
	}
}

func TestCloseEndsWhatWaits(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	unlock := lock(t, s)
	defer unlock()
	answers := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := s.Commit(context.Background(), one)
			answers <- err
		}()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-answers; !errors.Is(err, errClosed) {
			t.Errorf("a waiting commit ended with %v", err)
		}
	}
}

// hangs makes the next commit stop, as on a disk that hangs, until the channel is closed.
func (s *Store) hangs(before bool) (reached, goOn chan struct{}) {
	reached, goOn = make(chan struct{}), make(chan struct{})
	hook := func(now bool) error {
		if now == before {
			s.fault.Store(nil)
			close(reached)
			<-goOn
		}
		return nil
	}
	s.fault.Store(&hook)
	return reached, goOn
}

// A COMMIT that hangs doesn't delay the caller beyond the context, and its outcome is reported as unknown.
func TestTheDiskHangsInTheCommit(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		s := fresh(t)
		reached, goOn := s.hangs(before)
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() {
			_, err := s.Commit(ctx, one)
			answer <- err
		}()
		<-reached
		cancel()
		if err := <-answer; !errors.Is(err, backends.ErrUnknownOutcome) {
			t.Errorf("answered %v, want an unknown outcome", err)
		}
		close(goOn)
		if _, err := s.Commit(t.Context(), one); err != nil { // after the hanging one
			t.Error(err)
		}
		if n := ready(t, s); n != 2 {
			t.Errorf("%d ready, want 2", n)
		}
	}
}

// If the lock is held, the outcome of a commit is found out after its release.
func TestFindingOutWaitsForTheLock(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		s := fresh(t)
		var unlock func()
		hook := func(now bool) error {
			if now != before {
				return nil
			}
			s.fault.Store(nil)
			if before { // the transaction itself holds the lock, so release it first
				if err := s.writer.once("ROLLBACK"); err != nil {
					t.Error(err)
				}
			}
			unlock = lock(t, s)
			s.onWait(unlock)
			return errors.New("lost")
		}
		s.fault.Store(&hook)
		_, err := s.Commit(t.Context(), one)
		if n := ready(t, s); before && (!backends.Retryable(err) || n != 0) || !before && (err != nil || n != 1) {
			t.Errorf("lost before: %v; answered %v, %d ready", before, err, n)
		}
	}
}

func TestTheGateIsFairAndHeartbeatsPass(t *testing.T) {
	t.Parallel()
	var g gate
	if err := g.acquire(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	order := make(chan string, 4)
	wait := func(name string, urgent bool, queued int) {
		go func() {
			if err := g.acquire(t.Context(), urgent); err != nil {
				t.Error(err)
			}
			order <- name
			g.release()
		}()
		testwait.Until(t, name+" waits", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.normal)+len(g.urgent) == queued
		})
	}
	wait("first", false, 1)
	wait("second", false, 2)
	wait("beat", true, 3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.acquire(ctx, false); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait whose context is over: %v", err)
	}
	g.release()
	var got []string
	for range 3 {
		got = append(got, <-order)
	}
	if strings.Join(got, " ") != "beat first second" {
		t.Errorf("the order was %v", got)
	}
}

// A write whose context has ended does not begin. Otherwise a fast one would succeed or fail by chance.
func TestEndedContextBeginsNoWrite(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Heartbeat(ctx, backends.Heartbeat{Sidecar: 1, Kind: backends.HeartbeatRenew, Timeout: time.Second}); !backends.Retryable(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("answered %v, want retryable and canceled", err)
	}
	if err := s.gate.acquire(t.Context(), false); err != nil { // after such a write, if there is one
		t.Fatal(err)
	}
	defer s.gate.release()
	if s.heartbeatConn != nil {
		t.Error("the heartbeat opened its connection")
	}
}

func TestADamagedFile(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	if err := exec(t, s, `DROP TABLE qsidecar_keys; CREATE TABLE qsidecar_keys (other)`); err != nil {
		t.Fatal(err)
	}
	_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
		backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: "k"}}},
	}})
	if err == nil || backends.Retryable(err) || backends.IsRefused(err) || !strings.Contains(err.Error(), s.path) {
		t.Errorf("a table of another program: %v, want a plain error that names the file", err)
	}
	if _, err := s.Commit(t.Context(), one); err != nil {
		t.Errorf("what needs no key: %v", err)
	}
}
