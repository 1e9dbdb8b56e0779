package adminapi

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// maxSessions is how many sessions the API has with its own sidecar. A session answers one stats or peek at a time, so a
// slow one delays only a part of the others. The sidecar itself runs only a few such queries at a time.
const maxSessions = 4

// sessions are protocol sessions to the sidecar of this process. They begin when they are needed.
type sessions struct {
	serve   func(ctx context.Context, in io.Reader, out io.Writer) error
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup // the goroutines that serve sessions

	mu         sync.Mutex
	closed     bool
	generation int // of new sessions; see renew
	all        [maxSessions]session
}

// session is one client with its requests. sessions.mu guards the fields without a comment.
type session struct {
	open       int // requests without a reply
	generation int
	client     *qsidecar.Client // nil: it has not begun
	dialing    chan struct{}    // capacity 1; held while the session begins
}

func newSessions(serve func(ctx context.Context, in io.Reader, out io.Writer) error) *sessions {
	p := &sessions{serve: serve}
	p.ctx, p.end = context.WithCancel(context.Background())
	for i := range p.all {
		p.all[i].dialing = make(chan struct{}, 1)
	}
	return p
}

// call sends a request and waits for its reply. Every error is a *protocol.Error.
func (p *sessions) call(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
	s := p.pick()
	defer p.done(s)
	client, err := p.begun(ctx, s)
	if err != nil {
		return nil, wireError(err)
	}
	reply, err := client.Call(ctx, req)
	if err != nil {
		return nil, wireError(err)
	}
	return reply, nil
}

// pick returns the session with the fewest open requests.
func (p *sessions) pick() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.all[0]
	for i := range p.all {
		if p.all[i].open < s.open {
			s = &p.all[i]
		}
	}
	s.open++
	return s
}

func (p *sessions) done(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.open--
}

// begun returns the client of a session, after the session has begun.
func (p *sessions) begun(ctx context.Context, s *session) (*qsidecar.Client, error) {
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	client, generation := s.client, p.generation
	if client != nil && s.generation != generation && s.open == 1 {
		s.client = nil
		defer client.Close()
		client = nil
	}
	p.mu.Unlock()
	if client != nil {
		return client, nil
	}
	client, err := qsidecar.Dial(ctx, qsidecar.Options{Worker: "admin", Retry: -1, RequestTimeout: -1, Dial: p.dial})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(qsidecar.ErrClosed, client.Close())
	}
	s.client, s.generation = client, generation
	return client, nil
}

// dial begins a session over a pipe in memory.
func (p *sessions) dial(context.Context) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, qsidecar.ErrClosed
	}
	near, far := net.Pipe()
	p.running.Go(func() {
		defer far.Close()
		err := p.serve(p.ctx, far, far)
		if err == nil {
			return
		}
		wire, ok := errors.AsType[*protocol.Error](err)
		if !ok {
			wire = protocol.Errorf(protocol.CodeUnavailable, "the sidecar doesn't serve yet, or no longer: %v", err)
		}
		p.running.Go(func() { _, _ = io.Copy(io.Discard, far) }) // the client sends its hello before it reads the error
		_, _ = far.Write(protocol.Msgpack.AppendReply(nil, &protocol.Reply{Error: wire}))
	})
	return near, nil
}

// renew replaces each session at its next request, once no other one is open, because a new session has the sidecar's new limits.
func (p *sessions) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.generation++
}

// close ends all sessions.
func (p *sessions) close() {
	p.mu.Lock()
	p.closed = true
	var clients []*qsidecar.Client
	for i := range p.all {
		if c := p.all[i].client; c != nil {
			clients = append(clients, c)
		}
	}
	p.mu.Unlock()
	for _, c := range clients {
		_ = c.Close() // it never fails
	}
	p.end()
	p.running.Wait()
}

// wireError returns the error of a call as one of the wire.
func wireError(err error) *protocol.Error {
	if wire, ok := errors.AsType[*protocol.Error](err); ok {
		return wire
	}
	if errors.Is(err, qsidecar.ErrUnknownOutcome) {
		return protocol.Errorf(protocol.CodeUnknownOutcome, "%v", err)
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the sidecar didn't answer: %v", err)
}
