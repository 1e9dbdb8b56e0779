package qsidecar

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// Options says how to reach a sidecar and what to be told.
type Options struct {
	// Socket is the path of the sidecar's Unix socket; empty: the first of Sockets
	// at which somebody listens.
	Socket string

	// Worker names this worker (at most 128 bytes); it is kept with its claims, for people.
	Worker string

	// OnLost is told session leases that the client held and that are lost: the
	// job may be with another worker by now. It is called from a goroutine of its
	// own, one call at a time, and may use the Client. A lease that is being
	// settled is not told: the settle's own answer says it.
	OnLost func(leases []string)

	// OnDraining is told that the sidecar is about to exit. The same goroutine rules.
	OnDraining func()

	// Retry is how long what the sidecar cannot do just now is sent again: an ack,
	// nack or extend that was answered unavailable, busy or unknown_outcome, and an
	// enqueue with keys that was answered unknown_outcome. 0: a minute; negative: not
	// at all. A claim that waits is asked again for as long as its Wait, also when it
	// was answered draining (unless Retry is negative).
	Retry time.Duration

	// RequestTimeout is how long Enqueue and EnqueueMany may take where their context has no
	// deadline of its own: a producer that answers a user must not wait for a sidecar that is away.
	// 0: as many seconds as QSIDECAR_ENQUEUE_TIMEOUT says, else two; negative: for as long as the
	// context lasts. Other calls last as long as theirs.
	RequestTimeout time.Duration

	// Dial opens a connection instead of dialling Socket.
	Dial func(ctx context.Context) (net.Conn, error)

	// onOutage is the Worker's. It is told why the connection could not be made again, and nil
	// when it is.
	onOutage func(error)
}

// Client is one connection to a sidecar that comes back when it breaks. Its
// methods may be called concurrently.
type Client struct {
	opts    Options
	end     context.CancelCauseFunc // ends ctx
	ctx     context.Context         // done when the client is closed
	stopped chan struct{}           // closed when the last goroutine of the client has ended
	tellMu  sync.Mutex              // held while a callback runs: one at a time

	mu     sync.Mutex // guards what follows
	hello  protocol.HelloReply
	lastID uint64
	queue  []*call                      // not yet sent, in order
	open   map[protocol.RequestID]*call // sent on the present connection, not answered
	wake   chan struct{}                // 1: there is something in queue (a missed token would stall the writer)
	held   map[string]*lease            // session leases, by lease string
	link   uint64                       // number of the present connection, from 1
	idle   []chan struct{}              // waiting for quiet: nothing left to give back
	owed   int                          // abandoned claims and give-backs not answered
	closed error                        // set once: the client was closed, and why
}

// Dial connects to the sidecar and says hello. It fails when nothing answers: the
// background reconnect begins with the first connection.
func Dial(ctx context.Context, opts Options) (*Client, error) {
	if opts.RequestTimeout == 0 {
		var err error
		if opts.RequestTimeout, err = enqueueTime(os.Getenv(envEnqueueTimeout)); err != nil {
			return nil, err
		}
	}
	c := &Client{
		opts:    opts,
		stopped: make(chan struct{}),
		open:    make(map[protocol.RequestID]*call),
		wake:    make(chan struct{}, 1),
		held:    make(map[string]*lease),
	}
	l, err := c.first(ctx)
	if err != nil {
		return nil, err
	}
	c.ctx, c.end = context.WithCancelCause(context.WithoutCancel(ctx))
	go c.run(l)
	return c, nil
}

// first makes the first connection.
func (c *Client) first(ctx context.Context) (*link, error) {
	if c.opts.Dial == nil && c.opts.Socket == "" {
		return c.dialFirst(ctx)
	}
	if c.opts.Dial == nil {
		c.opts.Dial = dialSocket(c.opts.Socket)
	}
	l, err := c.connect(ctx)
	if err != nil {
		return nil, &DialError{Socket: c.opts.Socket, Err: err}
	}
	return l, nil
}

// Server tells what the sidecar said of itself at the last hello.
func (c *Client) Server() protocol.HelloReply {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hello
}

// Call sends one request and waits for its answer; the typed methods are made of
// it. The request's ID is the client's to give, and hello, bye and cancel are the
// client's to send (Dial, Bye, and the end of ctx).
//
// An error of the sidecar is a *protocol.Error. When ctx ends first, the error is
// ctx's cause inside a *BrokenError; a waiting claim is then cancelled, and jobs
// that it got all the same are given back uncharged. After a settle that was sent
// twice both results may be set: see *SettledOrLostError.
func (c *Client) Call(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
	switch req.Op {
	case protocol.OpHello, protocol.OpBye, protocol.OpCancel:
		return nil, fmt.Errorf("qsidecar: Call: %s is sent by the client itself", req.Op)
	}
	return c.do(ctx, req)
}

// try sends a call once, or once on each connection where it may be repeated.
func (c *Client) try(ctx context.Context, cl *call) (*protocol.Reply, error) {
	if err := c.submit(cl); err != nil {
		return nil, err
	}
	select {
	case res := <-cl.done:
		return res.reply, res.err
	case <-ctx.Done():
		return c.abandon(cl, context.Cause(ctx))
	}
}

// Bye gives everything that the client holds back uncharged, also jobs that
// arrive for claims that nobody waits for any more, and closes the client. When
// ctx ends first, it closes the client as Close does.
func (c *Client) Bye(ctx context.Context) error {
	defer c.Close()
	if err := c.quiet(ctx); err != nil {
		return err
	}
	if c.holding() == 0 {
		return nil // nothing to give back: the close says it all
	}
	_, err := c.do(ctx, &protocol.Request{Op: protocol.OpBye})
	return err
}

// Close closes the connection at once. What the client holds is taken back as
// from a worker that died: use Bye to give it back. Calls under way end with ErrClosed.
func (c *Client) Close() error {
	c.shut(ErrClosed)
	<-c.stopped
	return nil
}

// shut ends the client; the first cause stays.
func (c *Client) shut(cause error) {
	c.mu.Lock()
	if c.closed == nil {
		c.closed = cause
	}
	c.mu.Unlock()
	c.end(cause)
}

// tell runs a callback beside the reader, which must not wait for it.
func (c *Client) tell(f func()) {
	go func() {
		c.tellMu.Lock()
		defer c.tellMu.Unlock()
		f()
	}()
}

// millis rounds a duration up to the wire's unit: a short wait stays a wait.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
