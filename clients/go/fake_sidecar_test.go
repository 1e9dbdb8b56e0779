package qsidecar_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("QSIDECAR_ENQUEUE_TIMEOUT", "50"); err != nil { // the default is too short for a loaded machine
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// server is a sidecar whose replies the test writes itself.
type server struct {
	t      *testing.T
	socket string
	ln     *net.UnixListener
}

func listen(t *testing.T) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "qs") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{t: t, socket: filepath.Join(dir, "s")}
	s.up()
	return s
}

func (s *server) up() {
	s.t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket, Net: "unix"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.ln = ln
	s.t.Cleanup(func() { ln.Close() })
}

// down removes the socket, so that no sidecar answers.
func (s *server) down() {
	s.t.Helper()
	if err := s.ln.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// peer is the server's end of one connection.
type peer struct {
	t     *testing.T
	conn  net.Conn
	in    *protocol.Reader
	hello *protocol.Request
	join  bool // in each reply

	coming *pending[*protocol.Request] // the next request, if a read of it is under way
}

// accept accepts the next connection and answers its hello.
func (s *server) accept() *peer {
	s.t.Helper()
	p := s.acceptRaw()
	p.greet()
	return p
}

// greet answers the client's hello.
func (p *peer) greet() {
	p.t.Helper()
	if err := p.welcome(p.expect(protocol.OpHello)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) welcome(hello *protocol.Request) error {
	p.hello = hello
	_, err := p.conn.Write(protocol.Msgpack.AppendReply(nil, &protocol.Reply{ID: hello.ID, OK: true, Hello: &protocol.HelloReply{
		Version: 1, Server: "fake", Session: "s", MaxFrame: 1 << 16, MaxPayload: 1 << 15, MaxReply: 1 << 19,
	}}))
	return err
}

func (s *server) acceptRaw() *peer {
	s.t.Helper()
	if err := s.ln.SetDeadline(testwait.Deadline()); err != nil {
		s.t.Fatal(err)
	}
	conn, err := s.ln.Accept()
	if err != nil {
		s.t.Fatalf("the client did not connect: %v", err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return &peer{t: s.t, conn: conn, in: protocol.NewReader(conn, 1<<20)}
}

// next reads the next request.
func (p *peer) next() (*protocol.Request, error) {
	if got := p.coming; got != nil {
		p.coming = nil
		return got.wait(p.t)
	}
	return p.read()
}

func (p *peer) read() (*protocol.Request, error) {
	if err := p.conn.SetReadDeadline(testwait.Deadline()); err != nil {
		return nil, err
	}
	body, codec, err := p.in.Next()
	if err != nil {
		return nil, err
	}
	req := new(protocol.Request)
	if err := codec.DecodeRequest(body, protocol.NewLimits(1<<20), req); err != nil {
		return nil, err
	}
	return req, nil
}

// expect reads the next request, which must be of that op.
func (p *peer) expect(op protocol.Op) *protocol.Request {
	p.t.Helper()
	req, err := p.next()
	if err != nil {
		p.t.Fatalf("waiting for %s: %v", op, err)
	}
	if req.Op != op {
		p.t.Fatalf("the client sent %s, want %s: %+v", req.Op, op, req)
	}
	return req
}

// each reads the next requests, one of each op, in any order.
func (p *peer) each(ops ...protocol.Op) map[protocol.Op]*protocol.Request {
	p.t.Helper()
	got := make(map[protocol.Op]*protocol.Request)
	for range ops {
		req, err := p.next()
		if err != nil || !slices.Contains(ops, req.Op) || got[req.Op] != nil {
			p.t.Fatalf("the client sent %+v (%v), want one of each of %v", req, err, ops)
		}
		got[req.Op] = req
	}
	return got
}

// quiet checks that the client sends nothing now. It is for a synctest bubble.
func (p *peer) quiet() {
	p.t.Helper()
	if p.coming == nil {
		p.coming = later(p.read)
	}
	synctest.Wait()
	select {
	case <-p.coming.done:
		p.t.Fatalf("the client sent %+v (%v), want nothing", p.coming.v, p.coming.err)
	default: // the read goes on, so the next request is for it
	}
}

// ended checks that the client sends no more requests and closes the connection.
func (p *peer) ended() {
	p.t.Helper()
	if req, err := p.next(); err == nil {
		p.t.Errorf("the client sent %s, want the end of the connection", req.Op)
	} else if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		p.t.Errorf("the connection did not end: %v", err)
	}
}

func (p *peer) reply(req *protocol.Request, rep *protocol.Reply) {
	p.t.Helper()
	rep.ID, rep.Join = req.ID, p.join
	p.send(rep)
}

func (p *peer) ok(req *protocol.Request) { p.t.Helper(); p.reply(req, &protocol.Reply{OK: true}) }

func (p *peer) fail(req *protocol.Request, code protocol.Code) {
	p.t.Helper()
	p.reply(req, &protocol.Reply{Error: protocol.Errorf(code, "error of the test")})
}

func (p *peer) jobs(req *protocol.Request, leases ...string) {
	p.t.Helper()
	rep := &protocol.Reply{OK: true, Jobs: []protocol.Job{}}
	for _, l := range leases {
		rep.Jobs = append(rep.Jobs, protocol.Job{ID: "j" + l, Queue: "q", Lease: l, Attempt: 1, MaxAttempts: 20})
	}
	p.reply(req, rep)
}

func (p *peer) settled(req *protocol.Request, verb string, n int64, lost ...string) {
	p.t.Helper()
	p.reply(req, &protocol.Reply{OK: true, Settled: &protocol.Settled{Verb: verb, Count: n, Lost: append([]string{}, lost...)}})
}

func (p *peer) send(rep *protocol.Reply) {
	p.t.Helper()
	if _, err := p.conn.Write(protocol.Msgpack.AppendReply(nil, rep)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) close() {
	p.t.Helper()
	if err := p.conn.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// connected returns a client and the server's end of its connection.
func connected(t *testing.T, o qsidecar.Options) (*server, *qsidecar.Client, *peer) {
	t.Helper()
	s := listen(t)
	o.Socket = s.socket
	c := later(func() (*qsidecar.Client, error) { return qsidecar.Dial(t.Context(), o) })
	p := s.accept()
	client, err := c.wait(t)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return s, client, p
}

// pending is the result of a call in another goroutine.
type pending[T any] struct {
	done chan struct{}
	v    T
	err  error
}

func later[T any](f func() (T, error)) *pending[T] {
	p := &pending[T]{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.v, p.err = f()
	}()
	return p
}

func (p *pending[T]) wait(t *testing.T) (T, error) {
	t.Helper()
	testwait.Closed(t, "the call returns", p.done)
	return p.v, p.err
}

// call sends a request in another goroutine.
func call(ctx context.Context, c *qsidecar.Client, req protocol.Request) *pending[*protocol.Reply] {
	return later(func() (*protocol.Reply, error) { return c.Call(ctx, &req) })
}

func claim(ctx context.Context, c *qsidecar.Client, cl qsidecar.Claim) *pending[[]protocol.Job] {
	cl.Queues = []string{"q"}
	return later(func() ([]protocol.Job, error) { return c.Claim(ctx, cl) })
}

func ack(ctx context.Context, c *qsidecar.Client, lease string) *pending[struct{}] {
	return later(func() (struct{}, error) { return struct{}{}, c.Ack(ctx, lease) })
}

// hold gives the client session leases.
func hold(t *testing.T, c *qsidecar.Client, p *peer, leases ...string) {
	t.Helper()
	got := claim(t.Context(), c, qsidecar.Claim{Max: len(leases)})
	p.jobs(p.expect(protocol.OpClaim), leases...)
	if jobs, err := got.wait(t); err != nil || len(jobs) != len(leases) {
		t.Fatalf("claimed %v, %v; want %d jobs", jobs, err, len(leases))
	}
}
