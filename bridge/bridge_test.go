package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLifeOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		id := c.call(`{"op":"enqueue","queue":"q","payload":"hi"}`).Job.ID
		j := c.claim1("q")
		if j.ID != id || j.Payload != "hi" || j.Attempt != 1 {
			t.Fatalf("claimed %+v, want job %s with payload hi, attempt 1", j, id)
		}
		if got := c.call(`{"op":"ack","lease":%q}`, j.Lease).Acked; got != 1 {
			t.Fatalf("acked %d, want 1", got)
		}
		c.refused("lease_lost", `{"op":"ack","lease":%q}`, j.Lease)
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 0 {
			t.Fatalf("claimed %+v from an empty queue", r.Jobs)
		}
	})
}

func TestHangUpFreesTheJobAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		first, second := s.dial(t), s.dial(t)
		first.call(`{"op":"enqueue","queue":"q"}`)
		j := first.claim1("q")
		second.send(`{"op":"claim","queue":"q","wait_ms":20000}`)
		synctest.Wait()
		began := time.Now()
		first.close()
		r := second.receive()
		if len(r.Jobs) != 1 || r.Jobs[0].ID != j.ID || r.Jobs[0].Attempt != 2 || r.Jobs[0].LastError == "" {
			t.Fatalf("got %+v, want job %s again, attempt 2, with its last error", r.Jobs, j.ID)
		}
		if took := time.Since(began); took > longestLinger { // only the timer of the group commit can run
			t.Errorf("a killed worker's job took %v to be free", took)
		}
		v := second.call(`{"op":"peek","queue":"q","ids":[%q]}`, j.ID).Jobs[0]
		if len(v.Errors) != 1 || v.Errors[0].Cause != "disconnected" {
			t.Errorf("errors %+v, want one, disconnected", v.Errors)
		}
	})
}

func TestEndOfInputUsesUpNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, other := s.dial(t), s.dial(t)
		other.call(`{"op":"enqueue","queue":"q"}`)
		c.send(`{"op":"claim","queue":"q","wait_ms":5000}`)
		if err := c.conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if r := c.receive(); len(r.Jobs) != 1 {
			t.Fatalf("got %+v, want the job: everything read is answered", r)
		}
		if _, err := c.line(); err == nil {
			t.Fatal("the server did not close")
		}
		if j := other.claim1("q"); j.Attempt != 1 {
			t.Errorf("attempt %d, want 1: the end of input uses up no attempt", j.Attempt)
		}
	})
}

func TestRequestsBeforeAHangUpAreCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, other := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		j := c.claim1("q")
		c.send(`{"op":"ack","id":1,"lease":%q}`, j.Lease)
		c.send(`{"op":"enqueue","id":2,"queue":"after"}`)
		c.close()
		other.claim1("after")
		if r := other.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 0 {
			t.Errorf("the job was delivered again although its ack was read before the hang-up")
		}
	})
}

// TestLeaseIsSelfContained shows that another session can ack a lease, given only its text.
func TestLeaseIsSelfContained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, other := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		j := c.claim1("q")
		other.call(`{"op":"ack","lease":%q}`, j.Lease)
		other.refused("lease_lost", `{"op":"ack","lease":"garbage"}`)
		other.refused("lease_lost", `{"op":"nack","lease":"1.AAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAA.1"}`)
		r := other.call(`{"op":"ack","leases":["garbage"]}`)
		if r.Acked != 0 || len(r.Lost) != 1 {
			t.Errorf("got %+v, want 0 acked, 1 lost", r)
		}
	})
}

func TestWaitingClaimAnswersAtTheEnqueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, producer := s.dial(t), s.dial(t)
		c.send(`{"op":"claim","queues":["a","b"],"max":10,"wait_ms":30000}`)
		eventually(t, func() bool { return s.pipeline().Snapshot().IdleClaims == 1 })
		began := time.Now()
		producer.call(`{"op":"enqueue","queue":"b","payload":"x"}`)
		if r := c.receive(); len(r.Jobs) != 1 || r.Jobs[0].Queue != "b" {
			t.Fatalf("got %+v, want the job of b", r.Jobs)
		}
		if took := time.Since(began); took > longestLinger {
			t.Errorf("the claim was answered %v after the enqueue", took)
		}
	})
}

func TestCancelAndBye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, other := s.dial(t), s.dial(t)
		c.send(`{"op":"claim","id":"w","queue":"q","wait_ms":60000}`)
		c.send(`{"op":"cancel_claim","id":"c","request":"w"}`)
		got := map[any]reply{}
		for range 2 {
			r := c.receive()
			got[r.ID] = r
		}
		if r := got["w"]; !r.OK || len(r.Jobs) != 0 {
			t.Errorf("cancelled claim: %+v, want ok and no jobs", r)
		}
		c.call(`{"op":"enqueue","queue":"q"}`)
		c.claim1("q")
		c.call(`{"op":"bye"}`)
		if _, err := c.line(); err == nil {
			t.Error("the connection is open after bye")
		}
		if j := other.claim1("q"); j.Attempt != 1 {
			t.Errorf("attempt %d after bye, want 1", j.Attempt)
		}
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		holder, waiter := s.dial(t), s.dial(t)
		holder.call(`{"op":"hello","events":["draining"]}`)
		holder.call(`{"op":"enqueue","queue":"q"}`)
		j := holder.claim1("q")
		waiter.send(`{"op":"claim","queue":"q","wait_ms":60000}`)
		eventually(t, func() bool { return s.pipeline().Snapshot().IdleClaims == 1 })
		s.stop()
		if r := waiter.receive(); r.Error.Code != "draining" {
			t.Errorf("waiting claim: %+v, want draining", r)
		}
		if r := holder.receive(); r.Event != "draining" {
			t.Errorf("got %+v, want the event draining", r)
		}
		waiter.refused("draining", `{"op":"claim","queue":"q"}`)
		waiter.call(`{"op":"enqueue","queue":"q"}`)
		time.Sleep(DefaultDrainTimeout - time.Second)
		holder.call(`{"op":"ack","lease":%q}`, j.Lease)
		if err := s.wait(t); err != nil {
			t.Fatal(err)
		}
	})
}

// TestDrainTimeout shows that a drain stops waiting for held jobs after its timeout, and that they stay claimed.
func TestDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		c.claim1("q")
		began := time.Now()
		s.stop()
		if err := s.wait(t); err != nil || time.Since(began) != DefaultDrainTimeout {
			t.Errorf("it ended with %v after %v, want after %v", err, time.Since(began), DefaultDrainTimeout)
		}
		if q := start(t, options(db)).dial(t).call(`{"op":"stats","queue":"q"}`).Queues[0]; q["claimed"] != 1.0 {
			t.Errorf("after the end: %v", q)
		}
	})
}

// TestDrainOfAClaimBeingAsked shows a drain that begins while the first commit of a claim is under way.
func TestDrainOfAClaimBeingAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		gate := make(chan struct{})
		s := start(t, options(db))
		c := s.dial(t)
		db.block.Store(&gate)
		c.send(`{"op":"claim","queue":"q","wait_ms":60000}`)
		eventually(t, func() bool { return db.blocked.Load() == 1 })
		s.stop()
		eventually(t, func() bool {
			return s.pipeline().Snapshot().Stopped
		})
		close(gate)
		if r := c.receive(); r.Error.Code != "draining" {
			t.Errorf("got %+v, want draining", r)
		}
	})
}

// TestRestartKeepsLeases shows that jobs that were held at an orderly exit stay reserved for the restart grace, and
// are ready after that.
func TestRestartKeepsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = 2 * time.Minute
		db := memory.New()
		o := options(db)
		o.Databases["main"] = Database{Backend: db, RestartGrace: grace}
		o.DrainTimeout = -1
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"},{"queue":"q"}]}`)
		a, b, left := c.claim1("q"), c.claim1("q"), c.claim1("q")
		ended := time.Now()
		s.stop()
		if err := s.wait(t); err != nil {
			t.Fatal(err)
		}
		s2 := start(t, o)
		c2, other := s2.dial(t), s2.dial(t)
		time.Sleep(grace - time.Second)
		if r := other.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 0 {
			t.Fatalf("a restart delivered %+v again", r.Jobs)
		}
		c2.call(`{"op":"ack","lease":%q}`, a.Lease)
		if r := c2.call(`{"op":"extend","lease":%q,"bind":true}`, b.Lease); r.Extended != 1 {
			t.Fatalf("extend: %+v", r)
		}
		if j := other.claim1("q"); j.ID != left.ID || j.Attempt != 2 {
			t.Errorf("after the grace: %+v, want job %s, whose worker did not come back", j, left.ID)
		}
		if took := time.Since(ended); took < grace || took > grace+DefaultSidecarTimeout {
			t.Errorf("it was free after %v, want from %v on", took, grace)
		}
		c2.close()
		if j := other.claim1("q"); j.ID != b.ID || j.Attempt != 2 {
			t.Errorf("got %+v, want the bound job %s free at the hang-up of its new connection", j, b.ID)
		}
	})
}
