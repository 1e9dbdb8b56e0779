package qsidecar

import (
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// retryTime is Options.Retry where nothing is said: an outage of the database, or
// its failover, is over by then or is none to wait for.
const retryTime = time.Minute

// do carries a request out, and sends it again where the sidecar's answer was
// that it could not be done just now and somebody waits for it all the same.
func (c *Client) do(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
	began := time.Now()
	rep, err := c.try(ctx, newCall(ctx, req))
	if err == nil || !c.passing(req, err) {
		return rep, told(err)
	}
	// A lease that is lost between two tries is told by the second one's answer.
	c.mu.Lock()
	c.settlingLocked(newCall(ctx, req), +1)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settlingLocked(newCall(ctx, req), -1)
	}()
	rep, err = c.insist(ctx, req, began, err)
	return rep, told(err)
}

// told is an error as the caller gets it.
func told(err error) error {
	if e, ok := errors.AsType[*protocol.Error](err); ok && e.Code == protocol.CodeUnknownOutcome {
		return &unknownError{e}
	}
	return err
}

// unknownError is the sidecar's unknown_outcome, which is ErrUnknownOutcome too.
type unknownError struct{ wire *protocol.Error }

func (e *unknownError) Error() string        { return e.wire.Error() }
func (e *unknownError) Unwrap() error        { return e.wire }
func (e *unknownError) Is(target error) bool { return target == ErrUnknownOutcome }

// insist tries until something else than a passing error comes, or time is over.
func (c *Client) insist(ctx context.Context, req *protocol.Request, began time.Time, err error) (rep *protocol.Reply, _ error) {
	again, twice := *req, false
	for tries := 1; c.passing(req, err); tries++ {
		twice = twice || IsCode(err, protocol.CodeUnknownOutcome)
		wait, left := c.waitFor(err, tries), c.timeLeft(req, began)
		if wait > left {
			return nil, err // which says more than that there is no time
		}
		if !c.rest(ctx, wait) {
			return nil, errors.Join(err, c.endOf(ctx))
		}
		if req.WaitMS > 0 {
			again.WaitMS = millis(max(0, c.timeLeft(req, began)))
		}
		cl := newCall(ctx, &again)
		cl.twice = twice
		rep, err = c.try(ctx, cl)
	}
	return rep, err
}

// passing reports whether the same request may do better in a moment, and whether
// that is the client's to try. An enqueue that could not be done is told: its
// caller may have better things to do than to wait for a database.
func (c *Client) passing(req *protocol.Request, err error) bool {
	var e *protocol.Error
	if !errors.As(err, &e) || c.opts.Retry < 0 {
		return false
	}
	switch e.Code {
	case protocol.CodeUnknownOutcome:
		return repeatable(req)
	case protocol.CodeUnavailable, protocol.CodeBusy, protocol.CodeDraining:
		switch req.Op {
		case protocol.OpAck, protocol.OpNack, protocol.OpExtend:
			return true
		case protocol.OpClaim:
			return req.WaitMS > 0
		}
	}
	return false
}

// timeLeft is how long the caller's patience, or a claim's own wait, still goes on.
func (c *Client) timeLeft(req *protocol.Request, began time.Time) time.Duration {
	most := c.opts.Retry
	if req.Op == protocol.OpClaim && req.WaitMS > 0 {
		most = time.Duration(req.WaitMS) * time.Millisecond
	} else if most == 0 {
		most = retryTime
	}
	return most - time.Since(began)
}

// waitFor is the pause before the next try: what the sidecar asks for, or a
// jittered back-off.
func (c *Client) waitFor(err error, tries int) time.Duration {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		if ms, ok := e.RetryMS.Get(); ok {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return backoff(tries + 2) // not before 20 ms: these answers came from a sidecar that is there
}

// rest pauses until the time is over, or the caller or the client ends.
func (c *Client) rest(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	return pause(ctx, d)
}

// endOf says who ended it.
func (c *Client) endOf(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return context.Cause(c.ctx)
}
