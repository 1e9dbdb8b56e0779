package qsidecar

import (
	"context"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/protocol"
)

// lease is a session lease that the client holds.
type lease struct {
	connNumber uint64 // the connection that it is bound to, according to the client's state
	settling   int    // settles in progress
}

// heldLeases returns the session leases held, and whether all are bound to the open connection.
func (c *Client) heldLeases() (leases []string, bound bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	bound = true
	for s, h := range c.leases {
		leases = append(leases, s)
		bound = bound && h.connNumber == c.connNumber
	}
	return leases, bound
}

// Holds reports whether the client holds a session lease, according to its own state: the lease was claimed
// through it or bound to it, and neither settled nor lost since. When Options.OnLost is called, the
// client no longer holds the lease.
func (c *Client) Holds(lease string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leases[lease] != nil
}

func (c *Client) settlingLocked(cl *call, d int) {
	for _, s := range cl.leases() {
		if h := c.leases[s]; h != nil {
			h.settling += d
			if d < 0 && h.connNumber != c.connNumber {
				c.wakeBinder()
			}
		}
	}
}

// handleReply applies a message of the sidecar to the client's state and delivers a reply to its
// caller.
func (c *Client) handleReply(l *connection, rep *protocol.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch rep.Event {
	case "":
	case "lost":
		c.loseLeasesLocked(rep.Lost, rep.Reason)
		return
	case "draining":
		if f := c.opts.OnDraining; f != nil {
			c.callback(f)
		}
		return
	default:
		return // an event of a later version
	}
	cl := c.open[rep.ID]
	if cl == nil {
		return // the call was abandoned before this connection
	}
	if cl.req.Op == protocol.OpClaim || cl.req.Claim != nil {
		c.join = rep.Join
	}
	res := result{reply: rep}
	if rep.Error != nil {
		res.err = rep.Error
		if rep.Jobs == nil { // a settle that failed can have jobs of its claim
			res.reply = nil
		}
	}
	c.updateLeasesLocked(l, cl, rep)
	if cl.resent && cl.settles() {
		res = resentResult(cl, res)
	}
	if cl.abandoned {
		c.returnJobsLocked(rep.Jobs) // before finishLocked, because Bye waits for both
	}
	c.finishLocked(cl, res)
}

// resentResult turns lost leases of a settle that was sent twice into a SettledOrLostError.
func resentResult(cl *call, res result) result {
	switch {
	case IsLost(res.err):
		res.err = &SettledOrLostError{Op: cl.req.Op, Leases: cl.leases()}
	case res.reply != nil && res.reply.Settled != nil && len(res.reply.Settled.Lost) > 0:
		res.err = &SettledOrLostError{Op: cl.req.Op, Leases: res.reply.Settled.Lost}
	}
	return res
}

// updateLeasesLocked updates the held session leases after a reply.
func (c *Client) updateLeasesLocked(l *connection, cl *call, rep *protocol.Reply) {
	switch cl.req.Op {
	case protocol.OpClaim:
		c.holdLocked(l, cl, rep.Jobs, cl.req.LeaseMS.Set)
	case protocol.OpAck, protocol.OpNack:
		if cl.req.Claim != nil {
			c.holdLocked(l, cl, rep.Jobs, cl.req.Claim.LeaseMS.Set)
		}
		if rep.OK || rep.Error != nil && rep.Error.Code == protocol.CodeLeaseLost {
			c.forgetLocked(cl.leases())
		}
	case protocol.OpExtend:
		c.extendedLocked(l, cl, rep)
	case protocol.OpBye:
		clear(c.leases)
	}
}

// holdLocked adds the session leases of claimed jobs.
func (c *Client) holdLocked(l *connection, cl *call, jobs []protocol.Job, timed bool) {
	if timed || cl.abandoned {
		return
	}
	for _, j := range jobs {
		c.leases[j.Lease] = &lease{connNumber: l.number}
	}
}

func (c *Client) extendedLocked(l *connection, cl *call, rep *protocol.Reply) {
	leases := cl.leases()
	switch {
	case rep.OK && rep.Settled != nil && cl.rebinds:
		c.loseLeasesLocked(rep.Settled.Lost, "")
	case rep.OK && rep.Settled != nil:
		lost := rep.Settled.Lost
		c.forgetLocked(lost)
		leases = slices.DeleteFunc(slices.Clone(leases), func(s string) bool { return slices.Contains(lost, s) })
	case rep.Error != nil && rep.Error.Code == protocol.CodeLeaseLost:
		c.forgetLocked(leases)
		return
	default:
		return
	}
	switch {
	case cl.req.Bind:
		for _, s := range leases {
			if h := c.leases[s]; h != nil {
				h.connNumber = l.number
			} else if !cl.rebinds { // a lease of the client's own extend can have been settled in between
				c.leases[s] = &lease{connNumber: l.number}
			}
		}
	case cl.req.LeaseMS.Set: // it is a timed lease now
		c.forgetLocked(leases)
	}
}

func (c *Client) forgetLocked(leases []string) {
	for _, s := range leases {
		delete(c.leases, s)
	}
}

// loseLeasesLocked removes lost leases and reports those that are not being settled.
func (c *Client) loseLeasesLocked(lost []string, reason string) {
	var reported []string
	for _, s := range lost {
		h := c.leases[s]
		if h == nil {
			continue
		}
		delete(c.leases, s)
		if h.settling == 0 {
			reported = append(reported, s)
		}
	}
	if f := c.opts.OnLost; f != nil && len(reported) > 0 {
		c.callback(func() { f(reported, reason) })
	}
}

// bind binds the held session leases to this connection, until the connection ends. It continues
// after errors: a worker must not lose its job because the database is unavailable for a moment.
func (c *Client) bind(ctx context.Context, l *connection) {
	for tries := 0; ; {
		if tries > 0 && !pause(ctx, backoff(tries)) {
			return
		}
		cl := c.submitBind(ctx, l)
		if cl == nil {
			select {
			case <-c.unsettled:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case res := <-cl.done:
			tries++
			if res.err == nil {
				tries = 0
			}
		case <-ctx.Done():
			_, _ = c.abandon(cl, errClosedByPeer) // the next connection binds them
			return
		}
	}
}

// submitBind queues an extend that binds held leases, or returns nil if there are none to bind. A settle under way
// comes before the extend, which would find its leases lost. If the settle fails, they are bound then.
func (c *Client) submitBind(ctx context.Context, l *connection) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	settling := make(map[string]bool)
	for _, cl := range slices.AppendSeq(slices.Clone(c.queue), maps.Values(c.open)) {
		if cl.settles() {
			for _, s := range cl.leases() {
				settling[s] = true
			}
		}
	}
	var leases []string
	for s, h := range c.leases {
		if h.connNumber != l.number && !settling[s] {
			if leases = append(leases, s); len(leases) == protocol.MaxList {
				break
			}
		}
	}
	if c.closed != nil || len(leases) == 0 {
		return nil
	}
	cl := newCall(ctx, &protocol.Request{Op: protocol.OpExtend, Leases: leases, Bind: true})
	cl.rebinds = true
	c.enqueueLocked(cl)
	return cl
}

func (c *Client) wakeBinder() {
	select {
	case c.unsettled <- struct{}{}:
	default:
	}
}
