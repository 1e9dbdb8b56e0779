package qsidecar_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

func TestDialErrors(t *testing.T) {
	t.Parallel()
	_, err := qsidecar.Dial(t.Context(), qsidecar.Options{Socket: filepath.Join(t.TempDir(), "none")})
	var de *qsidecar.DialError
	if !errors.As(err, &de) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "start one, or name its socket in QSIDECAR_SOCKET") {
		t.Errorf("without a socket: %v, want a DialError that is fs.ErrNotExist, and what to do", err)
	}
}

// Not parallel: it changes the environment.
func TestSocketIsFound(t *testing.T) {
	s := listen(t)
	t.Setenv("QSIDECAR_SOCKET", s.socket)
	c := later(func() (*qsidecar.Client, error) { return qsidecar.Dial(t.Context(), qsidecar.Options{}) })
	s.accept()
	client, err := c.wait(t)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	t.Setenv("QSIDECAR_SOCKET", filepath.Join(t.TempDir(), "none"))
	var de *qsidecar.DialError
	if _, err := qsidecar.Dial(t.Context(), qsidecar.Options{}); !errors.As(err, &de) || de.Socket != os.Getenv("QSIDECAR_SOCKET") {
		t.Errorf("QSIDECAR_SOCKET without a sidecar: %v, want a DialError for that path", err)
	}

	t.Setenv("QSIDECAR_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	t.Setenv("XDG_STATE_HOME", t.TempDir()) // without a directory of qsidecar
	want := []string{"/run/user/7/qsidecar/qsidecar.sock", "/run/qsidecar/qsidecar.sock"}
	if got := qsidecar.Sockets(); !slices.Equal(got, want) {
		t.Errorf("without it: %v, want %v", got, want)
	}
}

func TestDialRefused(t *testing.T) {
	t.Parallel()
	s := listen(t)
	c := later(func() (*qsidecar.Client, error) {
		return qsidecar.Dial(t.Context(), qsidecar.Options{Socket: s.socket})
	})
	p := s.acceptRaw()
	p.fail(p.expect(protocol.OpHello), protocol.CodeForbidden)
	if _, err := c.wait(t); !qsidecar.IsCode(err, protocol.CodeForbidden) {
		t.Errorf("Dial: %v, want the sidecar's forbidden", err)
	}
}

// The kernel accepts the connections of a suspended sidecar, and no reply comes.
func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := listen(t)
	cause := errors.New("the test has no time")
	ctx, cancel := context.WithCancelCause(t.Context())
	c := later(func() (*qsidecar.Client, error) { return qsidecar.Dial(ctx, qsidecar.Options{Socket: s.socket}) })
	s.acceptRaw().expect(protocol.OpHello) // it gets no reply
	cancel(cause)
	if _, err := c.wait(t); !errors.Is(err, cause) {
		t.Errorf("Dial: %v, want the context's cause", err)
	}
}

func TestHelloHasVersionAndWorker(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{Worker: "w1", OnLost: func([]string, string) {}})
	if p.hello.Worker != "w1" || len(p.hello.Events) != 1 || p.hello.Events[0] != "lost" {
		t.Errorf("hello was %+v, want worker w1 and the event lost", p.hello)
	}
	if got := c.Server().Server; got != "fake" {
		t.Errorf("Server() = %q, want fake", got)
	}
}

func TestSocketIsCloseOnExec(t *testing.T) {
	t.Parallel()
	s := listen(t)
	var conn net.Conn
	c := later(func() (*qsidecar.Client, error) {
		return qsidecar.Dial(t.Context(), qsidecar.Options{Socket: s.socket, Dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			var err error
			conn, err = d.DialContext(ctx, "unix", s.socket)
			return conn, err
		}})
	})
	s.accept()
	client, err := c.wait(t)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	flags := 0
	if e := raw.Control(func(fd uintptr) { flags, err = unix.FcntlInt(fd, unix.F_GETFD, 0) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if flags&unix.FD_CLOEXEC == 0 {
		t.Error("a child of the worker would inherit the socket and keep its jobs")
	}
}

func TestRepliesInAnyOrder(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	waiting := claim(t.Context(), c, qsidecar.Claim{Wait: time.Minute})
	first := p.expect(protocol.OpClaim)
	if first.WaitMS != 60_000 || first.LeaseMS.Set {
		t.Errorf("the claim is %+v, want a wait of a minute and a session lease", first)
	}
	ping := call(t.Context(), c, protocol.Request{Op: protocol.OpPing})
	p.ok(p.expect(protocol.OpPing))
	if _, err := ping.wait(t); err != nil {
		t.Fatalf("ping beside a waiting claim: %v", err)
	}
	p.jobs(first, "L1")
	if jobs, err := waiting.wait(t); err != nil || len(jobs) != 1 || jobs[0].Lease != "L1" {
		t.Errorf("the claim got %v, %v; want the job with L1", jobs, err)
	}
}

func TestErrorsOfTheSidecarAreReturned(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	got := ack(t.Context(), c, "L")
	p.fail(p.expect(protocol.OpAck), protocol.CodeLeaseLost)
	_, err := got.wait(t)
	var pe *protocol.Error
	if !errors.As(err, &pe) || !qsidecar.IsLost(err) || pe.Message != "error of the test" {
		t.Errorf("ack: %v, want the sidecar's own error", err)
	}
}

// TestRetryOfNothingIsNotRetryOfAll shows that a list of ids that is empty, for example because a filter found nothing, doesn't make
// all dead jobs ready.
func TestRetryOfNothingIsNotRetryOfAll(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	for _, ids := range [][]string{nil, {}} {
		if _, err := c.Retry(t.Context(), "q", ids); err == nil || !strings.Contains(err.Error(), "RetryAll") {
			t.Errorf("ids %#v: the error is %v, want the name of RetryAll", ids, err)
		}
	}
	all := later(func() (int64, error) { return c.RetryAll(t.Context(), "q") })
	r := p.expect(protocol.OpRetry)
	if p.fail(r, protocol.CodeBadRequest); !r.All {
		t.Errorf("RetryAll: the request is %+v", r)
	}
	_, _ = all.wait(t) // the test's error
}

func TestJob(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	for _, want := range []*protocol.JobView{{ID: "17", Queue: "q", State: protocol.StateDone}, nil} {
		got := later(func() (*protocol.JobView, error) { return c.Job(t.Context(), "17") })
		r := p.expect(protocol.OpPeek)
		if !slices.Equal(r.IDs, []string{"17"}) || r.Queue != "" || r.State != "" {
			t.Errorf("the request is %+v", r)
		}
		reply := &protocol.Reply{OK: true, Views: []protocol.JobView{}}
		if want != nil {
			reply.Views = append(reply.Views, *want)
		}
		p.reply(r, reply)
		if job, err := got.wait(t); err != nil || (job == nil) != (want == nil) || job != nil && (job.ID != want.ID || job.State != want.State) {
			t.Errorf("got %+v, %v; want %+v", job, err, want)
		}
	}
}

// The sidecar closes the connection on a frame over the limit, so the client must not send it.
func TestTooLargeIsNotSent(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	big := protocol.NewJob{Queue: "q", Payload: make([]byte, 1<<17)}
	if _, err := c.Enqueue(t.Context(), big); !qsidecar.IsCode(err, protocol.CodeTooLarge) {
		t.Errorf("enqueue: %v, want too_large", err)
	}
	ping := call(t.Context(), c, protocol.Request{Op: protocol.OpPing})
	p.ok(p.expect(protocol.OpPing)) // and no request before it
	if _, err := ping.wait(t); err != nil {
		t.Errorf("the connection is of no use any more: %v", err)
	}
}

func TestCallRejectsTheClientsOwnOps(t *testing.T) {
	t.Parallel()
	_, c, _ := connected(t, qsidecar.Options{})
	for _, op := range []protocol.Op{protocol.OpHello, protocol.OpBye, protocol.OpCancelClaim} {
		if _, err := c.Call(t.Context(), &protocol.Request{Op: op}); err == nil || !strings.Contains(err.Error(), string(op)) {
			t.Errorf("Call(%s): %v, want a refusal", op, err)
		}
	}
}

func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	waiting := claim(t.Context(), c, qsidecar.Claim{Wait: time.Minute})
	p.expect(protocol.OpClaim)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := waiting.wait(t); !errors.Is(err, qsidecar.ErrClosed) {
		t.Errorf("the waiting claim: %v, want ErrClosed", err)
	}
	if err := c.Ping(t.Context()); !errors.Is(err, qsidecar.ErrClosed) {
		t.Errorf("ping after the close: %v, want ErrClosed", err)
	}
	p.ended()
}

func TestByeReturnsJobs(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	hold(t, c, p, "L1")
	bye := later(func() (struct{}, error) { return struct{}{}, c.Bye(t.Context()) })
	p.ok(p.expect(protocol.OpBye))
	if _, err := bye.wait(t); err != nil {
		t.Errorf("Bye: %v", err)
	}
	p.ended()
}

func TestByeWithoutLeasesSendsNothing(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	if err := c.Bye(t.Context()); err != nil {
		t.Errorf("Bye: %v", err)
	}
	p.ended()
}

func TestCancelledClaimReturnsItsJobs(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := claim(ctx, c, qsidecar.Claim{Wait: time.Minute, Lease: time.Minute})
	first := p.expect(protocol.OpClaim)
	cause := errors.New("the worker stops")
	cancel(cause)
	if _, err := waiting.wait(t); !errors.Is(err, cause) {
		t.Errorf("the cancelled claim: %v, want the context's cause", err)
	}
	stop := p.expect(protocol.OpCancelClaim)
	if stop.Cancel != first.ID {
		t.Errorf("cancel_claim is for %v, want %v", stop.Cancel, first.ID)
	}
	bye := later(func() (struct{}, error) { return struct{}{}, c.Bye(t.Context()) })
	p.jobs(first, "L1", "L2") // it arrived before the cancel
	p.ok(stop)
	back := p.expect(protocol.OpNack)
	if len(back.Leases) != 2 || !back.Snooze || back.DelayMS.Or(-1) != 0 {
		t.Errorf("returned with %+v, want both leases, snooze and delay 0", back)
	}
	select {
	case <-bye.done:
		t.Error("Bye did not wait until the jobs were returned")
	default:
	}
	p.settled(back, "nacked", 2)
	if _, err := bye.wait(t); err != nil {
		t.Errorf("Bye: %v", err)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	lost, draining := make(chan []string, 1), make(chan struct{}, 1)
	_, c, p := connected(t, qsidecar.Options{
		OnLost:     func(l []string, _ string) { lost <- l },
		OnDraining: func() { draining <- struct{}{} },
	})
	hold(t, c, p, "L1", "L2")
	p.send(&protocol.Reply{Event: "lost", Lost: []string{"L1", "of another"}})
	p.send(&protocol.Reply{Event: "draining"})
	p.send(&protocol.Reply{Event: "of a later version"})
	if got := testwait.Receive(t, "a notice of the sidecar", lost); len(got) != 1 || got[0] != "L1" {
		t.Errorf("lost: %v, want L1", got)
	}
	testwait.Receive(t, "a notice of the sidecar", draining)
}
