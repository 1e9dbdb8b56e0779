package pipeline

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// overlapping is a database in which two commits of writes at once are worth it.
type overlapping struct {
	joining
	usage backends.Usage
}

func (o *overlapping) Usage() backends.Usage { return o.usage }

func (o *overlapping) Info() backends.Info {
	info := o.joining.Info()
	info.JoinJobs, info.WriteCommits = 0, 2
	return info
}

func newOverlapping() *overlapping {
	return &overlapping{joining: joining{Backend: memory.New(), open: make(chan struct{})}}
}

// wantCommits checks which commits the database carries out.
func wantCommits(t *testing.T, db *overlapping, when string, want ...string) {
	t.Helper()
	if got := db.waiting(); !slices.Equal(got, want) {
		t.Errorf("%s the database carries out the commits %q, want %q", when, got, want)
	}
}

// submit queues n writes of a session, each with one job.
func submit(t *testing.T, w *worker, n, bytes int) {
	t.Helper()
	for range n {
		if _, err := w.p.SubmitWrite(&w.Session, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, bytes)}}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSecondCommitIsLarge shows that a second commit begins beside the first one as soon as many writes wait, that there
// is no third one, and that the end of a commit takes what waits.
func TestSecondCommitIsLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newOverlapping()
		p := start(t, db)
		sessions := func(n int) {
			for range n {
				submit(t, newWorker(p), 1, 1)
			}
		}
		sessions(1)
		wantCommits(t, db, "for a write alone", "1 writes, 0 claims")
		sessions(overlapUnits - 1)
		wantCommits(t, db, "beside few writes", "1 writes, 0 claims")
		sessions(1)
		wantCommits(t, db, "beside many writes", "1 writes, 0 claims", "256 writes, 0 claims")
		sessions(overlapUnits)
		wantCommits(t, db, "beside two commits", "1 writes, 0 claims", "256 writes, 0 claims")
		db.release()
		time.Sleep(time.Second) // the loop possibly lingers
		wantCommits(t, db, "after both", "256 writes, 0 claims")
		db.release()
		time.Sleep(time.Second)
		wantCommits(t, db, "at the end")
	})
}

// TestLargePayloadsBeginASecondCommit shows that a commit begins beside another one for few writes with much payload.
func TestLargePayloadsBeginASecondCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newOverlapping()
		p := start(t, db)
		submit(t, newWorker(p), 1, 1)
		wantCommits(t, db, "for a write alone", "1 writes, 0 claims")
		submit(t, newWorker(p), 1, 1<<20)
		wantCommits(t, db, "beside one of 1 MiB", "1 writes, 0 claims")
		submit(t, newWorker(p), 1, 1<<20)
		wantCommits(t, db, "beside two of 1 MiB", "1 writes, 0 claims", "2 writes, 0 claims")
		db.release()
		time.Sleep(time.Second)
		wantCommits(t, db, "at the end")
	})
}

// TestSecondCommitLeavesAConnection shows that a second commit doesn't take the last connection of the pool, which claims
// need, and that its writes come after the first commit.
func TestSecondCommitLeavesAConnection(t *testing.T) {
	for inUse, want := range map[int][]string{
		4: {"1 writes, 0 claims", "256 writes, 0 claims"},
		5: {"1 writes, 0 claims"},
	} {
		synctest.Test(t, func(t *testing.T) {
			db := newOverlapping()
			db.usage = backends.Usage{Max: 6, InUse: inUse}
			p := start(t, db)
			submit(t, newWorker(p), 1, 1)
			db.waiting()
			for range overlapUnits {
				submit(t, newWorker(p), 1, 1)
			}
			wantCommits(t, db, "beside many writes", want...)
			db.release()
			time.Sleep(time.Second)
			if inUse == 5 {
				wantCommits(t, db, "after the first commit", "256 writes, 0 claims")
				db.release()
				time.Sleep(time.Second)
			}
			wantCommits(t, db, "at the end")
		})
	}
}

// TestWritesOfASessionKeepTheirOrder shows that the next writes of a session wait for its commit, and that another
// commit takes those of the others.
func TestWritesOfASessionKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newOverlapping()
		p := start(t, db)
		one := newWorker(p)
		submit(t, one, 1, 1)
		wantCommits(t, db, "for its first write", "1 writes, 0 claims")
		submit(t, one, 3, 1)
		for range overlapUnits - 3 {
			submit(t, newWorker(p), 1, 1)
		}
		wantCommits(t, db, "beside it", "1 writes, 0 claims", "253 writes, 0 claims")
		db.release()
		time.Sleep(time.Second)
		wantCommits(t, db, "after its first write", "3 writes, 0 claims")
		db.release()
		time.Sleep(time.Second)
		wantCommits(t, db, "at the end")
	})
}

// TestStopWaitsForBothCommits shows that the pipeline ends after all commits under way and all writes that wait.
func TestStopWaitsForBothCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newOverlapping()
		p := newPipeline(db)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx, ctx, context.Background()) }()
		for _, n := range []int{1, overlapUnits, 3} {
			for range n {
				submit(t, newWorker(p), 1, 1)
			}
			synctest.Wait()
		}
		stop()
		synctest.Wait()
		wantCommits(t, db, "when it stops", "1 writes, 0 claims", "256 writes, 0 claims")
		db.release()
		wantCommits(t, db, "after both", "3 writes, 0 claims")
		select {
		case err := <-ended:
			t.Errorf("it ended before its last commit: %v", err)
		default:
		}
		db.release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
