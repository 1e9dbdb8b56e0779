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
	// backoffFirst and backoffMost bound the pause between two attempts to
	// reconnect. The most is well under the shortest restart grace (1 s), in which
	// the leases must be bound again.
	backoffFirst = 10 * time.Millisecond
	backoffMost  = 400 * time.Millisecond

	// steady is how long a connection must last before the back-off starts anew.
	steady = time.Second

	// helloTime is how long a sidecar has to answer a hello, where no caller waits for it.
	helloTime = 30 * time.Second

	// writeChunk bounds the bytes encoded before they are written.
	writeChunk = 256 << 10

	// maxReply is what a reply may have at the largest max_frame there is.
	maxReply = 8 * protocol.MaxMaxFrame
)

// link is one connection, from hello to its end.
type link struct {
	number uint64
	conn   net.Conn
	in     *protocol.Reader
	since  time.Time
}

// connect dials and says hello. The connection is ended when ctx is, while it does.
func (c *Client) connect(ctx context.Context) (*link, error) {
	conn, err := c.opts.Dial(ctx)
	if err != nil {
		if ctx.Err() != nil { // whatever the dialler made of it
			err = context.Cause(ctx)
		}
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	l := &link{conn: conn, in: protocol.NewReader(conn, maxReply), since: time.Now()}
	hello, err := c.sayHello(l)
	if !stop() { // whatever the socket said, this is why
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, ignoreClosed(conn.Close()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hello = *hello
	c.link++
	l.number = c.link
	return l, nil
}

func (c *Client) sayHello(l *link) (*protocol.HelloReply, error) {
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
		case rep.Event != "": // draining may come first
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
func (l *link) next() (*protocol.Reply, error) {
	body, codec, err := l.in.Next()
	if err != nil {
		return nil, readError(err)
	}
	rep := new(protocol.Reply)
	if err := codec.DecodeReply(body, rep); err != nil {
		return nil, readError(err)
	}
	return rep, nil
}

// readError says why the reading ended. What this side finds wrong with the bytes
// must not pass for an error that the sidecar sent.
func readError(err error) error {
	var wire *protocol.Error
	switch {
	case errors.Is(err, io.EOF):
		return errClosedByPeer
	case errors.As(err, &wire):
		return fmt.Errorf("what came is no sidecar's answer: %s", wire.Message)
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

// run keeps a connection until the client is closed.
func (c *Client) run(l *link) {
	defer close(c.stopped)
	for tries := 0; l != nil; {
		cause := c.serve(l)
		c.mu.Lock()
		c.requeueLocked(cause)
		c.mu.Unlock()
		if time.Since(l.since) >= steady {
			tries = 0
		}
		l, tries = c.reconnect(tries)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(c.closed)
	clear(c.held)
}

// reconnect tries until there is a connection. It returns nil when the client is closed.
func (c *Client) reconnect(tries int) (*link, int) {
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
		c.outage(err, !away) // a restart is over by the first try
		away = true
	}
}

func (c *Client) outage(err error, told bool) {
	if f := c.opts.onOutage; f != nil && told {
		f(err)
	}
}

// backoff is the jittered pause before the n-th try, n from 1.
func backoff(n int) time.Duration {
	d := min(backoffFirst<<min(n-1, 10), backoffMost)
	return d/2 + rand.N(d/2)
}

// pause waits for d and reports whether ctx lasted.
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

// serve uses one connection until it ends and says why it did. This goroutine is
// its reader; the writer and the binder have ended when it returns.
func (c *Client) serve(l *link) error {
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
		err = errClosedByPeer // the writer noticed first
	}
	stop()
	l.conn.Close() // the reader's error is the one that counts
	cancel()
	<-writer
	// The binder waits for an answer that cannot come any more: its ctx is over.
	<-binder
	return err
}

// read takes replies in until the connection ends.
func (c *Client) read(l *link) error {
	for {
		rep, err := l.next()
		if err != nil {
			return err
		}
		if rep.Event == "" && !rep.ID.IsSet() { // of no request: the connection's own
			c.mu.Lock()
			c.refuseLocked(rep.Error)
			c.mu.Unlock()
			continue
		}
		c.take(l, rep)
	}
}

// refuseLocked is for an error of the whole connection, which closes now. It may
// be about any of the open requests: none is sent again, lest the guilty one
// break every connection to come.
func (c *Client) refuseLocked(e *protocol.Error) {
	if e == nil {
		return
	}
	for _, cl := range c.open {
		c.finishLocked(cl, result{err: e})
	}
}

// write sends what is queued, until ctx ends or a write fails.
func (c *Client) write(ctx context.Context, l *link) {
	var buf []byte
	for {
		buf = buf[:0]
		c.mu.Lock()
		for now := time.Now(); len(c.queue) > 0 && len(buf) < writeChunk; c.queue = c.queue[1:] {
			buf = c.sendLocked(buf, c.queue[0], now)
			c.queue[0] = nil // its payload is its caller's
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
			buf = nil // one large request should not be kept for ever
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return
		}
	}
}

// send writes b. Where that fails it closes the connection: the reader notices,
// and says why.
func (l *link) send(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if _, err := l.conn.Write(b); err != nil {
		l.conn.Close()
		return false
	}
	return true
}
