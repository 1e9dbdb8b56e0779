package qsidecar

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// maxUnsettled is how many jobs can be begun and not settled. If the worker dies, they are delivered again,
	// although most of them are done. This many fill a commit, so more would gain little.
	maxUnsettled = 32

	// unsettledEach is maxUnsettled for each job that runs at once, for workers that run many. A worker that waits
	// for its settles has one each, so with fewer than two these workers would wait more than that one.
	unsettledEach = 2

	// maxSettleTime is how old an unanswered settle can be when a job begins. Commits take longer only in
	// an outage, and the work of a worker that goes on then is more likely to be repeated.
	maxSettleTime = time.Second

	// maxEndTime is how old an unanswered settle can be when its worker drains or ends. A sidecar that was killed and
	// is not started again never answers.
	maxEndTime = time.Minute
)

// UnansweredError means that a worker drained or was stopped, and settles were unanswered for a minute. It is also a
// *protocol.Error with the code unavailable.
type UnansweredError struct{ Jobs int }

// Error implements error.
func (e *UnansweredError) Error() string {
	return fmt.Sprintf("no answer for a minute to the settles of finished jobs (%d): the sidecar or its database is unavailable; "+
		"check that it runs: these jobs are delivered again, after the sidecar timeout at the latest", e.Jobs)
}

// Unwrap returns the *protocol.Error.
func (e *UnansweredError) Unwrap() error {
	return protocol.Errorf(protocol.CodeUnavailable, "%s", e.Error())
}

// Settler settles jobs of a Client while its worker goes on: the worker doesn't wait for the replies. A
// Settler limits how many jobs are begun and not settled. Its methods are safe for concurrent use.
type Settler struct {
	client  *Client
	most    int
	ctx     context.Context // of the settles
	giveUp  context.CancelCauseFunc
	limited chan struct{} // closed by Limit
	limit   func()

	// Client.mu guards these fields.
	begun       int           // jobs after Begin, before Settle or End
	first, last *settle       // unanswered, in the order in which they were sent
	unanswered  int           // length of that list
	sent        uint64        // number of the last settle
	late        int           // how many calls of Call gave up
	answered    chan struct{} // closed by the next answer or End; nil if nothing waits for one
}

// settle is one settle of a Settler. Client.mu guards it.
type settle struct {
	call
	settler    *Settler
	number     uint64
	since      time.Time
	failed     func(context.Context, error)
	over       bool // a goroutine calls failed, or has called it
	prev, next *settle
}

// NewSettler returns a Settler for a worker that runs up to concurrency jobs at once. The end of ctx ends the
// repetition of settles.
func NewSettler(ctx context.Context, c *Client, concurrency int) *Settler {
	s := &Settler{client: c, most: max(maxUnsettled, unsettledEach*concurrency), limited: make(chan struct{})}
	s.ctx, s.giveUp = context.WithCancelCause(ctx)
	s.limit = sync.OnceFunc(func() { close(s.limited) })
	return s
}

// Limit is for a worker that drains or stops: waits fail with an *UnansweredError if a settle is unanswered for a minute.
func (s *Settler) Limit() { s.limit() }

// Settle sends the ack or the nack of a job after Begin, without a claim, and returns at once. The client
// repeats the request as Client.Call does. If that fails, Settle calls failed with the error, in a new
// goroutine, and the settle is unanswered until failed returns. Finish can end the context that failed gets. Don't
// change what req refers to before Finish returns.
func (s *Settler) Settle(req *protocol.Request, failed func(context.Context, error)) {
	st := &settle{call: call{ctx: s.ctx, req: *req}, settler: s, since: time.Now(), failed: failed}
	st.behind = st
	c := s.client
	c.mu.Lock()
	defer c.mu.Unlock()
	s.begun--
	s.addLocked(st)
	if c.closed != nil {
		st.answerLocked(result{err: &BrokenError{Op: req.Op, Err: c.closed}})
		return
	}
	c.enqueueLocked(&st.call)
}

// Call sends a settle as Client.Call does, and waits for the answer. Since is when its first try began. After Limit it
// fails with an *UnansweredError a minute after that.
func (s *Settler) Call(req *protocol.Request, since time.Time) (*protocol.Reply, error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-s.limited:
		}
		if pause(ctx, maxEndTime-time.Since(since)) {
			cancel(&UnansweredError{1})
		}
	}()
	rep, err := s.client.Call(ctx, req)
	if late, ok := errors.AsType[*UnansweredError](context.Cause(ctx)); ok && err != nil {
		s.client.mu.Lock()
		defer s.client.mu.Unlock()
		s.late++
		return rep, late
	}
	return rep, err
}

func (s *Settler) addLocked(st *settle) {
	s.sent++
	s.unanswered++
	st.number, st.prev = s.sent, s.last
	if s.last == nil {
		s.first = st
	} else {
		s.last.next = st
	}
	s.last = st
}

func (s *Settler) removeLocked(st *settle) {
	s.unanswered--
	if st.prev == nil {
		s.first = st.next
	} else {
		st.prev.next = st.next
	}
	if st.next == nil {
		s.last = st.prev
	} else {
		st.next.prev = st.prev
	}
	s.wakeLocked()
}

// wakeLocked lets those that wait check again.
func (s *Settler) wakeLocked() {
	if s.answered != nil {
		close(s.answered)
		s.answered = nil
	}
}

// answerLocked ends a settle with its answer. The reader calls it, so an error is for another goroutine.
func (s *settle) answerLocked(res result) {
	if s.over {
		return
	}
	if res.err == nil {
		s.settler.removeLocked(s)
		return
	}
	s.failLocked(func() error {
		_, err := s.settler.client.repeat(s.ctx, &s.req, s.since, s.resent, res)
		return err
	})
}

// failLocked calls failed with the error that try returns, in a new goroutine, and ends the settle.
func (s *settle) failLocked(try func() error) {
	s.over = true
	go func() {
		if err := try(); err != nil {
			s.failed(s.ctx, err)
		}
		c := s.settler.client
		c.mu.Lock()
		defer c.mu.Unlock()
		s.settler.removeLocked(s)
	}()
}

// Unanswered returns how many settles are unanswered.
func (s *Settler) Unanswered() int {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	return s.unanswered
}

// Joins reports whether the sidecar prefers settle and claim in one request: join in its last reply to a
// claim, also to one that a settle carried.
func (s *Settler) Joins() bool {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	return s.client.join
}

// WaitToClaim waits while Begin would wait, so that no other worker misses a job that can't begin here. It
// returns the cause of ctx's end if ctx has ended.
func (s *Settler) WaitToClaim(ctx context.Context) error {
	return s.until(ctx, s.canBeginLocked)
}

// Begin waits while no job must begin: too many are not settled, or the settle of one is unanswered for too
// long. Settle or End must follow. It returns the cause of ctx's end if ctx has ended.
func (s *Settler) Begin(ctx context.Context) error {
	return s.until(ctx, func() bool {
		can := s.canBeginLocked()
		if can {
			s.begun++
		}
		return can
	})
}

func (s *Settler) canBeginLocked() bool {
	return s.begun+s.unanswered < s.most && (s.first == nil || time.Since(s.first.since) < maxSettleTime)
}

// End ends a job after Begin that was settled without Settle, or whose lease is lost.
func (s *Settler) End() {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	s.begun--
	s.wakeLocked()
}

// Wait waits until every settle that was sent before the call is answered. It returns the cause of ctx's
// end if ctx has ended.
func (s *Settler) Wait(ctx context.Context) error {
	s.client.mu.Lock()
	sent := s.sent
	s.client.mu.Unlock()
	return s.until(ctx, func() bool { return s.first == nil || s.first.number > sent })
}

// Finish waits for every settle when the worker ends. If one is unanswered for a minute, Finish ends all with an
// *UnansweredError. It returns that, also if a Call ended with one, or the cause of ctx's end if ctx has ended.
func (s *Settler) Finish(ctx context.Context) error {
	defer s.giveUp(nil)
	s.Limit()
	err := s.until(ctx, func() bool { return s.first == nil })
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	late, ok := errors.AsType[*UnansweredError](err)
	switch {
	case ok:
		late.Jobs += s.late
	case err == nil && s.late > 0:
		return &UnansweredError{s.late}
	default:
		return err
	}
	s.giveUp(err)
	for st := s.first; st != nil; st = st.next {
		if !st.over {
			st.failLocked(func() error { return err })
		}
	}
	for s.first != nil { // until would return the error
		answered := s.answeredLocked()
		s.client.mu.Unlock()
		<-answered
		s.client.mu.Lock()
	}
	return err
}

// until waits until done is true, which only an answer or End can make it. It calls done with Client.mu held.
func (s *Settler) until(ctx context.Context, done func() bool) error {
	for ctx.Err() == nil {
		s.client.mu.Lock()
		if done() {
			s.client.mu.Unlock()
			return nil
		}
		answered, first, jobs := s.answeredLocked(), s.first, s.unanswered
		s.client.mu.Unlock()
		limited, left := s.limited, time.Duration(math.MaxInt64)
		select {
		case <-limited:
			limited = nil
			if first != nil {
				left = maxEndTime - time.Since(first.since)
			}
		default:
		}
		if left <= 0 {
			return &UnansweredError{jobs}
		}
		timer := time.NewTimer(left)
		select {
		case <-answered:
		case <-limited:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return context.Cause(ctx)
}

// answeredLocked returns a channel that the next answer or End closes.
func (s *Settler) answeredLocked() <-chan struct{} {
	if s.answered == nil {
		s.answered = make(chan struct{})
	}
	return s.answered
}
