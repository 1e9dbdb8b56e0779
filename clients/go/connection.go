package qsidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// backoffFirst and backoffMost bound the pause between two attempts to reconnect. backoffMost
	// is well below the shortest restart grace (1 s), within which the leases must be bound again.
	backoffFirst = 10 * time.Millisecond
	backoffMost  = 400 * time.Millisecond

	// stableAfter is how long a connection must last before the back-off starts again from
	// backoffFirst.
	stableAfter = time.Second

	// helloTime limits the wait for the reply to a hello if no caller's context does.
	helloTime = 30 * time.Second

	// writeChunk is how many bytes are encoded before they are written.
	writeChunk = 256 << 10

	// maxReply is the largest reply at the largest possible max_frame.
	maxReply = 8 * protocol.MaxMaxFrame
)

// connection is one connection, from hello to its end.
type connection struct {
	number uint64
	conn   net.Conn
	in     *protocol.Reader
	since  time.Time
}

// dialing is the key of the Client that a context of Options.Dial is for.
type dialing struct{}

// connect dials and sends hello. The end of ctx ends it.
func (c *Client) connect(ctx context.Context) (*connection, error) {
	conn, err := c.opts.Dial(context.WithValue(ctx, dialing{}, c))
	if err != nil {
		if ctx.Err() != nil { // the context's cause, whatever error the dialer returned
			err = context.Cause(ctx)
		}
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	l := &connection{conn: conn, in: protocol.NewReader(conn, maxReply), since: time.Now()}
	hello, err := c.sendHello(l)
	if !stop() { // the context's cause, whatever error the socket returned
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, ignoreClosed(conn.Close()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hello = *hello
	c.connNumber++
	l.number = c.connNumber
	return l, nil
}

func (c *Client) sendHello(l *connection) (*protocol.HelloReply, error) {
	req := &protocol.Request{
		ID: protocol.NumberID(0), Op: protocol.OpHello,
		Version: protocol.Some[int64](protocol.Version), Worker: c.opts.Worker,
	}
	if c.opts.OnLost != nil {
		req.Events = append(req.Events, "lost")
	}
	if c.opts.OnDraining != nil {
		req.Events = append(req.Events, "draining")
	}
	if _, err := l.conn.Write(protocol.Msgpack.AppendRequest(nil, req)); err != nil {
		return nil, fmt.Errorf("hello: %w", err)
	}
	for {
		rep, err := l.next()
		switch {
		case err != nil:
			return nil, fmt.Errorf("hello: %w", err)
		case rep.Event != "": // a draining event can come first
			continue
		case rep.Error != nil:
			return nil, rep.Error
		case rep.Hello == nil:
			return nil, errors.New("hello: the answer is not a sidecar's")
		}
		return rep.Hello, nil
	}
}

// next reads one reply.
func (c *connection) next() (*protocol.Reply, error) {
	body, codec, err := c.in.Next()
	if err != nil {
		return nil, readError(err)
	}
	rep := new(protocol.Reply)
	if err := codec.DecodeReply(body, rep); err != nil {
		return nil, readError(err)
	}
	return rep, nil
}

// readError returns why reading ended. An error that this side finds in the bytes must not look
// like an error of the sidecar.
func readError(err error) error {
	var wire *protocol.Error
	switch {
	case errors.Is(err, io.EOF):
		return errClosedByPeer
	case errors.As(err, &wire):
		return fmt.Errorf("the reply isn't from a sidecar: %s", wire.Message)
	}
	return err
}

var (
	errClosedByPeer = errors.New("the sidecar closed the connection")
	errNoHello      = errors.New("the sidecar did not answer in time")
)

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// run keeps a connection open until the client is closed.
func (c *Client) run(l *connection) {
	defer close(c.stopped)
	for tries := 0; l != nil; {
		cause := c.serve(l)
		c.mu.Lock()
		c.requeueLocked(cause)
		c.mu.Unlock()
		if time.Since(l.since) >= stableAfter {
			tries = 0
		}
		l, tries = c.reconnect(tries)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(c.closed)
	clear(c.leases)
}

// reconnect tries until it has a connection. It returns nil when the client is closed.
func (c *Client) reconnect(tries int) (*connection, int) {
	away := false
	for ; ; tries++ {
		if tries > 0 && !pause(c.ctx, backoff(tries)) {
			return nil, tries
		}
		ctx, cancel := context.WithTimeoutCause(c.ctx, helloTime, errNoHello)
		l, err := c.connect(ctx)
		cancel()
		if err == nil {
			c.outage(nil, away)
			return l, tries + 1
		}
		if c.ctx.Err() != nil {
			return nil, tries
		}
		c.outage(err, !away) // report an outage only after the first try, because a restart takes no longer than that
		away = true
	}
}

func (c *Client) outage(err error, report bool) {
	if f := c.opts.onOutage; f != nil && report {
		f(err)
	}
}

// backoff returns the jittered pause before the n-th try, n from 1.
func backoff(n int) time.Duration {
	d := min(backoffFirst<<min(n-1, 10), backoffMost)
	return d/2 + rand.N(d/2)
}

// pause waits for d. It reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve uses one connection until it ends and returns why it ended. This goroutine is the reader.
// The writer and the binder have ended when serve returns.
func (c *Client) serve(l *connection) error {
	ctx, cancel := context.WithCancel(c.ctx)
	stop := context.AfterFunc(ctx, func() { l.conn.Close() })
	writer, binder := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(writer)
		c.write(ctx, l)
	}()
	go func() {
		defer close(binder)
		c.bind(ctx, l)
	}()
	err := c.read(l)
	if cause := context.Cause(c.ctx); cause != nil {
		err = cause
	} else if errors.Is(err, net.ErrClosed) {
		err = errClosedByPeer // the writer saw it first
	}
	stop()
	l.conn.Close() // the reader's error is reported
	cancel()
	<-writer
	// The binder's context has ended, so it does not wait for a reply.
	<-binder
	return err
}

// read handles messages until the connection ends.
func (c *Client) read(l *connection) error {
	for {
		rep, err := l.next()
		if err != nil {
			return err
		}
		if rep.Event == "" && !rep.ID.IsSet() { // an error without an id is about the connection
			c.mu.Lock()
			c.refuseLocked(rep.Error)
			c.mu.Unlock()
			continue
		}
		c.handleReply(l, rep)
	}
}

// refuseLocked handles an error of the whole connection, which closes. Any of the open requests can
// be the cause. It repeats none of them, because the cause would break every later connection too.
func (c *Client) refuseLocked(e *protocol.Error) {
	if e == nil {
		return
	}
	for _, cl := range c.open {
		c.finishLocked(cl, result{err: e})
	}
}

// write sends queued calls until ctx ends or a write fails.
func (c *Client) write(ctx context.Context, l *connection) {
	var buf []byte
	for {
		buf = buf[:0]
		c.mu.Lock()
		for now := time.Now(); len(c.queue) > 0 && len(buf) < writeChunk; c.queue = c.queue[1:] {
			buf = c.sendLocked(buf, c.queue[0], now)
			c.queue[0] = nil // the caller owns the payload
		}
		more := len(c.queue) > 0
		c.mu.Unlock()
		if !l.send(buf) {
			return
		}
		if more {
			continue
		}
		if cap(buf) > 4*writeChunk {
			buf = nil // do not keep the buffer of a large request
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return
		}
	}
}

// send writes b. If that fails, it closes the connection, so that the reader ends and reports why.
func (c *connection) send(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if _, err := c.conn.Write(b); err != nil {
		c.conn.Close()
		return false
	}
	return true
}
