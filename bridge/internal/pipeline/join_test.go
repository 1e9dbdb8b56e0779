package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

const smallJobs = 8

// joining is a database in which small commits carry claims too. Each commit waits for a value from open. A key keeps
// a commit with other writes from happening.
type joining struct {
	*memory.Backend
	open    chan struct{}
	mu      sync.Mutex
	commits []string // the present ones: how many writes and claims each has; guarded by mu
}

func (j *joining) Info() backends.Info {
	info := j.Backend.Info()
	info.Concurrent, info.JoinJobs, info.Prefetch = true, smallJobs, false
	return info
}

func (j *joining) Commit(ctx context.Context, batch backends.CommitContent) (backends.Results, error) {
	j.mu.Lock()
	j.commits = append(j.commits, fmt.Sprintf("%d writes, %d claims", len(batch.Writes), len(batch.Claims)))
	j.mu.Unlock()
	<-j.open
	for _, w := range batch.Writes {
		if e := w.(backends.Enqueue); e.Jobs[0].Key != "" && len(batch.Writes) > 1 {
			return backends.Results{}, &backends.LockedError{Err: errors.New("another program has stored the key")}
		}
	}
	return j.Backend.Commit(ctx, batch)
}

// waiting returns the commits that wait, in order.
func (j *joining) waiting() []string {
	synctest.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(slices.Values(j.commits))
}

// release ends the waiting commits.
func (j *joining) release() {
	j.mu.Lock()
	n := len(j.commits)
	j.commits = nil
	j.mu.Unlock()
	for range n {
		j.open <- struct{}{}
	}
}

// TestSmallCommitsIncludeClaims shows that one commit has the writes and the claims that wait, until its writes have
// many jobs. Then each kind has its own commit, until the writes have few jobs again.
func TestSmallCommitsIncludeClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &joining{Backend: memory.New(), open: make(chan struct{})}
		p := start(t, db)
		w := newWorker(p)
		enqueue := func(jobs int) {
			write := backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "p"}}, jobs)}
			if _, err := p.SubmitWrite(&w.Session, write); err != nil {
				t.Fatal(err)
			}
		}
		claim := func() { go newWorker(p).claim(t, "q", false) }
		want := func(when string, commits ...string) {
			t.Helper()
			if got := db.waiting(); !slices.Equal(got, commits) {
				t.Errorf("%s the database carries out the commits %q, want %q", when, got, commits)
			}
			db.release()
			synctest.Wait()
		}
		claim()
		want("for a claim alone", "0 writes, 1 claims")
		enqueue(1)
		db.waiting()
		enqueue(1)
		claim()
		want("for the first write", "1 writes, 0 claims")
		want("after a small commit", "1 writes, 1 claims")
		enqueue(smallJobs + 1)
		db.waiting()
		claim()
		want("beside a large write", "0 writes, 1 claims", "1 writes, 0 claims")
		enqueue(smallJobs + 1)
		claim()
		want("after a large commit", "0 writes, 1 claims", "1 writes, 0 claims")
		enqueue(1)
		db.waiting()
		enqueue(1)
		claim()
		want("for a small write", "1 writes, 0 claims")
		want("after it", "1 writes, 1 claims")
		time.Sleep(time.Second)
		want("at the end")
	})
}

// TestClaimsGoOnBesideALockedKey shows that a commit whose write is set aside, because another program has its key,
// carries out its claims together with its other writes.
func TestClaimsGoOnBesideALockedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &joining{Backend: memory.New(), open: make(chan struct{})}
		p := start(t, db)
		w := newWorker(p)
		for _, key := range []string{"", "k", ""} {
			if _, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "p", Key: key}}}); err != nil {
				t.Fatal(err)
			}
			db.waiting() // the first write is in a commit, and the others wait for its end
		}
		go newWorker(p).claim(t, "q", false)
		for _, commits := range [][]string{
			{"1 writes, 0 claims"},
			{"2 writes, 1 claims"},
			{"1 writes, 0 claims", "1 writes, 1 claims"},
		} {
			if got := db.waiting(); !slices.Equal(got, commits) {
				t.Errorf("the database carries out the commits %q, want %q", got, commits)
			}
			db.release()
		}
	})
}

// sessionWithoutQuota is a worker whose claims are answered with an error when a commit considers them.
type sessionWithoutQuota struct {
	worker
	considered *atomic.Bool
}

func (s *sessionWithoutQuota) MaxJobs() int { return 0 }

func (s *sessionWithoutQuota) TooManyJobs() error {
	s.considered.Store(true)
	return s.worker.TooManyJobs()
}

// TestLoopOfClaimsHandsOverAtItsEnd shows that no claim is forgotten that arrives while the loop of the claims finds that
// it has nothing to commit, and a small commit of writes has just included the claims again.
func TestLoopOfClaimsHandsOverAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &joining{Backend: memory.New(), open: make(chan struct{})}
		close(db.open) // no commit waits
		p := newPipeline(db)
		var considered atomic.Bool
		chosen, proceed := make(chan struct{}), make(chan struct{})
		p.executor.memory.Limit = func() int64 {
			if considered.Swap(false) { // the loop of the claims has chosen claims, and still holds their lock
				close(chosen)
				<-proceed
			}
			return 64 << 20
		}
		run(t, p)
		w := newWorker(p)
		enqueue := func(jobs int) {
			write, err := p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "p"}}, jobs)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.AwaitWrite(write, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		enqueue(smallJobs + 1)
		synctest.Wait() // each kind has its own loop
		full := &sessionWithoutQuota{worker: worker{p: p}, considered: &considered}
		full.Client = full
		p.Claim(&ClaimRequest{Session: &full.Session, Slots: 1}, []string{"q"})
		<-chosen
		enqueue(1)
		late := &ClaimRequest{Session: &w.Session, Slots: 1, Once: true}
		p.Claim(late, []string{"q"})
		synctest.Wait() // the loop of the writes found the claims locked
		close(proceed)
		synctest.Wait()
		if !answered(p, late) {
			t.Error("the claim is forgotten")
		}
	})
}
