package crash

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestSuspended checks a sidecar that was suspended until another one evicted it. It delivers no
// job and settles none that another worker got in the meantime.
func TestSuspended(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.SidecarTimeout = 20 * time.Second // longer than a busy machine delays a heartbeat
	a, b := s.Start("a"), s.Start("b")
	holder, buffered, listener := a.Dial(), a.Dial(), a.Dial()
	other, watcher := b.Dial(), b.Dial()
	ids := other.Enqueue("q", 2)
	held := holder.ClaimOne("q")
	listener.Must(kit.Msg{"op": "hello", "events": []string{"lost"}})
	silent := listener.ClaimOne("q")
	watcher.WaitDelivered(held, silent)

	at := suspend(s, a)
	// The workers' requests wait in the socket.
	holder.Post(kit.Msg{"op": "ack", "lease": held.Lease})
	buffered.Post(kit.Msg{"op": "claim", "queue": "q", "max": 10, "wait_ms": 600_000})
	var taken []kit.Job
	for range ids {
		taken = append(taken, other.ClaimOne("q"))
	}
	kit.Figure(t, "a suspended sidecar's jobs are with the second one after %v (sidecar_timeout %v)", kit.Since(at).Round(time.Millisecond), s.SidecarTimeout)
	fresh := watcher.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": "fresh"}).Job.ID
	a.Signal(syscall.SIGCONT)

	r := holder.Next()
	if r.Error != nil && r.Error.Code == "unavailable" { // it had waited too long when the sidecar continued
		r = holder.Exchange(kit.Msg{"op": "ack", "lease": held.Lease})
	}
	holder.WantError("lease_lost", "the ack of a job that another worker got", r)
	if r := listener.Next(); r.Event != "lost" || !slices.Equal(r.Leases, []string{silent.Lease}) {
		t.Errorf("the session that claimed it got %+v, want the event lost with its lease", r)
	}
	r = buffered.Next()
	if len(r.Jobs) != 1 || r.Jobs[0].ID != fresh {
		t.Fatalf("the claim that waited through the suspension got %+v %v, want the job %s", r.Jobs, r.Error, fresh)
	}
	view := watcher.Must(kit.Msg{"op": "peek", "queue": "q", "ids": ids}).Jobs
	for _, j := range view {
		if j.State != "claimed" || len(j.Errors) != 1 || j.Errors[0].Cause != "sidecar_lost" {
			t.Errorf("a job that another worker got shows %+v, want it claimed, with one sidecar_lost", j)
		}
	}
	for _, j := range taken {
		if j.Attempt != 2 {
			t.Errorf("job %s was delivered again as attempt %d, want 2", j.ID, j.Attempt)
		}
		other.Must(kit.Msg{"op": "ack", "lease": j.Lease})
	}
	buffered.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestSuspendedAlone checks that a lease is still valid if no sidecar took the job back.
func TestSuspendedAlone(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.SidecarTimeout = 20 * time.Second
	a := s.Start("a")
	c := a.Dial()
	c.Enqueue("q", 1)
	held := c.ClaimOne("q")
	identity := a.Identity()
	suspend(s, a)
	testwait.Until(t, "its lease has ended by the database", func() bool {
		return len(s.Rows("SELECT 1 FROM qsidecar_sidecars WHERE sidecar = ? AND expires_at < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)", identity)) == 1
	})
	a.Signal(syscall.SIGCONT)
	c.Must(kit.Msg{"op": "ack", "lease": held.Lease})
}
