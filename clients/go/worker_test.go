package qsidecar_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// worked is a Worker that runs on a fake sidecar.
type worked struct {
	*peer
	stop context.CancelFunc
	end  *pending[struct{}]
}

func work(t *testing.T, w qsidecar.Worker) *worked {
	t.Helper()
	s := listen(t)
	w.Queues, w.Options.Socket, w.Logger = []string{"q"}, s.socket, slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	end := later(func() (struct{}, error) { return struct{}{}, w.Run(ctx) })
	t.Cleanup(stop)
	return &worked{peer: s.accept(), stop: stop, end: end}
}

// stopped ends the worker and answers its last requests.
func (w *worked) stopped() {
	w.t.Helper()
	w.finish(nil)
}

// finish ends the worker. It answers its settles, those of all and its last requests.
func (w *worked) finish(settles []*protocol.Request) {
	w.t.Helper()
	w.stop()
	for _, req := range settles {
		w.settled(req, string(req.Op)+"ed", 1)
	}
	for {
		req, err := w.next()
		if err != nil {
			break
		}
		rep := &protocol.Reply{ID: req.ID, OK: true}
		switch req.Op {
		case protocol.OpCancelClaim, protocol.OpBye:
		case protocol.OpClaim:
			rep.Jobs = []protocol.Job{}
		default:
			if settles == nil {
				w.t.Errorf("after the stop the worker sent %+v", req)
			}
			rep.Settled = &protocol.Settled{Verb: req.Op.Verb(), Count: 1, Lost: []string{}}
		}
		_, _ = w.conn.Write(protocol.Msgpack.AppendReply(nil, rep)) // a client that is closed does not wait for the reply
	}
	if _, err := w.end.wait(w.t); err != nil {
		w.t.Errorf("Run: %v, want nil", err)
	}
}

func TestWorkerSettlesByOutcome(t *testing.T) {
	t.Parallel()
	minute := &qsidecar.RetryError{Err: errors.New("busy there"), Delay: time.Minute}
	for name, c := range map[string]struct {
		handler qsidecar.Handler
		want    string
	}{
		"done":                           {func(context.Context, *qsidecar.Job) error { return nil }, `ack L1 "" 0 "" - false false`},
		"error":                          {func(context.Context, *qsidecar.Job) error { return errors.New("bo\x00o\xffm") }, "nack L1 \"\" 0 \"boo\uFFFDm\" - false false"},
		"retry":                          {func(context.Context, *qsidecar.Job) error { return fmt.Errorf("x: %w", minute) }, `nack L1 "" 0 "x: busy there" 60000 false false`},
		"not now":                        {func(context.Context, *qsidecar.Job) error { return &qsidecar.SnoozeError{} }, `nack L1 "" 0 "snooze" - false true`},
		"dead":                           {func(context.Context, *qsidecar.Job) error { return &qsidecar.DeadError{} }, `nack L1 "" 0 "dead" - true false`},
		"panic":                          {func(context.Context, *qsidecar.Job) error { panic("boom") }, `nack L1 "" 0 "panic: boom" - false false`},
		"panic of nil":                   {func(context.Context, *qsidecar.Job) error { panic(nothing()) }, `nack L1 "" 0 "panic: panic called with nil argument" - false false`},
		"an error that is a nil pointer": {func(context.Context, *qsidecar.Job) error { return (*fs.PathError)(nil) }, `nack L1 "" 0 "<nil>" - false false`},
		"a nil RetryError":               {func(context.Context, *qsidecar.Job) error { return (*qsidecar.RetryError)(nil) }, `nack L1 "" 0 "<nil>" - false false`},
		"a nil SnoozeError":              {func(context.Context, *qsidecar.Job) error { return (*qsidecar.SnoozeError)(nil) }, `nack L1 "" 0 "<nil>" - false false`},
		"snooze with a delay": {func(context.Context, *qsidecar.Job) error {
			return &qsidecar.SnoozeError{Err: errors.New("not yet"), Delay: time.Minute}
		}, `nack L1 "" 0 "not yet" 60000 false true`},
		"a nil DeadError":            {func(context.Context, *qsidecar.Job) error { return (*qsidecar.DeadError)(nil) }, `nack L1 "" 0 "<nil>" - false false`},
		"an error whose text panics": {func(context.Context, *qsidecar.Job) error { return unspeakable{} }, `nack L1 "" 0 "%!v(PANIC=Error method: no text)" - false false`},
		"goexit":                     {func(context.Context, *qsidecar.Job) error { runtime.Goexit(); return nil }, `nack L1 "" 0 "the handler ended its goroutine (runtime.Goexit)" - false false`},
		"with a result": {func(_ context.Context, j *qsidecar.Job) error {
			j.Result, j.Then = []byte("r"), []protocol.NewJob{{Queue: "next"}}
			return nil
		}, `ack L1 "r" 1 "" - false false`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := work(t, qsidecar.Worker{Handler: c.handler})
			w.jobs(w.expect(protocol.OpClaim), "L1")
			req, err := w.next()
			if err != nil {
				t.Fatal(err)
			}
			if got := outcome(req); got != c.want {
				t.Errorf("it sent %s, want %s", got, c.want)
			}
			w.settled(req, string(req.Op)+"ed", 1)
			w.stopped()
		})
	}
}

func nothing() any { return nil }

// unspeakable is an error whose Error method panics.
type unspeakable struct{}

func (unspeakable) Error() string { panic("no text") }

// outcome describes a settle: the first line of its error, its delay, dead, snooze.
func outcome(r *protocol.Request) string {
	delay := "-"
	if ms, ok := r.DelayMS.Get(); ok {
		delay = fmt.Sprint(ms)
	}
	first, _, _ := strings.Cut(r.Error, "\n")
	return fmt.Sprintf("%s %s %q %d %q %s %t %t", r.Op, r.Lease, r.Result, len(r.Enqueue), first, delay, r.Dead, r.Snooze)
}

// A job that runs when the worker is stopped is finished and acked. A job that arrives for an open
// claim is returned without using up an attempt.
func TestWorkerStopsGracefully(t *testing.T) {
	t.Parallel()
	begun, finish := make(chan struct{}), make(chan struct{})
	w := work(t, qsidecar.Worker{Concurrency: 2, Handler: func(ctx context.Context, _ *qsidecar.Job) error {
		close(begun)
		<-finish
		return ctx.Err()
	}})
	first, second := w.expect(protocol.OpClaim), w.expect(protocol.OpClaim)
	w.jobs(first, "L1")
	<-begun
	w.stop()
	cancel := w.expect(protocol.OpCancelClaim)
	w.jobs(second, "L2")
	w.ok(cancel)
	back := w.expect(protocol.OpNack)
	if back.Leases[0] != "L2" || !back.Snooze {
		t.Errorf("it sent %+v, want L2 snoozed", back)
	}
	w.settled(back, "nacked", 1)
	close(finish)
	ack := w.expect(protocol.OpAck)
	w.settled(ack, "acked", 1)
	w.stopped()
}

// A handler's context ends with its lease and with the grace. The Worker does not settle a lost
// job.
func TestWorkerEndsContexts(t *testing.T) {
	t.Parallel()
	causes, begun := make(chan error, 3), make(chan struct{}, 3) // one for each of three jobs
	w := work(t, qsidecar.Worker{Grace: time.Millisecond, Handler: func(ctx context.Context, _ *qsidecar.Job) error {
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return context.Cause(ctx)
	}})
	w.jobs(w.expect(protocol.OpClaim), "L1")
	<-begun
	w.send(&protocol.Reply{Event: protocol.EventLost, Lost: []string{"L1"}})
	if err := <-causes; !errors.Is(err, qsidecar.ErrLost) {
		t.Errorf("the context of a lost job ended with %v, want ErrLost", err)
	}
	w.jobs(w.expect(protocol.OpClaim), "L3") // and no settle of L1 before it
	<-begun
	w.send(&protocol.Reply{Event: protocol.EventLost, Lost: []string{"L3"}, Reason: protocol.ReasonCancelled})
	if err := <-causes; !errors.Is(err, qsidecar.ErrCancelled) || !errors.Is(err, qsidecar.ErrLost) {
		t.Errorf("the context of a cancelled job ended with %v, want ErrCancelled", err)
	}
	w.jobs(w.expect(protocol.OpClaim), "L2") // and no settle of L3 before it
	<-begun
	w.stop()
	if err := <-causes; !errors.Is(err, qsidecar.ErrStopped) {
		t.Errorf("the context ended with %v after the grace, want ErrStopped", err)
	}
	nack := w.expect(protocol.OpNack)
	if nack.Lease != "L2" || nack.Snooze {
		t.Errorf("it sent %+v, want a failed attempt of L2", nack)
	}
	w.settled(nack, "nacked", 1)
	w.stopped()
}

// If a lease is lost before its job starts, the job does not start, or its context ends at once.
func TestWorkerEndsAJobThatWasLostBeforeItsStart(t *testing.T) {
	t.Parallel()
	causes := make(chan error, 1)
	w := work(t, qsidecar.Worker{Handler: func(ctx context.Context, _ *qsidecar.Job) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil
	}})
	claim := w.expect(protocol.OpClaim)
	reply := protocol.Msgpack.AppendReply(nil, &protocol.Reply{ID: claim.ID, OK: true, Jobs: []protocol.Job{{ID: "j", Queue: "q", Lease: "L1", Attempt: 1, MaxAttempts: 20}}})
	reply = protocol.Msgpack.AppendReply(reply, &protocol.Reply{Event: protocol.EventLost, Lost: []string{"L1"}})
	if _, err := w.conn.Write(reply); err != nil {
		t.Fatal(err)
	}
	w.jobs(w.expect(protocol.OpClaim)) // and no settle of L1 before it
	w.stopped()
	select {
	case err := <-causes:
		if !errors.Is(err, qsidecar.ErrLost) {
			t.Errorf("the context ended with %v, want ErrLost", err)
		}
	default:
	}
}

// A result that the sidecar rejects makes the attempt fail.
func TestWorkerFailsAJobWhoseAckIsRejected(t *testing.T) {
	t.Parallel()
	w := work(t, qsidecar.Worker{Handler: func(_ context.Context, j *qsidecar.Job) error {
		j.Result = make([]byte, 1<<20)
		return nil
	}})
	w.jobs(w.expect(protocol.OpClaim), "L1")
	nack := w.each(protocol.OpNack, protocol.OpClaim)[protocol.OpNack]
	if !strings.Contains(nack.Error, "max_frame") {
		t.Errorf("the attempt's error is %q, want the limit named", nack.Error)
	}
	w.settled(nack, "nacked", 1)
	w.stopped()
}

// An outcome that the sidecar rejects makes the attempt fail. Otherwise the job would stay with
// this worker until the worker ends.
func TestWorkerFailsAJobWhoseNackIsRejected(t *testing.T) {
	t.Parallel()
	w := work(t, qsidecar.Worker{Handler: func(context.Context, *qsidecar.Job) error {
		return &qsidecar.RetryError{Err: errors.New("later"), Delay: time.Hour}
	}})
	w.jobs(w.expect(protocol.OpClaim), "L1")
	nack := w.expect(protocol.OpNack)
	w.expect(protocol.OpClaim)
	w.fail(nack, protocol.CodeBadRequest)
	nack = w.expect(protocol.OpNack)
	if got, want := outcome(nack), `nack L1 "" 0 "bad_request: error of the test" - false false`; got != want {
		t.Errorf("then it sent %s, want %s", got, want)
	}
	w.settled(nack, "nacked", 1)
	w.stopped()
}

func TestWorkerReturnsFatalErrors(t *testing.T) {
	t.Parallel()
	if err := new(qsidecar.Worker).Run(t.Context()); err == nil {
		t.Error("a worker without queues and handler ran")
	}
	w := work(t, qsidecar.Worker{Handler: func(context.Context, *qsidecar.Job) error { return nil }})
	w.fail(w.expect(protocol.OpClaim), protocol.CodeUnknownQueue)
	if _, err := w.end.wait(t); !qsidecar.IsCode(err, protocol.CodeUnknownQueue) {
		t.Errorf("Run: %v, want the sidecar's unknown_queue", err)
	}
	w = work(t, qsidecar.Worker{Drain: true, Handler: func(context.Context, *qsidecar.Job) error { return nil }})
	claim := w.expect(protocol.OpClaim)
	if claim.WaitMS != 0 {
		t.Errorf("a worker that drains waits %d ms for jobs", claim.WaitMS)
	}
	w.jobs(claim)
	if _, err := w.end.wait(t); err != nil {
		t.Errorf("Run: %v, want nil when no job is ready", err)
	}
}

// A worker that starts before its sidecar waits for it.
func TestWorkerWaitsForASidecar(t *testing.T) {
	t.Parallel()
	s := listen(t)
	s.down()
	logged := make(chan struct{}, 1) // one, because it is logged once
	log := slog.New(slog.NewTextHandler(signalling(logged), nil))
	w := qsidecar.Worker{Queues: []string{"q"}, Logger: log, Options: qsidecar.Options{Socket: s.socket},
		Handler: func(context.Context, *qsidecar.Job) error { return nil }}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	end := later(func() (struct{}, error) { return struct{}{}, w.Run(ctx) })
	<-logged
	s.up()
	p := s.accept()
	p.jobs(p.expect(protocol.OpClaim))
	(&worked{peer: p, stop: stop, end: end}).stopped()
}

// signalling is a writer that signals its first line.
type signalling chan struct{}

func (s signalling) Write(p []byte) (int, error) {
	select {
	case s <- struct{}{}:
	default:
	}
	return len(p), nil
}
