package qsidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// Options configure a Client: how to reach a sidecar, and which events to report.
type Options struct {
	// Socket is the path of the sidecar's Unix socket. If it is empty, the client uses the first of
	// Sockets on which a sidecar listens.
	Socket string

	// Worker is the name of this worker, at most 128 bytes. The database keeps it with the claims,
	// for people.
	Worker string

	// OnLost is called with the session leases that the client held and that were lost. Another
	// worker can have their jobs by now. It runs in its own goroutine, one callback at a time, and
	// can use the Client. It is not called for a lease that is being settled: the settle returns
	// the error. reason is protocol.ReasonCancelled if an operator or a producer cancelled the jobs, and otherwise empty.
	OnLost func(leases []string, reason string)

	// OnDraining is called if the sidecar is about to exit, in the same goroutine as OnLost.
	OnDraining func()

	// Retry is how long the client repeats a request that the sidecar can't carry out now: an ack,
	// nack or extend that is answered unavailable, busy or unknown_outcome, and an enqueue with
	// keys that is answered unknown_outcome. 0 means one minute, a negative value disables it. A
	// claim that waits is repeated for as long as its Wait, also after draining (unless Retry is
	// negative).
	Retry time.Duration

	// RequestTimeout limits Enqueue and EnqueueMany if their context has no deadline, so that a
	// producer with a user at the other end does not wait for a sidecar that is down. 0 means the
	// number of seconds in QSIDECAR_ENQUEUE_TIMEOUT, or else two seconds. A negative value means no
	// limit. Other calls are limited only by their context.
	RequestTimeout time.Duration

	// Dial, if set, opens connections instead of dialing Socket. It must not use the Client, whose calls wait for the
	// connection: a call with Dial's context fails with ErrReentrant.
	Dial func(ctx context.Context) (net.Conn, error)

	// onOutage is set by a Worker. It is called with the error of a failed reconnect, and with nil
	// after a successful one.
	onOutage func(error)
}

// Client is a connection to a sidecar. It reconnects if the connection breaks. Its methods are safe
// for concurrent use.
type Client struct {
	opts       Options
	end        context.CancelCauseFunc // ends ctx
	ctx        context.Context         // ends when the client is closed
	stopped    chan struct{}           // closed when the last goroutine of the client has ended
	callbackMu sync.Mutex              // held while a callback runs, so that there is one at a time

	mu         sync.Mutex // guards the fields below
	hello      protocol.HelloReply
	lastID     uint64
	queue      []*call                      // calls to send, in order
	open       map[protocol.RequestID]*call // calls that were sent on the current connection and have no reply
	wake       chan struct{}                // capacity 1, so that no wake-up of the writer is lost
	leases     map[string]*lease            // session leases that the client holds
	unsettled  chan struct{}                // capacity 1: a settle ended, and possibly its leases must be bound
	connNumber uint64                       // number of the current connection, from 1
	returned   []chan struct{}              // closed once returning is 0
	returning  int                          // abandoned claims and returns without a reply
	join       bool                         // of the last reply to a claim on the current connection
	closed     error                        // why the client was closed; set once
}

// Dial connects to the sidecar and sends hello. It fails if no sidecar answers: the client only
// reconnects after a first connection.
func Dial(ctx context.Context, opts Options) (*Client, error) {
	if opts.RequestTimeout == 0 {
		var err error
		if opts.RequestTimeout, err = enqueueTime(os.Getenv(envEnqueueTimeout)); err != nil {
			return nil, err
		}
	}
	c := &Client{
		opts:      opts,
		stopped:   make(chan struct{}),
		open:      make(map[protocol.RequestID]*call),
		wake:      make(chan struct{}, 1),
		leases:    make(map[string]*lease),
		unsettled: make(chan struct{}, 1),
	}
	l, err := c.firstConnection(ctx)
	if err != nil {
		return nil, err
	}
	c.ctx, c.end = context.WithCancelCause(context.WithoutCancel(ctx))
	go c.run(l)
	return c, nil
}

// firstConnection opens the first connection.
func (c *Client) firstConnection(ctx context.Context) (*connection, error) {
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

// Server returns what the sidecar reported about itself in the last hello.
func (c *Client) Server() protocol.HelloReply {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hello
}

// Call sends one request and waits for its reply. The typed methods use it. The client sets the
// request's ID. Do not send hello, bye or cancel_claim: the client sends them itself (Dial, Bye, and the
// end of ctx).
//
// An error of the sidecar is a *protocol.Error. If ctx ends first, the error is a *BrokenError with
// ctx's cause. The client then cancels a waiting claim, and returns any jobs that it still gets
// without using up an attempt. After a settle that was sent twice, both results can be set: see
// *SettledOrLostError. They also are if a settle with a Claim failed and its claim got jobs: the reply
// has the jobs.
func (c *Client) Call(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
	switch req.Op {
	case protocol.OpHello, protocol.OpBye, protocol.OpCancelClaim:
		return nil, fmt.Errorf("qsidecar: Call: %s is sent by the client itself", req.Op)
	}
	return c.callRetrying(ctx, req)
}

// callOnce sends a call once, or once on each connection if it is repeatable.
func (c *Client) callOnce(ctx context.Context, cl *call) (*protocol.Reply, error) {
	if ctx.Value(dialing{}) == c {
		return nil, ErrReentrant
	}
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

// Bye returns everything that the client holds without using up attempts, including jobs that still
// arrive for abandoned claims. Then it closes the client. If ctx ends first, it closes the client
// as Close does.
func (c *Client) Bye(ctx context.Context) error {
	defer c.Close()
	if err := c.waitReturned(ctx); err != nil {
		return err
	}
	leases, bound := c.heldLeases()
	if len(leases) == 0 {
		return nil // nothing to return, so closing is enough
	}
	if bound { // bye keeps the jobs' positions, but it applies to one connection
		if _, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpBye}); err == nil {
			return nil
		}
	}
	for some := range slices.Chunk(leases, protocol.MaxList) {
		var either *SettledOrLostError
		if _, err := c.NackMany(ctx, some, Nack{Snooze: true, Delay: new(time.Duration)}); err != nil && !errors.As(err, &either) {
			return err
		}
	}
	return nil
}

// Close closes the connection at once. The sidecar takes back the client's jobs as if the worker
// had died. Use Bye to return them. Calls in progress end with ErrClosed.
func (c *Client) Close() error {
	c.closeWith(ErrClosed)
	<-c.stopped
	return nil
}

// closeWith ends the client. The first cause stays.
func (c *Client) closeWith(cause error) {
	c.mu.Lock()
	if c.closed == nil {
		c.closed = cause
	}
	c.mu.Unlock()
	c.end(cause)
}

// callback runs f beside the reader, which must not wait for it.
func (c *Client) callback(f func()) {
	go func() {
		c.callbackMu.Lock()
		defer c.callbackMu.Unlock()
		f()
	}()
}

// millis rounds a duration up to milliseconds, so that a short wait does not become none.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
