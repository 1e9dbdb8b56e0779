package bridge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for a fact before it calls it missing.
const patience = 20 * time.Second

// testLog sends the sidecar's log to the test's.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p[:len(p)-1]))
	return len(p), nil
}

// sidecar is a running Bridge with one socket and one database.
type sidecar struct {
	*Bridge
	path string
	stop context.CancelFunc
	done chan error
}

// options are what most tests need: any queue, one database.
func options(t testing.TB, b backends.Backend) Options {
	return Options{
		Databases: map[string]Database{"main": {Backend: b}},
		Queues:    map[string]Queue{"*": {Backoff: 50 * time.Millisecond}},
		Sockets:   []Socket{{Path: filepath.Join(shortDir(t), "q.sock")}},
	}
}

// impatient options beat often, for tests that wait for what a beat does. A
// machine that stands still for a second makes such a sidecar late, so no other
// test should use them.
func impatient(t testing.TB, b backends.Backend) Options {
	o := options(t, b)
	o.Databases["main"] = Database{Backend: b, HostLease: 2 * time.Second}
	return o
}

// shortDir is a temporary directory whose names fit a socket's path.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "qs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func start(t testing.TB, o Options) *sidecar {
	t.Helper()
	b, err := New(o, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	return run(t, b)
}

// run runs a Bridge that the test may have changed before.
func run(t testing.TB, b *Bridge) *sidecar {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &sidecar{Bridge: b, stop: stop, done: make(chan error, 1)}
	if len(b.plan.Load().opts.Sockets) > 0 {
		s.path = b.plan.Load().opts.Sockets[0].Path
	}
	go func() { s.done <- b.Run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-s.done:
		t.Fatalf("Run: %v", err)
	}
	t.Cleanup(func() {
		stop()
		b.Abort()
		if err := s.wait(t); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// wait returns what Run returned. It can be called more than once.
func (s *sidecar) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-s.done:
		s.done <- err
		return err
	case <-time.After(patience):
		t.Fatal("Run does not end")
		return nil
	}
}

// client speaks JSON lines.
type client struct {
	t    testing.TB
	conn *net.UnixConn
	in   *bufio.Reader
}

func (s *sidecar) dial(t testing.TB) *client {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // often closed by the test already
	return &client{t: t, conn: conn, in: bufio.NewReaderSize(conn, 1<<20)}
}

// reply is any answer, loosely typed.
type reply struct {
	ID    any
	OK    bool
	Error struct {
		Code, Message, Field string
		Index                *int
		RetryMS              int64 `json:"retry_ms"`
	}
	Job      enqueued
	Enqueued []enqueued
	Jobs     []job
	Acked    int
	Nacked   int
	Extended int
	Lost     []string
	Leases   []string
	Count    int
	Event    string
	Queues   []map[string]any
}

type enqueued struct {
	ID        string
	Duplicate bool
	State     string
}

type job struct {
	ID, Queue, Lease, Payload, State, Worker string
	Attempt                                  int
	MaxAttempts                              int `json:"max_attempts"`
	Fence                                    int64
	Errors                                   []struct {
		Attempt        int
		Cause, Message string
	}
	LastError string `json:"last_error"`
}

func (c *client) send(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.conn, format+"\n", args...); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

func (c *client) receive() (r reply) {
	c.t.Helper()
	line, err := c.line()
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return parse(c.t, line)
}

func parse(t testing.TB, line []byte) (r reply) {
	t.Helper()
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatalf("receive %s: %v", line, err)
	}
	return r
}

func (c *client) line() ([]byte, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	return c.in.ReadBytes('\n')
}

// call sends a request and wants it to succeed.
func (c *client) call(format string, args ...any) reply {
	c.t.Helper()
	c.send(format, args...)
	r := c.receive()
	if !r.OK {
		c.t.Fatalf("%s: %s: %s", fmt.Sprintf(format, args...), r.Error.Code, r.Error.Message)
	}
	return r
}

// refused sends a request and wants it to fail with code.
func (c *client) refused(code, format string, args ...any) reply {
	c.t.Helper()
	c.send(format, args...)
	r := c.receive()
	if r.OK || r.Error.Code != code {
		c.t.Fatalf("%s: got ok=%v %+v, want error %s", fmt.Sprintf(format, args...), r.OK, r.Error, code)
	}
	return r
}

// claim1 claims one job, waiting for it.
func (c *client) claim1(queue string) job {
	c.t.Helper()
	r := c.call(`{"op":"claim","queue":%q,"wait_ms":10000}`, queue)
	if len(r.Jobs) != 1 {
		c.t.Fatalf("claim of %s: got %d jobs, want 1", queue, len(r.Jobs))
	}
	return r.Jobs[0]
}

func (c *client) close() {
	c.t.Helper()
	if err := c.conn.Close(); err != nil {
		c.t.Fatal(err)
	}
}

func TestLifeOfAJob(t *testing.T) {
	s := start(t, options(t, memory.New()))
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
}

func TestHangUpFreesTheJobAtOnce(t *testing.T) {
	s := start(t, options(t, memory.New()))
	first, second := s.dial(t), s.dial(t)
	first.call(`{"op":"enqueue","queue":"q"}`)
	j := first.claim1("q")
	second.send(`{"op":"claim","queue":"q","wait_ms":20000}`)
	began := time.Now()
	first.close()
	r := second.receive()
	if len(r.Jobs) != 1 || r.Jobs[0].ID != j.ID || r.Jobs[0].Attempt != 2 || r.Jobs[0].LastError == "" {
		t.Fatalf("got %+v, want job %s again, attempt 2, with its last error", r.Jobs, j.ID)
	}
	t.Logf("free after %v", time.Since(began))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a killed worker's job took %v to be free", took)
	}
	v := second.call(`{"op":"peek","queue":"q","ids":[%q]}`, j.ID).Jobs[0]
	if len(v.Errors) != 1 || v.Errors[0].Cause != "disconnected" {
		t.Errorf("errors %+v, want one, disconnected", v.Errors)
	}
}

func TestEndOfInputGivesBackUncharged(t *testing.T) {
	s := start(t, options(t, memory.New()))
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
		t.Errorf("attempt %d, want 1: the end of input charges nothing", j.Attempt)
	}
}

func TestRequestsBeforeAHangUpAreCarriedOut(t *testing.T) {
	s := start(t, options(t, memory.New()))
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
}

// TestOpIsFoundAfterItsLease: an ack by another session, and of a lease that is text only.
func TestLeaseIsSelfContained(t *testing.T) {
	s := start(t, options(t, memory.New()))
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
}

func TestWaitingClaimAnswersAtTheEnqueue(t *testing.T) {
	s := start(t, options(t, memory.New()))
	c, producer := s.dial(t), s.dial(t)
	c.send(`{"op":"claim","queues":["a","b"],"max":10,"wait_ms":30000}`)
	eventually(t, func() bool { return s.plan.Load().banks[0].broker.idleWaiters() == 1 })
	began := time.Now()
	producer.call(`{"op":"enqueue","queue":"b","payload":"x"}`)
	if r := c.receive(); len(r.Jobs) != 1 || r.Jobs[0].Queue != "b" {
		t.Fatalf("got %+v, want the job of b", r.Jobs)
	}
	t.Logf("enqueue to claim: %v", time.Since(began))
}

// idleWaiters counts the claims that were looked for and wait.
func (b *broker) idleWaiters() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ln := range b.order {
		for _, w := range ln.waiters {
			if !w.asking && w.seen >= ln.hint {
				n++
			}
		}
	}
	return n
}

// eventually waits for a fact.
func eventually(t testing.TB, fact func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !fact() {
		if time.Now().After(deadline) {
			t.Fatal("it did not come true")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestCancelAndBye(t *testing.T) {
	s := start(t, options(t, memory.New()))
	c, other := s.dial(t), s.dial(t)
	c.send(`{"op":"claim","id":"w","queue":"q","wait_ms":60000}`)
	c.send(`{"op":"cancel","id":"c","request":"w"}`)
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
}

func TestDrain(t *testing.T) {
	s := start(t, options(t, memory.New()))
	holder, waiter := s.dial(t), s.dial(t)
	holder.call(`{"op":"hello","events":["draining"]}`)
	holder.call(`{"op":"enqueue","queue":"q"}`)
	j := holder.claim1("q")
	waiter.send(`{"op":"claim","queue":"q","wait_ms":60000}`)
	eventually(t, func() bool { return s.plan.Load().banks[0].broker.idleWaiters() == 1 })
	s.stop()
	if r := waiter.receive(); r.Error.Code != "draining" {
		t.Errorf("waiting claim: %+v, want draining", r)
	}
	if r := holder.receive(); r.Event != "draining" {
		t.Errorf("got %+v, want the event draining", r)
	}
	waiter.refused("draining", `{"op":"claim","queue":"q"}`)
	waiter.call(`{"op":"enqueue","queue":"q"}`)
	holder.call(`{"op":"ack","lease":%q}`, j.Lease)
	if err := s.wait(t); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// TestDrainOfAClaimBeingAsked: the sidecar is told to stop while the claim's first
// look is under way.
func TestDrainOfAClaimBeingAsked(t *testing.T) {
	db := &faulty{Backend: memory.New()}
	gate := make(chan struct{})
	s := start(t, options(t, db))
	c := s.dial(t)
	db.hold.Store(&gate)
	c.send(`{"op":"claim","queue":"q","wait_ms":60000}`)
	eventually(t, func() bool { return db.held.Load() == 1 })
	s.stop()
	eventually(t, func() bool {
		b := s.plan.Load().banks[0].broker
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.halted != nil
	})
	close(gate)
	if r := c.receive(); r.Error.Code != "draining" {
		t.Errorf("got %+v, want draining", r)
	}
}

func TestRestartKeepsLeases(t *testing.T) {
	db := memory.New()
	o := options(t, db)
	o.DrainTimeout = -1
	s := start(t, o)
	c := s.dial(t)
	c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
	a, b := c.claim1("q"), c.claim1("q")
	s.stop()
	if err := s.wait(t); err != nil {
		t.Fatal(err)
	}
	s2 := start(t, o)
	c2, other := s2.dial(t), s2.dial(t)
	if r := other.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 0 {
		t.Fatalf("a restart delivered %+v again", r.Jobs)
	}
	c2.call(`{"op":"ack","lease":%q}`, a.Lease)
	if r := c2.call(`{"op":"extend","lease":%q,"bind":true}`, b.Lease); r.Extended != 1 {
		t.Fatalf("extend: %+v", r)
	}
	c2.close()
	if j := other.claim1("q"); j.ID != b.ID || j.Attempt != 2 {
		t.Errorf("got %+v, want the bound job %s free at the hang-up of its new connection", j, b.ID)
	}
}
