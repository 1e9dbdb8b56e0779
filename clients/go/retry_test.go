package qsidecar_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// refuse answers with an error and the time after which to try again.
func (p *peer) refuse(req *protocol.Request, code protocol.Code, again time.Duration) {
	p.t.Helper()
	e := protocol.Errorf(code, "error of the test")
	e.RetryMS = protocol.Some(again.Milliseconds())
	p.reply(req, &protocol.Reply{Error: e})
}

// piped returns a client in a synctest bubble and the server's ends of its connections.
func piped(t *testing.T) (*qsidecar.Client, <-chan *peer) {
	t.Helper()
	peers := make(chan *peer, 8)
	c, err := qsidecar.Dial(t.Context(), qsidecar.Options{Socket: "piped", Dial: func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		p := &peer{t: t, conn: far, in: protocol.NewReader(far, 1<<20)}
		go func() {
			// A client that is being closed can dial once more and send nothing.
			if hello, err := p.next(); err == nil && p.welcome(hello) == nil {
				peers <- p
			}
		}()
		return near, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, peers
}

func TestSettleWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peers := piped(t)
		p := <-peers
		hold(t, c, p, "L1")
		done := ack(t.Context(), c, "L1")
		p.refuse(p.expect(protocol.OpAck), protocol.CodeUnavailable, 30*time.Millisecond)
		start := time.Now()
		p.settled(p.expect(protocol.OpAck), "acked", 1)
		if took := time.Since(start); took != 30*time.Millisecond {
			t.Errorf("sent again after %v, want retry_ms, 30ms", took)
		}
		if _, err := done.wait(t); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitContinuesAfterAReconnect checks that a claim that is sent again waits only for the rest of
// its time.
func TestWaitContinuesAfterAReconnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peers := piped(t)
		p := <-peers
		began := time.Now()
		got := claim(t.Context(), c, qsidecar.Claim{Wait: time.Minute})
		p.expect(protocol.OpClaim)
		time.Sleep(20 * time.Second)
		p.close()
		p = <-peers
		again := p.expect(protocol.OpClaim)
		if want := (time.Minute - time.Since(began)).Milliseconds(); again.WaitMS < want || again.WaitMS > 40_000 {
			t.Errorf("waits %d ms more, want the %d ms that are left of a minute", again.WaitMS, want)
		}
		p.jobs(again, "L1")
		if jobs, err := got.wait(t); err != nil || len(jobs) != 1 {
			t.Errorf("claimed %v, %v; want one job", jobs, err)
		}
	})
}

// If the first request was certainly not carried out, lease_lost is the whole answer.
func TestLostAfterUnavailable(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	done := ack(t.Context(), c, "L1")
	p.refuse(p.expect(protocol.OpAck), protocol.CodeUnavailable, 0)
	p.fail(p.expect(protocol.OpAck), protocol.CodeLeaseLost)
	if _, err := done.wait(t); !qsidecar.IsLost(err) {
		t.Errorf("%v, want lease_lost", err)
	}
}

func TestUnknownOutcomeOfASettle(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	done := ack(t.Context(), c, "L1")
	p.fail(p.expect(protocol.OpAck), protocol.CodeUnknownOutcome)
	p.refuse(p.expect(protocol.OpAck), protocol.CodeUnavailable, 0)
	p.fail(p.expect(protocol.OpAck), protocol.CodeLeaseLost)
	var either *qsidecar.SettledOrLostError
	if _, err := done.wait(t); !errors.As(err, &either) {
		t.Errorf("%v, want a SettledOrLostError: the first try may have settled it", err)
	}
}

func TestUnknownOutcomeOfAnEnqueue(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	enqueue := func(key string) *pending[protocol.EnqueuedJob] {
		return later(func() (protocol.EnqueuedJob, error) {
			return c.Enqueue(t.Context(), protocol.NewJob{Queue: "q", Key: key})
		})
	}
	keyed := enqueue("k")
	p.fail(p.expect(protocol.OpEnqueue), protocol.CodeUnknownOutcome)
	p.reply(p.expect(protocol.OpEnqueue), &protocol.Reply{OK: true, Enqueued: &protocol.EnqueuedJob{ID: "7"}})
	if got, err := keyed.wait(t); err != nil || got.ID != "7" {
		t.Errorf("with a key: %+v, %v; want job 7", got, err)
	}
	bare := enqueue("")
	p.fail(p.expect(protocol.OpEnqueue), protocol.CodeUnknownOutcome)
	if _, err := bare.wait(t); !qsidecar.IsCode(err, protocol.CodeUnknownOutcome) || !errors.Is(err, qsidecar.ErrUnknownOutcome) {
		t.Errorf("without a key: %v, want unknown_outcome, which is ErrUnknownOutcome", err)
	}
	down := enqueue("k")
	p.refuse(p.expect(protocol.OpEnqueue), protocol.CodeUnavailable, 0)
	if _, err := down.wait(t); !qsidecar.IsCode(err, protocol.CodeUnavailable) {
		t.Errorf("unavailable: %v, want the error at once", err)
	}
}

// A claim waits as long as requested, also if the sidecar drains in between.
func TestClaimWaitsThroughADrain(t *testing.T) {
	t.Parallel()
	s, c, p := connected(t, qsidecar.Options{})
	got := claim(t.Context(), c, qsidecar.Claim{Wait: time.Minute})
	p.fail(p.expect(protocol.OpClaim), protocol.CodeDraining)
	p.fail(p.expect(protocol.OpClaim), protocol.CodeBusy)
	p.close()
	p = s.accept()
	again := p.expect(protocol.OpClaim)
	if again.WaitMS >= 60_000 {
		t.Errorf("waits %d ms, want what is left of a minute", again.WaitMS)
	}
	p.jobs(again, "L1")
	if jobs, err := got.wait(t); err != nil || len(jobs) != 1 {
		t.Errorf("claimed %v, %v; want one job", jobs, err)
	}
	at := claim(t.Context(), c, qsidecar.Claim{})
	p.fail(p.expect(protocol.OpClaim), protocol.CodeDraining)
	if _, err := at.wait(t); !qsidecar.IsCode(err, protocol.CodeDraining) {
		t.Errorf("one that does not wait: %v, want draining", err)
	}
}

func TestRetryIsOptionalAndEnds(t *testing.T) {
	t.Parallel()
	for _, o := range []qsidecar.Options{{Retry: -1}, {Retry: time.Second}} {
		_, c, p := connected(t, o)
		done := ack(t.Context(), c, "L1")
		p.refuse(p.expect(protocol.OpAck), protocol.CodeUnavailable, 2*time.Second)
		if _, err := done.wait(t); !qsidecar.IsCode(err, protocol.CodeUnavailable) {
			t.Errorf("Retry %v: %v, want unavailable", o.Retry, err)
		}
	}
}
