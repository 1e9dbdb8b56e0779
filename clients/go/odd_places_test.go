package qsidecar_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// Calls from places where a program is not in its usual course. None hangs: it works, or fails at once with an error that names the
// cause.

// serve answers each enqueue of the connection, and each claim that doesn't wait, until it ends.
func (p *peer) serve() {
	for {
		req, err := p.read()
		if err != nil {
			return
		}
		rep := &protocol.Reply{ID: req.ID, OK: true}
		switch {
		case req.Op == protocol.OpEnqueue:
			rep.Enqueued = &protocol.EnqueuedJob{ID: "1"}
		case req.Op == protocol.OpClaim && req.WaitMS > 0:
			continue
		case req.Op == protocol.OpClaim:
			rep.Jobs = []protocol.Job{}
		}
		if _, err := p.conn.Write(protocol.Msgpack.AppendReply(nil, rep)); err != nil {
			return
		}
	}
}

// enqueues returns a function that enqueues a job, and the results of its calls.
func enqueues(ctx context.Context, c *qsidecar.Client) (f func(), results chan error) {
	results = make(chan error, 10)
	return func() {
		_, err := c.Enqueue(ctx, protocol.NewJob{Queue: "q"})
		results <- err
	}, results
}

func wantStored(t *testing.T, where string, results <-chan error) {
	t.Helper()
	if err := testwait.Receive(t, "the call of "+where, results); err != nil {
		t.Errorf("%s gets %v", where, err)
	}
}

// TestCallsOfSignalsAndFinalizers checks that a goroutine that handles a signal, a cleanup and a finalizer can enqueue while other calls
// are under way.
func TestCallsOfSignalsAndFinalizers(t *testing.T) {
	t.Parallel()
	_, c, p := connected(t, qsidecar.Options{})
	go p.serve()
	claim(t.Context(), c, qsidecar.Claim{Wait: time.Minute})
	enqueue, results := enqueues(t.Context(), c)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR2)
	defer signal.Stop(signals)
	go func() {
		<-signals
		enqueue()
	}()
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	wantStored(t, "a signal's goroutine", results)
	runtime.AddCleanup(new([64]byte), func(int) { enqueue() }, 0)
	testwait.Until(t, "a cleanup has enqueued", func() bool { runtime.GC(); return len(results) > 0 })
	wantStored(t, "a cleanup", results)
	runtime.SetFinalizer(new([64]byte), func(*[64]byte) { enqueue() })
	testwait.Until(t, "a finalizer has enqueued", func() bool { runtime.GC(); return len(results) > 0 })
	wantStored(t, "a finalizer", results)
}

// TestCallsOfHooks checks that OnLost and OnDraining can enqueue, claim and close the client.
func TestCallsOfHooks(t *testing.T) {
	t.Parallel()
	var c *qsidecar.Client
	var enqueue func()
	closed := make(chan error, 1)
	_, c, p := connected(t, qsidecar.Options{
		OnLost: func([]string, string) {
			enqueue()
			_, err := c.Claim(context.Background(), qsidecar.Claim{Queues: []string{"q"}})
			closed <- errors.Join(err, c.Close())
		},
		OnDraining: func() { enqueue() },
	})
	enqueue, results := enqueues(t.Context(), c)
	hold(t, c, p, "L1")
	go p.serve()
	p.send(&protocol.Reply{Event: "draining"})
	wantStored(t, "OnDraining", results)
	p.send(&protocol.Reply{Event: "lost", Lost: []string{"L1"}})
	wantStored(t, "OnLost", results)
	wantStored(t, "OnLost, and Close", closed)
}

// enqueuingLog is a log handler that stores its lines as jobs.
type enqueuingLog struct {
	lines
	enqueue func()
}

func (e enqueuingLog) WithAttrs([]slog.Attr) slog.Handler { return e }
func (e enqueuingLog) Handle(ctx context.Context, r slog.Record) error {
	e.enqueue()
	return e.lines.Handle(ctx, r)
}

// TestLogHandlerOfAWorkerEnqueues checks each kind of line of a Worker: the start, a failed job, a settle that is refused, and its hook
// OnLost, an outage, and the end.
func TestLogHandlerOfAWorkerEnqueues(t *testing.T) {
	t.Parallel()
	_, other, peer := connected(t, qsidecar.Options{})
	go peer.serve()
	enqueue, results := enqueues(t.Context(), other)
	s, log := listen(t), enqueuingLog{make(lines, 100), enqueue}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	worker := qsidecar.Worker{
		Queues: []string{"q"}, Logger: slog.New(log), SyncAck: true,
		Options: qsidecar.Options{Socket: s.socket, OnLost: func([]string, string) { enqueue() }},
		Handler: func(context.Context, *qsidecar.Job) error { return errors.New("boom") },
	}
	w := &worked{stop: stop, end: later(func() (struct{}, error) { return struct{}{}, worker.Run(ctx) })}
	w.peer = s.accept()
	stored := func(where string, n int) {
		t.Helper()
		for range n {
			wantStored(t, where, results)
		}
	}
	stored("the start", 1)
	w.jobs(w.expect(protocol.OpClaim), "L")
	stored("a failed job", 1)
	w.fail(w.expect(protocol.OpNack), protocol.CodeLeaseLost)
	stored("a refused settle, and OnLost", 2)
	w.expect(protocol.OpClaim)
	s.down()
	w.close()
	stored("an outage", 1)
	s.up()
	w.peer = s.accept()
	stored("the end of an outage", 1)
	w.stopped()
	stored("the end", 2)
}

// TestCallOfDial checks that a call in Options.Dial fails at once, because it would wait for the connection that Dial opens.
func TestCallOfDial(t *testing.T) {
	t.Parallel()
	s := listen(t)
	var client atomic.Pointer[qsidecar.Client] // Dial can be called before it is set
	results := make(chan error, 10)
	dial := func(ctx context.Context) (net.Conn, error) {
		if c := client.Load(); c != nil {
			_, err := c.Claim(ctx, qsidecar.Claim{Queues: []string{"q"}, Wait: time.Minute})
			results <- err
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	}
	first := later(func() (*qsidecar.Client, error) { return qsidecar.Dial(t.Context(), qsidecar.Options{Dial: dial}) })
	p := s.accept()
	c, err := first.wait(t)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	client.Store(c)
	p.close()
	s.accept()
	if err := testwait.Receive(t, "the call of Dial", results); !errors.Is(err, qsidecar.ErrReentrant) || !strings.Contains(err.Error(), "Options.Dial") {
		t.Errorf("a call of Dial gets %v, want ErrReentrant", err)
	}
}
