package qsidecar

import (
	"context"
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
)

// Settler settles jobs of a Client while its worker goes on: the worker doesn't wait for the replies. A
// Settler limits how many jobs are begun and not settled. Its methods are safe for concurrent use.
type Settler struct {
	client *Client
	most   int

	// Client.mu guards these fields.
	begun       int           // jobs after Begin, before Settle or End
	first, last *settle       // unanswered, in the order in which they were sent
	unanswered  int           // length of that list
	sent        uint64        // number of the last settle
	answered    chan struct{} // closed by the next answer or End; nil if nothing waits for one
}

// settle is one settle of a Settler. Client.mu guards it.
type settle struct {
	call
	settler    *Settler
	number     uint64
	since      time.Time
	failed     func(error)
	prev, next *settle
}

// NewSettler returns a Settler for a worker that runs up to concurrency jobs at once.
func NewSettler(c *Client, concurrency int) *Settler {
	return &Settler{client: c, most: max(maxUnsettled, unsettledEach*concurrency)}
}

// Settle sends the ack or the nack of a job after Begin, without a claim, and returns at once. The client
// repeats the request as Client.Call does. If that fails, Settle calls failed with the error, in a new
// goroutine, and the settle is unanswered until failed returns. The end of ctx ends the repetition. Don't
// change what req refers to before Wait returns.
func (s *Settler) Settle(ctx context.Context, req *protocol.Request, failed func(error)) {
	st := &settle{call: call{ctx: ctx, req: *req}, settler: s, since: time.Now(), failed: failed}
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
	if res.err == nil {
		s.settler.removeLocked(s)
		return
	}
	go func() {
		c := s.settler.client
		if _, err := c.repeat(s.ctx, &s.req, s.since, s.resent, res); err != nil {
			s.failed(err)
		}
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

// until waits until done is true, which only an answer or End can make it. It calls done with Client.mu held.
func (s *Settler) until(ctx context.Context, done func() bool) error {
	for ctx.Err() == nil {
		s.client.mu.Lock()
		if done() {
			s.client.mu.Unlock()
			return nil
		}
		if s.answered == nil {
			s.answered = make(chan struct{})
		}
		answered := s.answered
		s.client.mu.Unlock()
		select {
		case <-answered:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}
