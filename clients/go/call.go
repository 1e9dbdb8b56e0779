package qsidecar

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// call is one request on its way to an answer. The Client's mutex guards it
// once it is submitted.
type call struct {
	ctx       context.Context
	req       protocol.Request // the call's own copy, with its id
	seq       uint64           // its id as a number
	done      chan result      // 1: the reader waits for nobody
	state     callState
	firstSent time.Time // zero: never sent
	twice     bool      // sent on an earlier connection too, which never answered
	abandoned bool      // nobody waits for the answer
	binder    bool      // the client's own, after a reconnect
	owed      bool      // Bye waits for the answer
}

type callState uint8

const (
	queued callState = iota
	sent
	finished
)

type result struct {
	reply *protocol.Reply
	err   error
}

func newCall(ctx context.Context, req *protocol.Request) *call {
	return &call{ctx: ctx, req: *req, done: make(chan result, 1)}
}

// leases are those that the call settles or extends.
func (cl *call) leases() []string {
	if cl.req.Leases != nil {
		return cl.req.Leases
	}
	if cl.req.Lease != "" {
		return []string{cl.req.Lease}
	}
	return nil
}

func (cl *call) settles() bool {
	return cl.req.Op == protocol.OpAck || cl.req.Op == protocol.OpNack
}

// repeatable reports whether the request may be sent again although an earlier
// try may have been carried out.
func repeatable(req *protocol.Request) bool {
	switch req.Op {
	case protocol.OpEnqueue:
		if req.Jobs == nil {
			return req.Job.Key != ""
		}
		return !slices.ContainsFunc(req.Jobs, func(j protocol.NewJob) bool { return j.Key == "" })
	case protocol.OpRelease: // could take a newer claim back
		return false
	case protocol.OpCancel, protocol.OpBye: // of one connection
		return false
	}
	return true
}

// submit queues a call for the writer.
func (c *Client) submit(cl *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return &BrokenError{Op: cl.req.Op, Err: c.closed}
	}
	c.enqueueLocked(cl)
	return nil
}

func (c *Client) enqueueLocked(cl *call) {
	c.lastID++
	cl.seq = c.lastID
	cl.req.ID = protocol.NumberID(c.lastID)
	c.queue = append(c.queue, cl)
	if cl.settles() {
		c.settlingLocked(cl, +1)
	}
	if cl.owed {
		c.owed++
	}
	c.wakeWriter()
}

func (c *Client) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// finishLocked gives a call its result and takes it out of all books.
func (c *Client) finishLocked(cl *call, res result) {
	if cl.state == finished {
		return
	}
	cl.state = finished
	delete(c.open, cl.req.ID)
	if cl.settles() {
		c.settlingLocked(cl, -1)
	}
	if cl.owed {
		cl.owed = false
		c.owed--
		c.quietLocked()
	}
	cl.done <- res
}

// abandon is for a caller whose context ended. An answer that is there already
// is still the caller's.
func (c *Client) abandon(cl *call, cause error) (*protocol.Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch cl.state {
	case finished:
		res := <-cl.done
		return res.reply, res.err
	case queued:
		c.queue = slices.DeleteFunc(c.queue, func(q *call) bool { return q == cl })
		c.finishLocked(cl, result{})
		return nil, &BrokenError{Op: cl.req.Op, Sent: cl.twice, Err: cause}
	}
	cl.abandoned = true
	if cl.req.Op == protocol.OpClaim {
		cl.owed = true
		c.owed++
		if cl.req.WaitMS > 0 {
			c.enqueueLocked(newCall(c.ctx, &protocol.Request{Op: protocol.OpCancel, Cancel: cl.req.ID}))
		}
	}
	return nil, &BrokenError{Op: cl.req.Op, Sent: true, Err: cause}
}

// giveBackLocked returns the jobs of a claim that nobody waits for.
func (c *Client) giveBackLocked(jobs []protocol.Job) {
	if len(jobs) == 0 {
		return
	}
	leases := make([]string, len(jobs))
	for i, j := range jobs {
		leases[i] = j.Lease
	}
	cl := newCall(c.ctx, &protocol.Request{
		Op: protocol.OpNack, Leases: leases,
		Charge: protocol.Some(false), DelayMS: protocol.Some[int64](0),
	})
	cl.owed = true
	c.enqueueLocked(cl)
}

// quiet waits until every abandoned claim is answered and what it got is given back.
func (c *Client) quiet(ctx context.Context) error {
	c.mu.Lock()
	done := make(chan struct{})
	c.idle = append(c.idle, done)
	c.quietLocked()
	c.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Client) quietLocked() {
	if c.owed > 0 {
		return
	}
	for _, done := range c.idle {
		close(done)
	}
	c.idle = nil
}

// sendLocked appends a call's frame to buf, and counts it among the connection's open ones. This
// happens under the lock, so that nothing reads a request whose caller has gone. What cannot be
// sent ends with an error here: the sidecar would answer it by closing the connection on everybody.
func (c *Client) sendLocked(buf []byte, cl *call, now time.Time) []byte {
	if cl.req.WaitMS > 0 && !cl.firstSent.IsZero() { // the wait goes on, it does not begin again
		cl.req.WaitMS = max(0, cl.req.WaitMS-now.Sub(cl.firstSent).Milliseconds())
	}
	if cl.req.WaitMS > 0 || cl.firstSent.IsZero() {
		cl.firstSent = now
	}
	out := protocol.Msgpack.AppendRequest(buf, &cl.req)
	if size := int64(len(out) - len(buf) - 4); c.hello.MaxFrame > 0 && size > c.hello.MaxFrame {
		c.finishLocked(cl, result{err: protocol.Errorf(protocol.CodeTooLarge,
			"%s was not sent: it has %d bytes and the sidecar takes %d at most (max_frame)", cl.req.Op, size, c.hello.MaxFrame)})
		return buf
	}
	cl.state = sent
	c.open[cl.req.ID] = cl
	return out
}

// requeueLocked sorts the open calls of a connection that ended with cause: those
// that may be sent again go before the queue, in their old order.
func (c *Client) requeueLocked(cause error) {
	var again []*call
	for _, cl := range c.open {
		why := cause
		if cl.ctx.Err() != nil {
			why = context.Cause(cl.ctx)
		} else if !cl.abandoned && repeatable(&cl.req) {
			cl.state, cl.twice = queued, true
			again = append(again, cl)
			continue
		}
		c.finishLocked(cl, result{err: &BrokenError{Op: cl.req.Op, Sent: true, Err: why}})
	}
	clear(c.open)
	slices.SortFunc(again, func(a, b *call) int { return cmp.Compare(a.seq, b.seq) })
	c.queue = append(again, c.queue...)
	if len(c.queue) > 0 {
		c.wakeWriter()
	}
}

// failLocked ends every call of a client that was closed.
func (c *Client) failLocked(cause error) {
	for _, cl := range c.queue {
		c.finishLocked(cl, result{err: &BrokenError{Op: cl.req.Op, Sent: cl.twice, Err: cause}})
	}
	c.queue = nil
	for _, cl := range c.open {
		c.finishLocked(cl, result{err: &BrokenError{Op: cl.req.Op, Sent: true, Err: cause}})
	}
}
