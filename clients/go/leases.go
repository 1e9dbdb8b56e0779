package qsidecar

import (
	"context"
	"slices"

	"github.com/qsidecar/qsidecar/protocol"
)

// lease is a session lease that the client holds.
type lease struct {
	link     uint64 // the connection that it is known to be bound to
	settling int    // settles under way
}

// holding counts the session leases held.
func (c *Client) holding() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held)
}

// Holds reports whether a session lease is the client's as far as it was told: claimed through it
// or bound to it, and neither settled nor lost since. A lease is not held any more when
// Options.OnLost is told of it.
func (c *Client) ClaimsInTx(lease string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[lease] != nil
}

func (c *Client) settlingLocked(cl *call, d int) {
	for _, s := range cl.leases() {
		if h := c.held[s]; h != nil {
			h.settling += d
		}
	}
}

// take does what a reply says and gives it to its caller.
func (c *Client) take(l *link, rep *protocol.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch rep.Event {
	case "":
	case "lost":
		c.dropLocked(rep.Lost)
		return
	case "draining":
		if f := c.opts.OnDraining; f != nil {
			c.tell(f)
		}
		return
	default:
		return // a later version's
	}
	cl := c.open[rep.ID]
	if cl == nil {
		return // its caller went away before the connection knew
	}
	res := result{reply: rep}
	if rep.Error != nil {
		res = result{err: rep.Error}
	}
	c.accountLocked(l, cl, rep)
	if cl.twice && cl.settles() {
		res = secondTry(cl, res)
	}
	if cl.abandoned {
		c.giveBackLocked(rep.Jobs) // before the claim is finished: Bye waits for both
	}
	c.finishLocked(cl, res)
}

// secondTry turns what a settle that was sent twice calls lost into what it is.
func secondTry(cl *call, res result) result {
	switch {
	case IsLost(res.err):
		return result{err: &SettledOrLostError{Op: cl.req.Op, Leases: cl.leases()}}
	case res.reply != nil && res.reply.Settled != nil && len(res.reply.Settled.Lost) > 0:
		res.err = &SettledOrLostError{Op: cl.req.Op, Leases: res.reply.Settled.Lost}
	}
	return res
}

// accountLocked keeps the book of session leases.
func (c *Client) accountLocked(l *link, cl *call, rep *protocol.Reply) {
	switch cl.req.Op {
	case protocol.OpClaim:
		if cl.req.LeaseMS.Set || cl.abandoned {
			return
		}
		for _, j := range rep.Jobs {
			c.held[j.Lease] = &lease{link: l.number}
		}
	case protocol.OpAck, protocol.OpNack:
		if rep.OK || rep.Error != nil && rep.Error.Code == protocol.CodeLeaseLost {
			c.forgetLocked(cl.leases())
		}
	case protocol.OpExtend:
		c.extendedLocked(l, cl, rep)
	case protocol.OpBye:
		clear(c.held)
	}
}

func (c *Client) extendedLocked(l *link, cl *call, rep *protocol.Reply) {
	leases := cl.leases()
	switch {
	case rep.OK && rep.Settled != nil && cl.binder:
		c.dropLocked(rep.Settled.Lost)
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
			if h := c.held[s]; h != nil {
				h.link = l.number
			} else if !cl.binder { // the binder's may have been settled meanwhile
				c.held[s] = &lease{link: l.number}
			}
		}
	case cl.req.LeaseMS.Set: // timed from now on
		c.forgetLocked(leases)
	}
}

func (c *Client) forgetLocked(leases []string) {
	for _, s := range leases {
		delete(c.held, s)
	}
}

// dropLocked forgets lost leases and tells those that nobody is settling.
func (c *Client) dropLocked(lost []string) {
	var tell []string
	for _, s := range lost {
		h := c.held[s]
		if h == nil {
			continue
		}
		delete(c.held, s)
		if h.settling == 0 {
			tell = append(tell, s)
		}
	}
	if f := c.opts.OnLost; f != nil && len(tell) > 0 {
		c.tell(func() { f(tell) })
	}
}

// bind makes the session leases held this connection's, until all are or the
// connection ends. It outlives errors: a database that is away for a moment must
// not cost a worker its job.
func (c *Client) bind(ctx context.Context, l *link) {
	for tries := 0; ; {
		leases := c.unbound(l)
		if len(leases) == 0 {
			return
		}
		if tries > 0 && !pause(ctx, backoff(tries)) {
			return
		}
		cl := newCall(ctx, &protocol.Request{Op: protocol.OpExtend, Leases: leases, Bind: true})
		cl.binder = true
		if c.submit(cl) != nil {
			return // closed
		}
		select {
		case res := <-cl.done:
			tries++
			if res.err == nil {
				tries = 0
			}
		case <-ctx.Done():
			_, _ = c.abandon(cl, errClosedByPeer) // the next connection binds anew
			return
		}
	}
}

// unbound lists held leases that are not known to be bound to l, as many as a
// request takes.
func (c *Client) unbound(l *link) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for s, h := range c.held {
		if h.link != l.number {
			if out = append(out, s); len(out) == protocol.MaxList {
				break
			}
		}
	}
	return out
}
