package journeys

import (
	"slices"
	"syscall"
	"testing"
	"time"

	client "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestRestart checks that a restarted sidecar does not deliver claimed jobs again. Bare workers
// bind their leases, a worker with the client library makes no call. A worker that does not come
// back loses its job when the old leases end, and the others keep theirs.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, how := range []struct {
		name string
		stop func(sc *kit.Sidecar)
	}{
		{"SIGTERM", func(sc *kit.Sidecar) {
			sc.Signal(syscall.SIGTERM)
			if code := sc.WaitExit(); code != 0 {
				sc.T.Errorf("after SIGTERM it exited with %d, want 0:\n%s", code, sc.Log())
			}
		}},
		{"SIGKILL", (*kit.Sidecar).Kill},
	} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			restartUnderWorkers(t, how.stop)
		})
	}
}

func restartUnderWorkers(t *testing.T, stop func(*kit.Sidecar)) {
	s := kit.NewSite(t)
	s.SidecarTimeout = 20 * time.Second // longer than a restart takes on a busy machine
	s.Extra = "drain_timeout: 300ms\n"
	a := s.Start("a")
	const bare = 8
	a.Dial().Enqueue("q", bare+2)
	busy := newBusyWorker(t, a.Socket, "q")
	workers := make([]*kit.Conn, bare)
	jobs := make([]kit.Job, bare)
	for i := range workers {
		workers[i] = a.Dial()
		jobs[i] = workers[i].ClaimOne("q")
	}
	gone := a.Dial()
	left := gone.ClaimOne("q")
	a.Dial().WaitDelivered(left)

	stop(a)
	for _, w := range append(slices.Clone(workers), gone) {
		w.WantClosed()
	}
	a.Start()
	for i := range workers {
		workers[i] = a.Dial()
		workers[i].Must(kit.Msg{"op": "extend", "lease": jobs[i].Lease, "bind": true})
	}
	watcher := a.Dial()
	job := watcher.ClaimOne("q")
	if job.ID != left.ID || job.Attempt != 2 {
		t.Errorf("delivered again: %+v, want the job %s of the worker that left", job, left.ID)
	}
	if got := watcher.Stats("q"); got.Claimed != bare+2 || got.Total() != got.Claimed {
		t.Errorf("when the old leases have ended the queue has %+v, want %d claimed", got, bare+2)
	}

	watcher.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	busy.ack(t)
	for i, w := range workers {
		w.Must(kit.Msg{"op": "ack", "lease": jobs[i].Lease})
	}
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// busyWorker holds one job through the client library and makes no call.
type busyWorker struct {
	client *client.Client
	job    protocol.Job
	lost   chan []string
}

func newBusyWorker(t *testing.T, socket, queue string) *busyWorker {
	t.Helper()
	ctx := testwait.Context(t)
	b := &busyWorker{lost: make(chan []string, 1)} // capacity 1: one lost lease is enough to fail the test
	var err error
	b.client, err = client.Dial(ctx, client.Options{Socket: socket, Worker: "busy", OnLost: func(leases []string, _ string) {
		select {
		case b.lost <- slices.Clone(leases):
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.client.Close(); err != nil {
			t.Error(err)
		}
	})
	r, err := b.client.Call(ctx, &protocol.Request{Op: protocol.OpClaim, Queue: queue})
	if err != nil || len(r.Jobs) != 1 {
		t.Fatalf("claim by the library: %+v, %v", r, err)
	}
	b.job = r.Jobs[0]
	return b
}

func (b *busyWorker) ack(t *testing.T) {
	t.Helper()
	ctx := testwait.Context(t)
	if _, err := b.client.Call(ctx, &protocol.Request{Op: protocol.OpAck, Lease: b.job.Lease}); err != nil {
		t.Errorf("the busy worker's ack: %v", err)
	}
	select {
	case leases := <-b.lost:
		t.Errorf("the library reports %d lost leases", len(leases))
	default:
	}
}
