package qsidecar

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// call is one request that waits for its reply. The Client's mutex guards it after submit.
type call struct {
	ctx       context.Context
	req       protocol.Request // the call's own copy, with its id
	seq       uint64           // its id as a number
	done      chan result      // capacity 1, so that the reader never blocks; nil if behind is set
	behind    *settle          // gets the result instead of done, for a settle of a Settler
	state     callState
	firstSent time.Time // zero if it was never sent
	resent    bool      // also sent on an earlier connection, which ended without a reply
	abandoned bool      // the caller no longer waits for the reply
	rebinds   bool      // the extend that the client sends after a reconnect
	returns   bool      // Bye waits for the reply
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

// leases returns the leases that the call settles or extends.
func (c *call) leases() []string {
	if c.req.Leases != nil {
		return c.req.Leases
	}
	if c.req.Lease != "" {
		return []string{c.req.Lease}
	}
	return nil
}

func (c *call) settles() bool {
	return c.req.Op == protocol.OpAck || c.req.Op == protocol.OpNack
}

// repeatable reports whether the client can send the request again although the sidecar may have
// carried out an earlier one.
func repeatable(req *protocol.Request) bool {
	switch req.Op {
	case protocol.OpEnqueue:
		if req.Jobs == nil {
			return req.Job.Key != ""
		}
		return !slices.ContainsFunc(req.Jobs, func(j protocol.NewJob) bool { return j.Key == "" })
	case protocol.OpOpenBatch:
		return req.Key != ""
	case protocol.OpReclaim, protocol.OpChangeSchedule: // it could reclaim a newer claim of the job, or run a schedule twice
		return false
	case protocol.OpCancelClaim, protocol.OpBye: // they refer to one connection
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
	if cl.returns {
		c.returning++
	}
	c.wakeWriter()
}

func (c *Client) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// finishLocked delivers the result of a call and removes the call from the client's state.
func (c *Client) finishLocked(cl *call, res result) {
	if cl.state == finished {
		return
	}
	cl.state = finished
	delete(c.open, cl.req.ID)
	if cl.settles() {
		c.settlingLocked(cl, -1)
	}
	if cl.returns {
		cl.returns = false
		c.returning--
		c.notifyReturnedLocked()
	}
	if cl.behind != nil {
		cl.behind.answerLocked(res)
		return
	}
	cl.done <- res
}

// abandon ends a call whose context ended. If the reply has arrived, it returns the reply.
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
		return nil, &BrokenError{Op: cl.req.Op, Sent: cl.resent, Err: fmt.Errorf("no sidecar took it on %s: %w", c.opts.Socket, cause)}
	}
	cl.abandoned = true
	if cl.req.Op == protocol.OpClaim || cl.req.Claim != nil {
		cl.returns = true
		c.returning++
		if cl.req.WaitMS > 0 {
			c.enqueueLocked(newCall(c.ctx, &protocol.Request{Op: protocol.OpCancelClaim, Cancel: cl.req.ID}))
		}
	}
	return nil, &BrokenError{Op: cl.req.Op, Sent: true, Err: cause}
}

// returnJobsLocked returns the jobs of an abandoned claim to their queue, without using up an
// attempt.
func (c *Client) returnJobsLocked(jobs []protocol.Job) {
	if len(jobs) == 0 {
		return
	}
	leases := make([]string, len(jobs))
	for i, j := range jobs {
		leases[i] = j.Lease
	}
	cl := newCall(c.ctx, &protocol.Request{
		Op: protocol.OpNack, Leases: leases,
		Snooze: true, DelayMS: protocol.Some[int64](0),
	})
	cl.returns = true
	c.enqueueLocked(cl)
}

// waitReturned waits until every abandoned claim is answered and its jobs are returned.
func (c *Client) waitReturned(ctx context.Context) error {
	c.mu.Lock()
	done := make(chan struct{})
	c.returned = append(c.returned, done)
	c.notifyReturnedLocked()
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

func (c *Client) notifyReturnedLocked() {
	if c.returning > 0 {
		return
	}
	for _, done := range c.returned {
		close(done)
	}
	c.returned = nil
}

// sendLocked appends a call's frame to buf and adds the call to the open calls. It holds the lock
// so that it does not read a request whose caller has returned. If the request is too large, the
// call fails here: the sidecar would close the connection for all calls.
func (c *Client) sendLocked(buf []byte, cl *call, now time.Time) []byte {
	if cl.req.WaitMS > 0 && !cl.firstSent.IsZero() { // a claim that is sent again waits only for the rest of its time
		cl.req.WaitMS = max(0, cl.req.WaitMS-now.Sub(cl.firstSent).Milliseconds())
	}
	if cl.req.WaitMS > 0 || cl.firstSent.IsZero() {
		cl.firstSent = now
	}
	out := protocol.Msgpack.AppendRequest(buf, &cl.req)
	if size := int64(len(out) - len(buf) - 4); c.hello.MaxFrame > 0 && size > c.hello.MaxFrame {
		c.finishLocked(cl, result{err: protocol.Errorf(protocol.CodeTooLarge,
			"%s was not sent: it has %d bytes and the sidecar takes %d at most (max_frame): store the data elsewhere and send its address, or raise max_frame in the sidecar's config", cl.req.Op, size, c.hello.MaxFrame)})
		return buf
	}
	cl.state = sent
	c.open[cl.req.ID] = cl
	return out
}

// requeueLocked handles the open calls of a connection that ended with cause. It puts calls that
// can be repeated before the queue, in their old order, and fails the others. It also fails a bye
// that is queued, because it refers to that connection.
func (c *Client) requeueLocked(cause error) {
	var again []*call
	for _, cl := range c.open {
		why := cause
		if cl.ctx.Err() != nil {
			why = context.Cause(cl.ctx)
		} else if !cl.abandoned && repeatable(&cl.req) {
			cl.state, cl.resent = queued, true
			again = append(again, cl)
			continue
		}
		c.finishLocked(cl, result{err: &BrokenError{Op: cl.req.Op, Sent: true, Err: why}})
	}
	clear(c.open)
	c.join = false
	c.connNumber++ // no lease is bound until there is a new connection
	c.queue = slices.DeleteFunc(c.queue, func(cl *call) bool {
		ended := cl.req.Op == protocol.OpBye
		if ended {
			c.finishLocked(cl, result{err: &BrokenError{Op: cl.req.Op, Err: cause}})
		}
		return ended
	})
	slices.SortFunc(again, func(a, b *call) int { return cmp.Compare(a.seq, b.seq) })
	c.queue = append(again, c.queue...)
	if len(c.queue) > 0 {
		c.wakeWriter()
	}
}

// failLocked fails every call of a client that was closed.
func (c *Client) failLocked(cause error) {
	for _, cl := range c.queue {
		c.finishLocked(cl, result{err: &BrokenError{Op: cl.req.Op, Sent: cl.resent, Err: cause}})
	}
	c.queue = nil
	for _, cl := range c.open {
		c.finishLocked(cl, result{err: &BrokenError{Op: cl.req.Op, Sent: true, Err: cause}})
	}
}
