package bridge

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// testLog sends the sidecar's log to the test's.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct{ t testing.TB }

func (t testWriter) Write(p []byte) (int, error) {
	t.t.Log(string(p[:len(p)-1]))
	return len(p), nil
}

// Times and sizes of the pipeline that tests rely on.
const (
	longestLinger = 2 * time.Millisecond   // of the group commit, after a commit
	longestRetry  = time.Second            // pause between two tries of a commit, before its jitter
	recordAge     = 300 * time.Millisecond // of a hand-out that is recorded
	recordCheck   = 50 * time.Millisecond
	writesMemory  = 96 << 20 // bytes of writes that can wait
)

// Times and sizes of a session that tests rely on.
const (
	enqueueWait      = 5 * time.Second  // for a commit
	partialTimeout   = time.Minute      // for the rest of a message
	inspectTimeout   = 30 * time.Second // of a query that a person waits for
	lastReplyTimeout = 3 * time.Second  // to read the last replies
	maxWaiting       = 256              // claims of one session
	maxNamed         = 4096             // queues of its open claims
	openCost         = 8 << 10          // bytes of an open request
	minOpen          = 16               // requests that a session can always have
)

// sidecar is a running Bridge with one socket and one database.
type sidecar struct {
	*Bridge
	net  *memNet // nil: its sockets are files
	path string
	stop context.CancelFunc
	done chan error
}

// inMemory is the prefix of socket paths that have no file; see memNet.
const inMemory = "/memory/"

// options are the Options that most tests need: any queue, one database, a socket in memory. A test starts such a
// sidecar in a synctest bubble. The limits of the program (how long a heartbeat is valid, how long a write waits) run
// by the virtual clock there.
func options(b backends.Backend) Options {
	return Options{
		Databases: map[string]Database{"main": {Backend: b}},
		Queues:    map[string]Queue{"*": {Backoff: 50 * time.Millisecond}},
		Sockets:   []Socket{{Path: inMemory + "q.sock"}},
	}
}

// unixOptions are for tests of the sockets themselves. They run by the machine's clock, so such a test must not
// depend on anything that takes seconds: it does not enqueue over a socket, and the sidecar timeout is long.
func unixOptions(t testing.TB, b backends.Backend) Options {
	o := options(b)
	o.Databases["main"] = Database{Backend: b, SidecarTimeout: MaxSidecarTimeout}
	o.Sockets = []Socket{{Path: filepath.Join(shortDir(t), "q.sock")}}
	return o
}

// store enqueues jobs without a sidecar.
func store(t testing.TB, b backends.Backend, queues ...string) {
	t.Helper()
	jobs := make([]backends.NewJob, len(queues))
	for i, q := range queues {
		jobs[i].Queue = q
	}
	if _, err := b.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}}); err != nil {
		t.Fatal(err)
	}
}

// shortDir returns a temporary directory with a name short enough for a socket's path.
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
	return run(t, newFor(t, o, testLog(t)))
}

// newFor creates a Bridge that a test can change before it runs.
func newFor(t testing.TB, o Options, log *slog.Logger) *Bridge {
	t.Helper()
	sys := system{clock: heartbeat.BootTime, listen: unixsocket.Listen}
	if len(o.Sockets) > 0 && strings.HasPrefix(o.Sockets[0].Path, inMemory) {
		sys = system{clock: virtualClock, listen: newMemNet().listen}
	}
	b, err := newBridge(o, log, sys)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// virtualClock never jumps in a bubble.
func virtualClock() time.Duration { return time.Duration(time.Now().UnixNano()) }

// newWithClock creates a Bridge with sockets in memory, whose clock the test changes.
func newWithClock(t testing.TB, o Options, clock func(now time.Duration) time.Duration) *Bridge {
	t.Helper()
	b, err := newBridge(o, testLog(t), system{clock: func() time.Duration { return clock(virtualClock()) }, listen: newMemNet().listen})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs a Bridge that the test possibly changed before.
func run(t testing.TB, b *Bridge) *sidecar {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &sidecar{Bridge: b, stop: stop, done: make(chan error, 1)}
	if len(b.config.Load().opts.Sockets) > 0 {
		s.path = b.config.Load().opts.Sockets[0].Path
	}
	go func() { s.done <- b.Run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-s.done:
		t.Fatalf("Run: %v", err)
	}
	if ln, ok := b.running.listeners[s.path]; ok {
		if at, ok := ln.Addr().(memAddr); ok {
			s.net = at.net
		}
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
	err := testwait.Receive(t, "the end of Run", s.done)
	s.done <- err
	return err
}

// client speaks JSON lines.
type client struct {
	t    testing.TB
	conn clientConn
	in   *bufio.Reader
}

type clientConn interface {
	net.Conn
	CloseWrite() error
}

func (s *sidecar) dial(t testing.TB) *client {
	t.Helper()
	var conn clientConn
	if s.net != nil {
		conn = s.net.dial(t, s.path)
	} else {
		unix, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		conn = unix
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
	Job        enqueued
	Enqueued   []enqueued
	Jobs       []job
	ClaimError struct{ Code, Field string } `json:"claim_error"`
	Acked      int
	Nacked     int
	Extended   int
	Lost       []string
	Leases     []string
	Count      int
	Event      string
	Queues     []map[string]any
	Join       bool
	After      string
	AfterQueue string `json:"after_queue"`

	Batch struct {
		ID string `json:"id"`
	} `json:"batch"`
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
	Headers   map[string]string
	Progress  *struct{ Done, Total int64 }
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
	if err := c.conn.SetReadDeadline(testwait.Deadline()); err != nil {
		return nil, err
	}
	return c.in.ReadBytes('\n')
}

// call sends a request and fails the test if the request fails.
func (c *client) call(format string, args ...any) reply {
	c.t.Helper()
	c.send(format, args...)
	r := c.receive()
	if !r.OK {
		c.t.Fatalf("%s: %s: %s", fmt.Sprintf(format, args...), r.Error.Code, r.Error.Message)
	}
	return r
}

// refused sends a request and fails the test unless the reply is an error with that code.
func (c *client) refused(code, format string, args ...any) reply {
	c.t.Helper()
	c.send(format, args...)
	r := c.receive()
	if r.OK || r.Error.Code != code {
		c.t.Fatalf("%s: got ok=%v %+v, want error %s", fmt.Sprintf(format, args...), r.OK, r.Error, code)
	}
	return r
}

// claim1 claims one job and waits for it.
func (c *client) claim1(queue string) job {
	c.t.Helper()
	r := c.call(`{"op":"claim","queue":%q,"wait_ms":600000}`, queue)
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

// pipeline returns the pipeline of the sidecar's only database.
func (s *sidecar) pipeline() *pipeline.Pipeline { return s.config.Load().databases[0].Pipeline }

// eventually waits until a condition is true.
func eventually(t testing.TB, fact func() bool) {
	t.Helper()
	testwait.Until(t, "what this line of the test waits for", fact)
}
