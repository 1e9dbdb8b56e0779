package qsidecar_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// settleWith returns the settle of a lease that also claims from the queue q.
func settleWith(lease string) protocol.Request {
	return protocol.Request{Op: protocol.OpAck, Lease: lease, Claim: &protocol.NextClaim{Queue: "q"}}
}

// claimedBeside answers a settle with an error, and with the jobs of its claim.
func (p *peer) claimedBeside(req *protocol.Request, code protocol.Code, leases ...string) {
	p.t.Helper()
	rep := &protocol.Reply{Error: protocol.Errorf(code, "error of the test")}
	for _, l := range leases {
		rep.Jobs = append(rep.Jobs, protocol.Job{ID: "j" + l, Queue: "q", Lease: l, Attempt: 1, MaxAttempts: 20})
	}
	p.reply(req, rep)
}

// A worker that waits for its settles gets the next job with the reply to one, and claims with a wait only if
// there is none. It does so with SyncAck, and if the sidecar's last reply has join.
func TestWorkerClaimsWithItsSettle(t *testing.T) {
	t.Parallel()
	for name, sync := range map[string]bool{"SyncAck": true, "join": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ran []string
			w := work(t, qsidecar.Worker{SyncAck: sync, Handler: func(_ context.Context, j *qsidecar.Job) error {
				if ran = append(ran, j.Lease); j.Lease == "L2" {
					return &qsidecar.DeadError{}
				}
				return nil
			}})
			w.join = !sync
			w.jobs(w.expect(protocol.OpClaim), "L1")
			for _, op := range []protocol.Op{protocol.OpAck, protocol.OpNack} {
				req := w.expect(op)
				if req.Claim == nil || !slices.Equal(req.Claim.Queues, []string{"q"}) {
					t.Errorf("the claim of %+v is not from q", req)
				}
				w.jobs(req, map[protocol.Op]string{protocol.OpAck: "L2", protocol.OpNack: "L3"}[op])
			}
			w.claimedBeside(w.expect(protocol.OpAck), protocol.CodeLeaseLost, "L4")
			w.jobs(w.expect(protocol.OpAck))
			if c := w.expect(protocol.OpClaim); c.WaitMS == 0 {
				t.Error("the claim after an empty reply does not wait")
			} else {
				w.stop()
				w.ok(w.expect(protocol.OpCancelClaim))
				w.jobs(c)
			}
			w.stopped()
			if want := []string{"L1", "L2", "L3", "L4"}; !slices.Equal(ran, want) {
				t.Errorf("it ran %v, want %v", ran, want)
			}
		})
	}
}

// A worker that is stopped while it settles returns the job that comes with the reply.
func TestStoppedWorkerReturnsTheNextJob(t *testing.T) {
	t.Parallel()
	w := work(t, qsidecar.Worker{SyncAck: true, Handler: func(context.Context, *qsidecar.Job) error { return nil }})
	w.jobs(w.expect(protocol.OpClaim), "L1")
	req := w.expect(protocol.OpAck)
	w.stop()
	w.jobs(req, "L2")
	back := w.expect(protocol.OpNack)
	if back.Lease != "L2" || !back.Snooze {
		t.Errorf("it sent %+v, want L2 snoozed", back)
	}
	w.settled(back, "nacked", 1)
	w.stopped()
}

// The client repeats a settle that failed without its claim if that claim got jobs. It returns and holds these.
func TestRetriedSettleKeepsItsJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peers := piped(t)
		p := <-peers
		hold(t, c, p, "L1")
		got := call(t.Context(), c, settleWith("L1"))
		p.refuse(p.expect(protocol.OpAck), protocol.CodeUnavailable, time.Millisecond)
		second := p.expect(protocol.OpAck)
		if second.Claim == nil {
			t.Error("the second try does not claim, although the first got no jobs")
		}
		p.claimedBeside(second, protocol.CodeUnavailable, "L2")
		third := p.expect(protocol.OpAck)
		if third.Claim != nil {
			t.Error("the third try claims again")
		}
		p.settled(third, "acked", 1)
		rep, err := got.wait(t)
		if err != nil || len(rep.Jobs) != 1 || rep.Jobs[0].Lease != "L2" || !c.Holds("L2") || c.Holds("L1") {
			t.Errorf("got %+v, %v, and holds L1 %t, L2 %t", rep, err, c.Holds("L1"), c.Holds("L2"))
		}
	})
}

// The jobs of a settle whose caller left go back.
func TestAbandonedSettleReturnsItsJobs(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	hold(t, c, p, "L1")
	ctx, cancel := context.WithCancel(t.Context())
	got := call(ctx, c, settleWith("L1"))
	req := p.expect(protocol.OpAck)
	cancel()
	if _, err := got.wait(t); err == nil {
		t.Error("the call returned no error")
	}
	p.jobs(req, "L2")
	if back := p.expect(protocol.OpNack); !slices.Equal(back.Leases, []string{"L2"}) || !back.Snooze {
		t.Errorf("it sent %+v, want L2 snoozed", back)
	}
}
