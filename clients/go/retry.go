package qsidecar

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// retryTime is the default of Options.Retry. Most outages and failovers of a database are shorter.
const retryTime = time.Minute

// callRetrying sends a request. It repeats the request if the sidecar's error is transient and the
// caller still waits.
func (c *Client) callRetrying(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
	began := time.Now()
	cl := newCall(ctx, req)
	rep, err := c.callOnce(ctx, cl)
	return c.repeat(ctx, req, began, cl.resent, result{rep, err})
}

// repeat returns the result of a request's first try, or that of a later try if the first error is transient.
// twice means that the first try was already sent on two connections.
func (c *Client) repeat(ctx context.Context, req *protocol.Request, began time.Time, twice bool, first result) (*protocol.Reply, error) {
	rep, err := first.reply, first.err
	if err == nil || !c.transient(req, err) {
		return rep, toClientError(err)
	}
	// The reply to the repeated request reports a lease that was lost in between.
	c.mu.Lock()
	c.settlingLocked(newCall(ctx, req), +1)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settlingLocked(newCall(ctx, req), -1)
	}()
	rep, err = c.retry(ctx, req, began, twice, rep, err)
	return rep, toClientError(err)
}

// toClientError converts an error of the sidecar to the caller's error.
func toClientError(err error) error {
	if e, ok := errors.AsType[*protocol.Error](err); ok && e.Code == protocol.CodeUnknownOutcome {
		return &unknownError{e}
	}
	return err
}

// unknownError is the sidecar's unknown_outcome. It is also ErrUnknownOutcome.
type unknownError struct{ wire *protocol.Error }

func (e *unknownError) Error() string        { return e.wire.Error() }
func (e *unknownError) Unwrap() error        { return e.wire }
func (e *unknownError) Is(target error) bool { return target == ErrUnknownOutcome }

// retry repeats the request until it succeeds, fails with an error that is not transient, or the
// time is over. Jobs that a failed settle's claim got are in the reply that it returns.
func (c *Client) retry(ctx context.Context, req *protocol.Request, began time.Time, twice bool, rep *protocol.Reply, err error) (*protocol.Reply, error) {
	again := *req
	var claimed *protocol.Reply
	for tries := 1; c.transient(req, err); tries++ {
		twice = twice || IsCode(err, protocol.CodeUnknownOutcome)
		wait, left := c.pauseBefore(err, tries), c.timeLeft(req, began)
		if rep != nil && len(rep.Jobs) > 0 {
			claimed, again.Claim = rep, nil
		}
		if wait > left {
			return claimed, err // the sidecar's error explains more than the end of the time
		}
		if !c.sleep(ctx, wait) {
			return claimed, errors.Join(err, c.endCause(ctx))
		}
		if req.WaitMS > 0 {
			again.WaitMS = millis(max(0, c.timeLeft(req, began)))
		}
		cl := newCall(ctx, &again)
		cl.resent = twice
		rep, err = c.callOnce(ctx, cl)
		twice = cl.resent
	}
	if claimed != nil && rep != nil {
		rep.Jobs = claimed.Jobs
		return rep, err
	}
	return cmp.Or(rep, claimed), err
}

// transient reports whether the same request can succeed soon, and whether the client repeats it.
// It does not repeat an enqueue that the sidecar did not carry out: the caller decides whether to
// wait for a database.
func (c *Client) transient(req *protocol.Request, err error) bool {
	var e *protocol.Error
	if !errors.As(err, &e) || c.opts.Retry < 0 {
		return false
	}
	switch e.Code {
	case protocol.CodeUnknownOutcome:
		return repeatable(req)
	case protocol.CodeUnavailable, protocol.CodeBusy, protocol.CodeDraining:
		switch req.Op {
		case protocol.OpAck, protocol.OpNack, protocol.OpExtend, protocol.OpProgress:
			return true
		case protocol.OpClaim:
			return req.WaitMS > 0
		}
	}
	return false
}

// timeLeft returns the rest of the retry time, or of a claim's own wait.
func (c *Client) timeLeft(req *protocol.Request, began time.Time) time.Duration {
	most := c.opts.Retry
	if req.Op == protocol.OpClaim && req.WaitMS > 0 {
		most = time.Duration(req.WaitMS) * time.Millisecond
	} else if most == 0 {
		most = retryTime
	}
	return most - time.Since(began)
}

// pauseBefore returns the pause before the next try: the time that the sidecar asks for, or a
// jittered back-off.
func (c *Client) pauseBefore(err error, tries int) time.Duration {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		if ms, ok := e.RetryMS.Get(); ok {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return backoff(tries + 2) // at least 20 ms, because the sidecar answered
}

// sleep waits for d. It reports false if the context ends or the client is closed.
func (c *Client) sleep(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	return pause(ctx, d)
}

// endCause returns why the context or the client ended.
func (c *Client) endCause(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return context.Cause(c.ctx)
}
