package e2e

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	client "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestRestart: a sidecar restarted under workers that hold jobs redelivers
// nothing. Bare workers bind by hand; one with the client library is busy for
// three lease periods without a call.
func TestRestart(t *testing.T) {
	for _, how := range []struct {
		name string
		stop func(sc *sidecar)
	}{
		{"SIGTERM", func(sc *sidecar) {
			sc.signal(syscall.SIGTERM)
			if code := sc.exit(patience); code != 0 {
				sc.t.Errorf("after SIGTERM it exited with %d, want 0:\n%s", code, sc.readLog())
			}
		}},
		{"SIGKILL", (*sidecar).kill},
	} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			restartUnderWorkers(t, how.stop)
		})
	}
}

func restartUnderWorkers(t *testing.T, stop func(*sidecar)) {
	s := newSite(t)
	s.hostLease = 2 * time.Second
	s.extra = "drain_timeout: 300ms\n"
	a := s.started("a")
	const bare = 8
	a.dial().enqueueN("q", bare+1)
	busy := newBusyWorker(t, a.socket, "q")
	workers := make([]*conn, bare)
	jobs := make([]wireJob, bare)
	for i := range workers {
		workers[i] = a.dial()
		jobs[i] = workers[i].claimOne("q")
	}

	began := time.Now()
	stop(a)
	for _, w := range workers {
		w.closedByServer()
	}
	a.start()
	for i := range workers {
		workers[i] = a.dial()
		workers[i].must(msg{"op": "extend", "lease": jobs[i].Lease, "bind": true})
	}
	// Whatever came free would come here, for three lease periods.
	wait := 3*s.hostLease - time.Since(began)
	watcher := a.dial()
	watcher.post(msg{"op": "claim", "queue": "q", "max": 100, "wait_ms": wait.Milliseconds()})
	if r := watcher.within(wait + patience).nextSet(); r.Error != nil || len(r.Jobs) != 0 {
		t.Errorf("delivered again: %+v %v", r.Jobs, r.Error)
	}

	busy.ack(t)
	for i, w := range workers {
		w.must(msg{"op": "ack", "lease": jobs[i].Lease})
	}
	if left := s.jobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// busyWorker holds one job through the client library, and makes no call.
type busyWorker struct {
	client *client.Client
	job    protocol.Job
	lost   chan []string
}

func newBusyWorker(t *testing.T, socket, queue string) *busyWorker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b := &busyWorker{lost: make(chan []string, 1)} // 1: the first is enough to fail the test
	var err error
	b.client, err = client.Dial(ctx, client.Options{Socket: socket, Worker: "busy", OnLost: func(leases []string) {
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := b.client.Call(ctx, &protocol.Request{Op: protocol.OpAck, Lease: b.job.Lease}); err != nil {
		t.Errorf("the busy worker's ack: %v", err)
	}
	select {
	case leases := <-b.lost:
		t.Errorf("the library was told that %d leases are lost", len(leases))
	default:
	}
}

// suspend stops a sidecar, outside of a write: inside one it holds SQLite's lock
// of the file, and everybody waits for it, however long it sleeps.
func (s *site) suspend(sc *sidecar) (at int64) {
	s.t.Helper()
	db := s.sqlite(s.t)
	db.SetMaxOpenConns(1)
	for range 50 {
		at = monotonic()
		sc.signal(syscall.SIGSTOP)
		eventually(s.t, patience, "every thread is stopped", sc.stopped)
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		_, err := db.ExecContext(ctx, "PRAGMA busy_timeout=300; BEGIN IMMEDIATE; ROLLBACK")
		cancel()
		if err == nil {
			return at
		}
		sc.signal(syscall.SIGCONT)
	}
	s.t.Fatalf("%s was in the middle of a write each time it was stopped", sc.name)
	return 0
}

// TestSuspended: a sidecar that slept for two lease periods hands nothing out and
// settles nothing that was given away meanwhile.
func TestSuspended(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hostLease = 2 * time.Second
	a, b := s.started("a"), s.started("b")
	holder, buffered, listener := a.dial(), a.dial(), a.dial()
	other, watcher := b.dial(), b.dial()
	ids := other.enqueueN("q", 2)
	held := holder.claimOne("q")
	listener.must(msg{"op": "hello", "events": []string{"lost"}})
	silent := listener.claimOne("q")

	at := s.suspend(a)
	// What the workers say meanwhile waits in the socket.
	holder.post(msg{"op": "ack", "lease": held.Lease})
	buffered.post(msg{"op": "claim", "queue": "q", "max": 10, "wait_ms": 60_000})
	var taken []wireJob
	for len(taken) < len(ids) {
		taken = append(taken, other.must(msg{"op": "claim", "queue": "q", "max": 2, "wait_ms": 10_000}).Jobs...)
		if since(at) > patience {
			t.Fatalf("the second sidecar delivered %+v, want the jobs %v again", taken, ids)
		}
	}
	figure(t, "a suspended sidecar's jobs are with the second one after %v (host_lease %v)", since(at).Round(time.Millisecond), s.hostLease)
	fresh := watcher.must(msg{"op": "enqueue", "queue": "q", "payload": "fresh"}).Job.ID
	pass(2*s.hostLease - since(at))
	a.signal(syscall.SIGCONT)

	r := holder.next()
	if r.Error != nil && r.Error.Code == "unavailable" { // it had waited too long when the sidecar woke up
		r = holder.ask(msg{"op": "ack", "lease": held.Lease})
	}
	holder.wantError("lease_lost", "the ack of a job that was given away", r)
	if r := listener.next(); r.Event != "lost" || !slices.Equal(r.Leases, []string{silent.Lease}) {
		t.Errorf("the session that asked for it was told %+v, want the event lost with its lease", r)
	}
	r = buffered.next()
	if len(r.Jobs) != 1 || r.Jobs[0].ID != fresh {
		t.Fatalf("the claim that waited through the suspension got %+v %v, want the job %s", r.Jobs, r.Error, fresh)
	}
	view := watcher.must(msg{"op": "peek", "queue": "q", "ids": ids}).Jobs
	for _, j := range view {
		if j.State != "claimed" || len(j.Errors) != 1 || j.Errors[0].Cause != "sidecar_lost" {
			t.Errorf("a job that was given away shows %+v, want it claimed, once sidecar_lost", j)
		}
	}
	for _, j := range taken {
		if j.Attempt != 2 {
			t.Errorf("job %s was delivered again as attempt %d, want 2", j.ID, j.Attempt)
		}
		other.must(msg{"op": "ack", "lease": j.Lease})
	}
	buffered.must(msg{"op": "ack", "lease": r.Jobs[0].Lease})
	if left := s.jobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestSuspendedAlone: nobody took the job back, so its lease is still the one.
func TestSuspendedAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hostLease = 2 * time.Second
	a := s.started("a")
	c := a.dial()
	c.enqueueN("q", 1)
	held := c.claimOne("q")
	s.suspend(a)
	pass(2 * s.hostLease)
	a.signal(syscall.SIGCONT)
	c.must(msg{"op": "ack", "lease": held.Lease})
}
