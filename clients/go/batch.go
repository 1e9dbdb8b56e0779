package qsidecar

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// Batch is a batch of jobs: when they have ended, the sidecar stores one more job, the callback. OpenBatch returns one.
type Batch struct {
	ID        string
	Duplicate bool // the key belongs to this batch, which was opened before

	client *Client
	queue  string // of the callback
}

// NewBatch is a batch to open.
type NewBatch struct {
	On       string          // protocol.OnSuccess or protocol.OnFinish
	Callback protocol.NewJob // without a key and a time. Its Batch is the batch of which the callback is a member
	Key      string          // a second batch of the queue with it is the first one; empty: none
}

// OpenBatch opens a batch. Add jobs to it, then close it.
func (c *Client) OpenBatch(ctx context.Context, b NewBatch) (*Batch, error) {
	if b.Callback.Key != "" || b.Callback.DelayMS.Set || b.Callback.RunAt.Set {
		return nil, protocol.BadField("Callback", "the callback of a batch has neither a key nor a time: leave Key, DelayMS and RunAt out")
	}
	rep, err := c.callRetrying(ctx, &protocol.Request{Op: protocol.OpOpenBatch, Queue: b.Callback.Queue, Job: b.Callback, On: b.On, Key: b.Key})
	switch {
	case err != nil:
		return nil, err
	case rep.Batch == nil:
		return nil, errShortReply
	}
	return &Batch{ID: rep.Batch.ID, Duplicate: rep.Batch.Duplicate, client: c, queue: b.Callback.Queue}, nil
}

// Enqueue stores a job of the batch.
func (b *Batch) Enqueue(ctx context.Context, job protocol.NewJob) (protocol.EnqueuedJob, error) {
	job.Batch = b.ID
	return b.client.Enqueue(ctx, job)
}

// EnqueueMany stores 1 to 1000 jobs of the batch in one transaction: all or none.
func (b *Batch) EnqueueMany(ctx context.Context, jobs []protocol.NewJob) ([]protocol.EnqueuedJob, error) {
	own := make([]protocol.NewJob, len(jobs))
	for i, j := range jobs {
		j.Batch = b.ID
		own[i] = j
	}
	return b.client.EnqueueMany(ctx, own)
}

// Close ends the time in which any producer can add jobs. Then the batch ends as soon as its jobs have ended. A second Close does nothing.
func (b *Batch) Close(ctx context.Context) error {
	_, err := b.client.callRetrying(ctx, &protocol.Request{Op: protocol.OpCloseBatch, Queue: b.queue, Batch: b.ID})
	return err
}

// Cancel cancels the jobs of the batch, which ends without its callback. It returns how many jobs.
func (b *Batch) Cancel(ctx context.Context) (int64, error) {
	return b.client.count(ctx, &protocol.Request{Op: protocol.OpCancelBatch, Queue: b.queue, Batch: b.ID})
}

// Wait waits until the batch has ended, at most for wait. It returns the batch, whose State is ended or cancelled if it has. Wait for the
// job Callback with Client.Wait to get its result.
func (b *Batch) Wait(ctx context.Context, wait time.Duration) (protocol.Batch, error) {
	if err := checkSpan("wait", wait, 0, protocol.MaxWaitMS); err != nil {
		return protocol.Batch{}, err
	}
	until := time.Now().Add(wait)
	for left := wait; ; left = max(0, time.Until(until)) {
		rep, err := b.client.callRetrying(ctx, &protocol.Request{Op: protocol.OpWait, Queue: b.queue, Batch: b.ID, WaitMS: millis(min(left, waitPart))})
		switch {
		case err != nil:
			return protocol.Batch{}, err
		case rep.Batch == nil:
			return protocol.Batch{}, errShortReply
		case left == 0 || rep.Batch.State == "ended" || rep.Batch.State == "cancelled":
			return *rep.Batch, nil
		}
	}
}
