package qsidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

var errShortReply = errors.New("the sidecar's answer lacks what this op answers with")

// envEnqueueTimeout names the variable with the default of Options.RequestTimeout, in seconds.
const envEnqueueTimeout = "QSIDECAR_ENQUEUE_TIMEOUT"

// enqueueTime parses the value of envEnqueueTimeout.
func enqueueTime(text string) (time.Duration, error) {
	if text == "" {
		return 2 * time.Second, nil
	}
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || !(s > 0 && s < 1e9) {
		return 0, fmt.Errorf("qsidecar: %s=%s isn't a number of seconds: write it without a unit, such as 2 or 0.5", envEnqueueTimeout, text)
	}
	return time.Duration(s * float64(time.Second)), nil
}

// enqueueContext returns the context of an enqueue, with its time limit.
func (c *Client) enqueueContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, own := ctx.Deadline(); own || c.opts.RequestTimeout < 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.opts.RequestTimeout)
}

// Enqueue stores one job. It returns when the job is durable, or after Options.RequestTimeout.
func (c *Client) Enqueue(ctx context.Context, job protocol.NewJob) (protocol.EnqueuedJob, error) {
	ctx, cancel := c.enqueueContext(ctx)
	defer cancel()
	rep, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpEnqueue, Job: job})
	switch {
	case err != nil:
		return protocol.EnqueuedJob{}, err
	case rep.Enqueued == nil:
		return protocol.EnqueuedJob{}, errShortReply
	}
	return *rep.Enqueued, nil
}

// EnqueueMany stores 1 to 1000 jobs in one transaction: all or none.
func (c *Client) EnqueueMany(ctx context.Context, jobs []protocol.NewJob) ([]protocol.EnqueuedJob, error) {
	if jobs == nil {
		jobs = []protocol.NewJob{} // an empty list, so that the sidecar reports the error
	}
	ctx, cancel := c.enqueueContext(ctx)
	defer cancel()
	rep, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpEnqueue, Jobs: jobs})
	switch {
	case err != nil:
		return nil, err
	case len(rep.EnqueuedAll) != len(jobs):
		return nil, errShortReply
	}
	return rep.EnqueuedAll, nil
}

// Claim selects the jobs to claim.
type Claim struct {
	Queues  []string
	Order   protocol.Order   // empty: protocol.OrderStrict, which claims from a queue only if those before it are empty
	Weights map[string]int64 // with protocol.OrderRotate: how many turns a queue has where others have one, 1 to 1000
	Max     int              // 1 to 1000; 0: one
	Wait    time.Duration    // how long to wait for the first job, up to an hour; 0: do not wait

	// Lease, if positive, makes timed leases of that length (1 s to 24 h). They outlive the
	// connection. 0 makes session leases, which the Client keeps until they are settled.
	Lease time.Duration
}

// Claim claims jobs. The list is empty if none became ready within Wait.
func (c *Client) Claim(ctx context.Context, cl Claim) ([]protocol.Job, error) {
	if err := checkSpan("Wait", cl.Wait, 0, protocol.MaxWaitMS); err != nil {
		return nil, err
	}
	req := &protocol.Request{Op: protocol.OpClaim, WaitMS: millis(cl.Wait)}
	if len(cl.Queues) == 1 {
		req.Queue = cl.Queues[0]
	} else {
		req.Queues = cl.Queues
	}
	if cl.Max != 0 {
		req.Max = protocol.Some(int64(cl.Max))
	}
	req.Order, req.Weights = cl.Order, cl.Weights
	if cl.Lease != 0 {
		if err := checkSpan("Lease", cl.Lease, protocol.MinLeaseMS, protocol.MaxLeaseMS); err != nil {
			return nil, err
		}
		req.LeaseMS = protocol.Some(millis(cl.Lease))
	}
	rep, err := c.callRetrying(ctx, req)
	if err != nil {
		return nil, err
	}
	return rep.Jobs, nil
}

// Ack settles a job as done. It returns an error if the lease is no longer valid (see IsLost and
// SettledOrLostError).
func (c *Client) Ack(ctx context.Context, lease string) error {
	_, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpAck, Lease: lease})
	return err
}

// AckWith settles a job as done, stores result with it (nil: no result) and enqueues the jobs, all
// in one transaction.
func (c *Client) AckWith(ctx context.Context, lease string, result []byte, jobs ...protocol.NewJob) ([]protocol.EnqueuedJob, error) {
	rep, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpAck, Lease: lease, Result: result, Enqueue: jobs})
	if err != nil {
		return nil, err
	}
	return rep.EnqueuedAll, nil
}

// AckMany settles 1 to 1000 jobs as done and returns the leases that were lost. The others are
// settled.
func (c *Client) AckMany(ctx context.Context, leases []string) (lost []string, err error) {
	return c.settleMany(ctx, leases, &protocol.Request{Op: protocol.OpAck})
}

// Nack describes how a job failed, or that it is snoozed, and what happens to it.
type Nack struct {
	Error string // what failed; stored with the job, cut at 4 KiB

	// Delay until the job is ready again, at least 0. nil means the queue's back-off.
	Delay *time.Duration

	Dead   bool // no further attempt
	Snooze bool // not now: this delivery uses up no attempt
}

// check returns an error that names the wrong argument. The sidecar's would name the field of the protocol, in another unit.
func (n Nack) check() error {
	if n.Delay == nil {
		return nil
	}
	return checkSpan("Delay", *n.Delay, 0, protocol.MaxDelayMS)
}

// checkSpan checks a time against the limits of the protocol, in milliseconds. The error is a bad_request.
func checkSpan(name string, d time.Duration, least, most int64) error {
	from, to := time.Duration(least)*time.Millisecond, time.Duration(most)*time.Millisecond
	if d >= from && d <= to {
		return nil
	}
	return protocol.BadField(name, "%s is %v; it must be from %v to %v", name, d, from, to)
}

func (n Nack) request() *protocol.Request {
	req := &protocol.Request{Op: protocol.OpNack, Error: n.Error, Dead: n.Dead, Snooze: n.Snooze}
	if n.Delay != nil {
		req.DelayMS = protocol.Some(millis(*n.Delay))
	}
	return req
}

// Nack settles a job as failed.
func (c *Client) Nack(ctx context.Context, lease string, n Nack) error {
	if err := n.check(); err != nil {
		return err
	}
	req := n.request()
	req.Lease = lease
	_, err := c.callRetrying(ctx, req)
	return err
}

// NackMany settles 1 to 1000 jobs as failed and returns the leases that were lost. The others are
// settled.
func (c *Client) NackMany(ctx context.Context, leases []string, n Nack) (lost []string, err error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	req := n.request()
	return c.settleMany(ctx, leases, req)
}

// Extend describes how to renew leases.
type Extend struct {
	Lease time.Duration // a timed lease of that length from now; 0: the same length as before
	Bind  bool          // make it a session lease of this Client
}

// Extend renews 1 to 1000 leases and returns the ones that were lost.
func (c *Client) Extend(ctx context.Context, leases []string, e Extend) (lost []string, err error) {
	req := &protocol.Request{Op: protocol.OpExtend, Bind: e.Bind}
	if e.Lease != 0 {
		if err := checkSpan("Lease", e.Lease, protocol.MinLeaseMS, protocol.MaxLeaseMS); err != nil {
			return nil, err
		}
		req.LeaseMS = protocol.Some(millis(e.Lease))
	}
	return c.settleMany(ctx, leases, req)
}

// ReportProgress replaces what is known of the progress of a claimed job: Done, Total and Data of at most 4 KiB. The sidecar stores the
// last report of a job about once a second. Job.Progress of the next attempt has it, so that it can continue there.
func (c *Client) ReportProgress(ctx context.Context, lease string, p protocol.Progress) error {
	_, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpProgress, Lease: lease, Done: p.Done, Total: p.Total, Data: p.Data})
	return err
}

// settleMany sends a request about leases. Without any, the request would be one about the lease "", which is lost.
func (c *Client) settleMany(ctx context.Context, leases []string, req *protocol.Request) ([]string, error) {
	if len(leases) == 0 {
		return nil, protocol.BadField("leases", "leases is empty: pass 1 to %d", protocol.MaxList)
	}
	req.Leases = leases
	rep, err := c.callRetrying(ctx, req)
	var lost []string
	if rep != nil && rep.Settled != nil {
		lost = rep.Settled.Lost
	}
	return lost, err
}

// Stats counts the jobs of one queue, or of every queue if queue is empty.
func (c *Client) Stats(ctx context.Context, queue string) ([]protocol.QueueStat, error) {
	rep, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpStats, Queue: queue})
	if err != nil {
		return nil, err
	}
	return rep.Queues, nil
}

// Peek selects the jobs to show: those of IDs in any state, the one that has Key, or else up to Max of
// those in State (empty: ready) that follow the job After.
//
// Text, Error and Headers search the state. So does Key if State is not empty. A job must match all of them.
type Peek struct {
	Queue string // empty: every queue that this connection has permission to peek at
	IDs   []string
	State protocol.State
	Max   int // 1 to 1000; 0: ten

	After   string
	Key     string
	Text    string            // a part of the key, the payload, the value of a header or the message of a failed attempt
	Error   string            // a part of the message of a failed attempt
	Headers map[string]string // the job has all of these
	Newest  bool              // with State done or dead: the jobs that finished last come first
}

// Peek returns jobs without changing them.
func (c *Client) Peek(ctx context.Context, p Peek) ([]protocol.JobView, error) {
	views, _, err := c.Search(ctx, p)
	return views, err
}

// Search is Peek for a search. One call reads at most 10,000 jobs. If there are more, it returns the
// last job that it read: continue with Peek.After. A call can return no jobs and have more to read.
func (c *Client) Search(ctx context.Context, p Peek) (jobs []protocol.JobView, after string, err error) {
	req := &protocol.Request{Op: protocol.OpPeek, Queue: p.Queue, IDs: p.IDs, State: p.State, After: p.After, Key: p.Key, Text: p.Text, Error: p.Error, Headers: p.Headers, Newest: p.Newest}
	if p.Max != 0 {
		req.Max = protocol.Some(int64(p.Max))
	}
	rep, err := c.callRetrying(ctx, req)
	if err != nil {
		return nil, "", err
	}
	return rep.Views, rep.After, nil
}

// Job returns the job with the id, of any queue that this connection has permission to peek at; nil: there is none.
func (c *Client) Job(ctx context.Context, id string) (*protocol.JobView, error) {
	jobs, err := c.Peek(ctx, Peek{IDs: []string{id}})
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	return &jobs[0], nil
}

// Wait selects the jobs to wait for.
type Wait struct {
	Queue string
	IDs   []string      // 1 to 1000
	Any   bool          // until one of them has ended, and not all
	Wait  time.Duration // how long to wait; 0: do not wait
}

// waitPart is how long one request of a wait lasts. The sidecar queries the jobs by their ids when a request begins.
const waitPart = time.Minute

// Wait waits until jobs have ended, and returns those that have, also if others have not when Wait.Wait is over. A job that the
// queue does not keep has a result only if it ended through the client's sidecar: see the op wait in the protocol.
func (c *Client) Wait(ctx context.Context, w Wait) (ended []protocol.EndedJob, err error) {
	if err := checkSpan("Wait", w.Wait, 0, protocol.MaxWaitMS); err != nil {
		return nil, err
	}
	until := time.Now().Add(w.Wait)
	req := &protocol.Request{Op: protocol.OpWait, Queue: w.Queue, IDs: w.IDs, Mode: protocol.WaitAll}
	if w.Any {
		req.Mode = protocol.WaitAny
	}
	for left := w.Wait; ; left = max(0, time.Until(until)) {
		req.WaitMS = millis(min(left, waitPart))
		rep, err := c.callRetrying(ctx, req)
		if err != nil {
			return ended, err
		}
		ended = append(ended, rep.Ended...)
		req.IDs = slices.DeleteFunc(slices.Clone(req.IDs), func(id string) bool {
			return slices.ContainsFunc(rep.Ended, func(j protocol.EndedJob) bool { return j.ID == id })
		})
		switch {
		case len(req.IDs) == 0 || w.Any && len(ended) > 0:
			return ended, nil
		case left == 0 && len(rep.Ended) == 0: // with some, others possibly didn't fit the reply
			return ended, nil
		}
	}
}

// Retry makes dead jobs ready again and resets their attempts. It returns how many changed. If ids is empty, the
// error has the code bad_request: see RetryAll.
func (c *Client) Retry(ctx context.Context, queue string, ids []string) (int64, error) {
	if len(ids) == 0 {
		return 0, protocol.BadField("ids", "ids is empty: use RetryAll to retry every dead job")
	}
	return c.count(ctx, &protocol.Request{Op: protocol.OpRetry, Queue: queue, IDs: ids})
}

// RetryAll is Retry for all dead jobs of the queue.
func (c *Client) RetryAll(ctx context.Context, queue string) (int64, error) {
	return c.count(ctx, &protocol.Request{Op: protocol.OpRetry, Queue: queue, All: true})
}

// Change is what Client.Change sets. At least one field must not be nil.
type Change struct {
	Priority *int16
	Delay    *time.Duration // ready this long from now; 0: at once
	RunAt    *time.Time     // ready at this time; not with Delay
}

func (c Change) check() error {
	switch {
	case c.Priority == nil && c.Delay == nil && c.RunAt == nil:
		return protocol.BadField("Priority", "Priority, Delay and RunAt are nil: set what to change")
	case c.Delay != nil && c.RunAt != nil:
		return protocol.BadField("RunAt", "Delay and RunAt exclude each other")
	case c.Delay != nil:
		return checkSpan("Delay", *c.Delay, 0, protocol.MaxDelayMS)
	case c.RunAt != nil && (c.RunAt.UnixMilli() < 0 || c.RunAt.UnixMilli() > protocol.MaxRunAt):
		return protocol.BadField("RunAt", "RunAt is %v; it must be in the years 1970 to 9999", *c.RunAt)
	}
	return nil
}

// Change gives ready and scheduled jobs another priority or another time. It returns how many changed.
// A changed job that is ready goes behind the others of its priority.
func (c *Client) Change(ctx context.Context, queue string, ids []string, ch Change) (int64, error) {
	if err := ch.check(); err != nil {
		return 0, err
	}
	req := &protocol.Request{Op: protocol.OpChange, Queue: queue, IDs: ids}
	if ch.Priority != nil {
		req.Priority = protocol.Some(int64(*ch.Priority))
	}
	if ch.Delay != nil {
		req.DelayMS = protocol.Some(millis(*ch.Delay))
	}
	if ch.RunAt != nil {
		req.RunAt = protocol.Some(ch.RunAt.UnixMilli())
	}
	return c.count(ctx, req)
}

// Delete removes jobs that are not claimed and returns how many it removed.
func (c *Client) Delete(ctx context.Context, queue string, ids []string) (int64, error) {
	return c.count(ctx, &protocol.Request{Op: protocol.OpDelete, Queue: queue, IDs: ids})
}

// Reclaim takes claimed jobs back from their workers and returns how many it took.
func (c *Client) Reclaim(ctx context.Context, queue string, ids []string) (int64, error) {
	return c.count(ctx, &protocol.Request{Op: protocol.OpReclaim, Queue: queue, IDs: ids})
}

// Cancel ends jobs that wait or run, and returns how many are cancelled now, also by an earlier call. They are dead with the cause
// cancelled, or removed with Cancel.Delete. Their workers get the reason with Options.OnLost. No worker gets the jobs from a second
// later on, unless they are retried.
func (c *Client) Cancel(ctx context.Context, queue string, jobs Cancel) (int64, error) {
	return c.count(ctx, &protocol.Request{Op: protocol.OpCancel, Queue: queue, IDs: jobs.IDs, Key: jobs.Key, Delete: jobs.Delete})
}

// Cancel selects jobs to cancel: those with the ids, or the one that has the key.
type Cancel struct {
	IDs    []string
	Key    string
	Delete bool // remove the jobs instead of keeping them as dead ones
}

// Purge removes every job in a state (any but claimed) and returns how many it removed.
func (c *Client) Purge(ctx context.Context, queue string, state protocol.State) (int64, error) {
	return c.count(ctx, &protocol.Request{Op: protocol.OpPurge, Queue: queue, State: state})
}

func (c *Client) count(ctx context.Context, req *protocol.Request) (int64, error) {
	rep, err := c.callRetrying(ctx, req)
	if err != nil {
		return 0, err
	}
	n, ok := rep.Count.Get()
	if !ok {
		return 0, errShortReply
	}
	return n, nil
}

// Pause stops deliveries of a queue on every host.
func (c *Client) Pause(ctx context.Context, queue string) error {
	_, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpPause, Queue: queue})
	return err
}

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context, queue string) error {
	_, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpResume, Queue: queue})
	return err
}

// Limits is what Client.Limit changes in the limits of a queue. At least one field must be set.
type Limits struct {
	MaxClaimed *int64 // how many jobs can be claimed at a time; 0: any number
	Rate       string // how many can start in a time, such as 100/s, 30/m or 5/h; 0: any number
	Burst      *int64 // how many can start at once after a pause; 0: those of a second
	GroupLimit *int64 // how many jobs of a group can be claimed at a time; 0: one

	// GroupReady is how many jobs of a group can be ready at a time, besides the claimed ones, so that groups take turns; 0: any number.
	// Without a GroupLimit, any number of jobs of a group can then be claimed.
	GroupReady *int64

	// GroupOnFailure is protocol.GroupHold (a failed job keeps its slot of the group during its back-off) or protocol.GroupSkip.
	GroupOnFailure string

	None bool // first remove all limits
}

// Limit changes the limits of a queue, on all hosts together. Limits that are not set stay as they are.
func (c *Client) Limit(ctx context.Context, queue string, l Limits) error {
	req := &protocol.Request{Op: protocol.OpLimit, Queue: queue, Rate: l.Rate, GroupOnFailure: l.GroupOnFailure, None: l.None}
	if l.MaxClaimed != nil {
		req.MaxClaimed = protocol.Some(*l.MaxClaimed)
	}
	if l.Burst != nil {
		req.Burst = protocol.Some(*l.Burst)
	}
	if l.GroupLimit != nil {
		req.GroupLimit = protocol.Some(*l.GroupLimit)
	}
	if l.GroupReady != nil {
		req.GroupReady = protocol.Some(*l.GroupReady)
	}
	_, err := c.callRetrying(ctx, req)
	return err
}

// Schedule declares a schedule, which stores a job at each of its times, over all hosts. It returns created, updated, unchanged, or
// ignored if the database has a higher version. A call with the same values changes nothing, so each start of a program can make it.
func (c *Client) Schedule(ctx context.Context, s protocol.Schedule) (outcome string, err error) {
	rep, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpSchedule, Queue: s.Queue, Schedule: &s})
	switch {
	case err != nil:
		return "", err
	case rep.Declared == nil:
		return "", errShortReply
	}
	return rep.Declared.Outcome, nil
}

// Ping checks that the sidecar answers.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpPing})
	return err
}
