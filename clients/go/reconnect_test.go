package qsidecar_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// A worker that is busy and makes no call keeps its jobs during a restart.
func TestReconnectBindsLeases(t *testing.T) {
	t.Parallel()
	lost := make(chan []string, 1)
	s, c, p := connected(t, qsidecar.Options{OnLost: func(l []string, _ string) { lost <- l }})
	hold(t, c, p, "L1", "L2", "L3")
	done := ack(t.Context(), c, "L3")
	p.settled(p.expect(protocol.OpAck), "acked", 1)
	if _, err := done.wait(t); err != nil {
		t.Fatal(err)
	}
	s.down()
	p.close()
	s.up()
	p = s.accept()
	bind := p.expect(protocol.OpExtend)
	slices.Sort(bind.Leases)
	if !bind.Bind || !slices.Equal(bind.Leases, []string{"L1", "L2"}) {
		t.Errorf("bound with %+v, want bind of L1 and L2", bind)
	}
	p.settled(bind, "extended", 1, "L2")
	if got := testwait.Receive(t, "a value", lost); !slices.Equal(got, []string{"L2"}) {
		t.Errorf("reported as lost: %v, want L2", got)
	}
	// The client forgets the lost lease. It binds the other one to the next connection too.
	p.close()
	p = s.accept()
	if bind := p.expect(protocol.OpExtend); !slices.Equal(bind.Leases, []string{"L1"}) {
		t.Errorf("then bound %v, want L1", bind.Leases)
	}
}

func TestBindRepeatsAfterErrors(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	hold(t, c, p, "L1")
	p.close()
	p = s.accept()
	p.fail(p.expect(protocol.OpExtend), protocol.CodeUnavailable)
	p.settled(p.expect(protocol.OpExtend), "extended", 1)
	ping := call(t.Context(), c, protocol.Request{Op: protocol.OpPing})
	p.ok(p.expect(protocol.OpPing)) // and sends no second extend
	if _, err := ping.wait(t); err != nil {
		t.Error(err)
	}
}

// A client that ends during a restart of the sidecar returns its jobs. A bye on the new connection
// returns only the jobs that are bound to it.
func TestByeDuringARestart(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	hold(t, c, p, "L1")
	s.down()
	p.close()
	bye := later(func() (struct{}, error) { return struct{}{}, c.Bye(t.Context()) })
	s.up()
	p = s.accept()
	for bound, back := false, false; !back; {
		switch req, err := p.next(); {
		case err != nil:
			t.Fatal(err)
		case req.Op == protocol.OpExtend && req.Bind:
			bound = true
			p.settled(req, "extended", 1)
		case req.Op == protocol.OpNack && req.Snooze:
			back = true
			p.settled(req, "nacked", 1)
		case req.Op == protocol.OpBye && bound:
			back = true
			p.ok(req)
		default:
			t.Fatalf("the client sent %+v before the job was bound", req)
		}
	}
	if _, err := bye.wait(t); err != nil {
		t.Error(err)
	}
}

func TestTimedLeasesAreNotBound(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	got := claim(t.Context(), c, qsidecar.Claim{Lease: time.Minute})
	p.jobs(p.expect(protocol.OpClaim), "timed")
	if _, err := got.wait(t); err != nil {
		t.Fatal(err)
	}
	hold(t, c, p, "session")
	p.close()
	p = s.accept()
	if bind := p.expect(protocol.OpExtend); !slices.Equal(bind.Leases, []string{"session"}) {
		t.Errorf("bound %v, want only the session lease", bind.Leases)
	}
}

func TestExtendUpdatesLeases(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	hold(t, c, p, "becomes timed")
	for _, e := range []struct {
		leases []string
		how    qsidecar.Extend
		lost   []string
	}{
		{[]string{"becomes timed"}, qsidecar.Extend{Lease: time.Minute}, nil},
		{[]string{"becomes bound", "was lost"}, qsidecar.Extend{Bind: true}, []string{"was lost"}},
	} {
		got := later(func() ([]string, error) { return c.Extend(t.Context(), e.leases, e.how) })
		p.settled(p.expect(protocol.OpExtend), "extended", 1, e.lost...)
		if lost, err := got.wait(t); err != nil || !slices.Equal(lost, e.lost) {
			t.Fatalf("extend %v: lost %v, %v; want %v", e.leases, lost, err, e.lost)
		}
	}
	p.close()
	p = s.accept()
	if bind := p.expect(protocol.OpExtend); !slices.Equal(bind.Leases, []string{"becomes bound"}) {
		t.Errorf("bound %v, want only the one that was bound before", bind.Leases)
	}
}

// OnLost does not get a lease whose settle is in progress when the client binds after a reconnect:
// the first settle is possibly why it is lost.
func TestBindDoesNotReportLeasesBeingSettled(t *testing.T) {
	t.Parallel()
	lost := make(chan []string, 2)
	s, c, p := connected(t, qsidecar.Options{OnLost: func(l []string, _ string) { lost <- l }})
	hold(t, c, p, "settling", "gone")
	done := ack(t.Context(), c, "settling")
	p.expect(protocol.OpAck)
	p.close()
	p = s.accept()
	for range 2 { // the bind and the repeated settle, in any order
		switch req, err := p.next(); {
		case err != nil:
			t.Fatal(err)
		case req.Op == protocol.OpExtend:
			p.settled(req, "extended", 0, "settling", "gone")
		default:
			p.fail(req, protocol.CodeLeaseLost)
		}
	}
	var either *qsidecar.SettledOrLostError
	if _, err := done.wait(t); !errors.As(err, &either) {
		t.Errorf("the ack: %v, want a SettledOrLostError", err)
	}
	if got := testwait.Receive(t, "a value", lost); !slices.Equal(got, []string{"gone"}) {
		t.Errorf("reported as lost: %v, want only the lease without a settle in progress", got)
	}
}

// resent breaks the connection after a request arrived, and returns the repeated request on the
// next connection.
func resent(t *testing.T, s *server, p *peer, op protocol.Op) (*peer, *protocol.Request) {
	t.Helper()
	p.expect(op)
	p.close()
	p = s.accept()
	return p, p.expect(op)
}

func TestSettleIsSentAgain(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	done := ack(t.Context(), c, "L1")
	p, again := resent(t, s, p, protocol.OpAck)
	p.settled(again, "acked", 1)
	if _, err := done.wait(t); err != nil {
		t.Errorf("acked by the second try: %v", err)
	}

	done = ack(t.Context(), c, "L2")
	p, again = resent(t, s, p, protocol.OpAck)
	p.fail(again, protocol.CodeLeaseLost)
	_, err := done.wait(t)
	var either *qsidecar.SettledOrLostError
	if !errors.As(err, &either) || qsidecar.IsLost(err) || !slices.Equal(either.Leases, []string{"L2"}) {
		t.Errorf("lease_lost at the second try: %v, want a SettledOrLostError of L2", err)
	}

	many := later(func() ([]string, error) { return c.NackMany(t.Context(), []string{"L3", "L4"}, qsidecar.Nack{}) })
	p, again = resent(t, s, p, protocol.OpNack)
	p.settled(again, "nacked", 1, "L4")
	lost, err := many.wait(t)
	if !errors.As(err, &either) || !slices.Equal(either.Leases, []string{"L4"}) || !slices.Equal(lost, []string{"L4"}) {
		t.Errorf("one lost at the second try: %v, %v; want L4 and a SettledOrLostError of it", lost, err)
	}
}

func TestEnqueueIsSentAgainOnlyWithKeys(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	keyed := protocol.NewJob{Queue: "q", Key: "k"}
	bare := protocol.NewJob{Queue: "q"}

	one := later(func() (protocol.EnqueuedJob, error) { return c.Enqueue(t.Context(), keyed) })
	p, again := resent(t, s, p, protocol.OpEnqueue)
	p.reply(again, &protocol.Reply{OK: true, Enqueued: &protocol.EnqueuedJob{ID: "7", Duplicate: true, State: protocol.StateReady}})
	if got, err := one.wait(t); err != nil || got.ID != "7" || !got.Duplicate {
		t.Errorf("with a key: %+v, %v; want the duplicate 7", got, err)
	}

	one = later(func() (protocol.EnqueuedJob, error) { return c.Enqueue(t.Context(), bare) })
	p.expect(protocol.OpEnqueue)
	p.close()
	if _, err := one.wait(t); !errors.Is(err, qsidecar.ErrUnknownOutcome) {
		t.Errorf("without a key: %v, want ErrUnknownOutcome", err)
	}

	p = s.accept()
	many := later(func() ([]protocol.EnqueuedJob, error) {
		return c.EnqueueMany(t.Context(), []protocol.NewJob{keyed, bare})
	})
	p.expect(protocol.OpEnqueue)
	p.close()
	if _, err := many.wait(t); !errors.Is(err, qsidecar.ErrUnknownOutcome) {
		t.Errorf("one of two without a key: %v, want ErrUnknownOutcome", err)
	}

	p = s.accept()
	reclaim := later(func() (int64, error) { return c.Reclaim(t.Context(), "q", []string{"1"}) })
	p.expect(protocol.OpReclaim)
	p.close()
	if _, err := reclaim.wait(t); !errors.Is(err, qsidecar.ErrUnknownOutcome) {
		t.Errorf("reclaim: %v, want ErrUnknownOutcome", err)
	}
}

func TestCallsWaitForTheReconnect(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	s.down()
	p.close()
	ctx, cancel := context.WithCancel(t.Context())
	// The client may not have noticed yet. It must repeat an ack that it sent into the old
	// connection.
	gone := ack(ctx, c, "abandoned")
	kept := ack(t.Context(), c, "kept")
	cancel()
	if _, err := gone.wait(t); !errors.Is(err, context.Canceled) {
		t.Errorf("the call whose context ended: %v", err)
	}
	s.up()
	p = s.accept()
	req := p.expect(protocol.OpAck)
	if req.Lease != "kept" {
		t.Fatalf("the client sent the abandoned ack of %q", req.Lease)
	}
	p.settled(req, "acked", 1)
	if _, err := kept.wait(t); err != nil {
		t.Errorf("the call that waited: %v", err)
	}
}

// An error without an id is about the connection, which closes. If the client repeated the request
// that caused it, the next connection would close too.
func TestRequestThatBreaksTheConnectionIsNotSentAgain(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	done := ack(t.Context(), c, "L1")
	p.expect(protocol.OpAck)
	p.send(&protocol.Reply{Error: protocol.Errorf(protocol.CodeBadFrame, "error of the test")})
	p.close()
	if _, err := done.wait(t); !qsidecar.IsCode(err, protocol.CodeBadFrame) {
		t.Errorf("ack: %v, want bad_frame", err)
	}
	p = s.accept()
	ping := call(t.Context(), c, protocol.Request{Op: protocol.OpPing})
	p.ok(p.expect(protocol.OpPing))
	if _, err := ping.wait(t); err != nil {
		t.Error(err)
	}
}

// A sidecar that restarts can accept a connection, read the hello and exit.
func TestReconnectContinuesAfterAHelloWithoutReply(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	hold(t, c, p, "L1")
	p.close()
	for range 3 {
		half := s.acceptRaw()
		half.expect(protocol.OpHello)
		half.close()
	}
	p = s.accept()
	p.settled(p.expect(protocol.OpExtend), "extended", 1)
}
