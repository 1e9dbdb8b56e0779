package memory

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batches"
)

// batch is a batch. Its members are unfinished, done or failed as their jobs are; a job that is gone is done if done has it.
type batch struct {
	backends.Batch
	callback backends.NewJob
	members  map[string]bool // ids of jobs, and of batches whose callbacks will be members; true: the job is done
}

// isLeft reports whether a member is unfinished.
func (b *Backend) isLeft(id string, done bool) bool {
	if child := b.batches[id]; child != nil {
		return !child.State.Ended()
	}
	j := b.jobs[id]
	return !done && j != nil && j.state != backends.StateDone && j.state != backends.StateDead
}

func (b *Backend) countMembers(x *batch) (c batches.Counts) {
	for id, done := range x.members {
		switch {
		case done:
			c.Done++
		case b.isLeft(id, done):
			c.Left++
		default:
			c.Failed++
		}
	}
	return c
}

// enterBatch returns why a batch can't get members.
func (b *Backend) enterBatch(id string) error {
	x := b.batches[id]
	if x == nil {
		return &backends.BatchError{Batch: id}
	}
	claimed := false
	for member := range x.members {
		j := b.jobs[member]
		claimed = claimed || j != nil && j.state == backends.StateClaimed
	}
	if x.State == backends.BatchOpen || x.State == backends.BatchClosed && claimed {
		return nil
	}
	return &backends.BatchError{Batch: id, State: x.State}
}

// batchRefusal returns why the batches of new jobs can't get members.
func (b *Backend) batchRefusal(jobs []backends.NewJob) error {
	for _, j := range jobs {
		if j.Batch != "" {
			if err := b.enterBatch(j.Batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// memberEnded notes the batch of a job that ended.
func (b *Backend) memberEnded(j *job, s backends.State) {
	x := b.batches[j.Batch]
	if x == nil || x.State.Ended() {
		return
	}
	if s == backends.StateDone {
		x.members[j.id] = true
	}
	b.noteBatch(j.Batch)
}

func (b *Backend) noteBatch(id string) {
	if !slices.Contains(b.endings, id) {
		b.endings = append(b.endings, id)
	}
}

// OpenBatch implements backends.Batcher.
func (b *Backend) OpenBatch(ctx context.Context, n backends.NewBatch) (id string, existing bool, err error) {
	if err := batches.Check(&n); err != nil {
		return "", false, err
	}
	err = b.do(ctx, func() error {
		for _, x := range b.batches {
			if n.Key != "" && x.Key == n.Key && x.Queue == n.Callback.Queue {
				id, existing = x.ID, true
				return nil
			}
		}
		id = batches.ID(batches.NewNumber())
		if parent := n.Callback.Batch; parent != "" {
			if err := b.enterBatch(parent); err != nil {
				return err
			}
			b.batches[parent].members[id] = false
		}
		job := n.Callback
		job.Payload, job.Headers = bytes.Clone(job.Payload), maps.Clone(job.Headers)
		b.batches[id] = &batch{callback: job, members: map[string]bool{}, Batch: backends.Batch{
			ID: id, Queue: job.Queue, On: n.On, Key: n.Key, Parent: job.Batch, State: backends.BatchOpen, CreatedAt: b.instant(), ExpiresAt: b.instant().Add(n.Expire),
		}}
		return nil
	})
	return id, existing, err
}

// batchOf returns the batch of a queue; empty: any queue.
func (b *Backend) batchOf(queue, id string) (*batch, error) {
	if x := b.batches[id]; x != nil && (queue == "" || x.Queue == queue) {
		return x, nil
	}
	return nil, &backends.BatchError{Batch: id}
}

// CloseBatch implements backends.Batcher.
func (b *Backend) CloseBatch(ctx context.Context, queue, id string) error {
	return b.do(ctx, func() error {
		x, err := b.batchOf(queue, id)
		if err == nil && x.State == backends.BatchOpen {
			x.State, x.ClosedAt = backends.BatchClosed, b.instant()
		}
		return err
	})
}

// CancelBatch implements backends.Batcher.
func (b *Backend) CancelBatch(ctx context.Context, c backends.BatchCancel) (r backends.CancelledBatch, err error) {
	queues := map[string]*backends.CancelledJobs{}
	err = b.do(ctx, func() error {
		x, err := b.batchOf(c.Queue, c.ID)
		if err == nil {
			b.cancelBatch(x, c, queues)
			r.State = x.State
		}
		made := b.madeReady
		made = append(made, b.admit()...)
		for queue, jobs := range queues {
			r.Jobs += jobs.Jobs
			jobs.Freed = slices.Contains(made, queue)
		}
		return err
	})
	if err == nil && c.Cancelled != nil {
		for _, queue := range slices.Sorted(maps.Keys(queues)) {
			c.Cancelled(*queues[queue])
		}
	}
	return r, err
}

func (b *Backend) cancelBatch(x *batch, c backends.BatchCancel, queues map[string]*backends.CancelledJobs) {
	if x.State.Ended() {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(x.members)) {
		if !b.isLeft(id, x.members[id]) {
			continue
		}
		if child := b.batches[id]; child != nil {
			b.cancelBatch(child, c, queues)
			continue
		}
		j := b.jobs[id]
		r := queues[j.Queue]
		if r == nil {
			r = &backends.CancelledJobs{Queue: j.Queue}
			queues[j.Queue] = r
		}
		r.IDs, r.Jobs = append(r.IDs, id), r.Jobs+1
		if j.state == backends.StateClaimed {
			r.Claims = append(r.Claims, j.token)
		}
		command := backends.Command{Kind: backends.Cancel, Queue: j.Queue}
		if c.RetainDead != nil {
			command.RetainDead = c.RetainDead(j.Queue)
		}
		b.pending = nil
		b.cancel(j, command)
		r.Pending = append(r.Pending, b.pending...)
	}
	counts := b.countMembers(x)
	x.Done, x.Failed, x.State = counts.Done, counts.Failed, backends.BatchCancelled
	b.endBatch(x)
}

func (b *Backend) endBatch(x *batch) {
	x.EndedAt, x.ExpiresAt = b.instant(), b.instant().Add(backends.EndedBatchKept)
	clear(x.members)
	if x.Parent != "" {
		b.noteBatch(x.Parent)
	}
}

// Batches implements backends.Batcher.
func (b *Backend) Batches(ctx context.Context, l backends.BatchList) (all []backends.Batch, err error) {
	err = b.do(ctx, func() error {
		for _, x := range slices.SortedFunc(maps.Values(b.batches), compareBatches) {
			view := x.Batch
			if !x.State.Ended() {
				c := b.countMembers(x)
				view.Done, view.Failed, view.Left = c.Done, c.Failed, c.Left
			}
			if l.States != nil {
				if slices.Contains(l.States, x.ID) {
					all = append(all, view)
				}
				continue
			}
			after, _ := batches.Number(l.After)
			n, _ := batches.Number(x.ID)
			if len(all) == l.Max || l.Queue != "" && x.Queue != l.Queue || l.ID != "" && x.ID != l.ID || l.Active && x.State.Ended() || n <= after {
				continue
			}
			if l.ID != "" {
				view.Payload, view.Jobs = bytes.Clone(x.callback.Payload), b.batchJobs(x)
			}
			all = append(all, view)
		}
		return nil
	})
	return all, err
}

func compareBatches(x, y *batch) int {
	a, _ := batches.Number(x.ID)
	c, _ := batches.Number(y.ID)
	return cmp.Compare(a, c)
}

func (b *Backend) batchJobs(x *batch) (all []backends.BatchJob) {
	for _, id := range slices.Sorted(maps.Keys(x.members)) {
		j := b.jobs[id]
		switch {
		case x.members[id] || len(all) == backends.BatchJobs:
		case b.batches[id] != nil:
			all = append(all, backends.BatchJob{Batch: id})
		case j == nil:
			all = append(all, backends.BatchJob{ID: id, State: backends.StateDeleted})
		default:
			all = append(all, backends.BatchJob{ID: id, Queue: j.Queue, State: j.state})
		}
	}
	return all
}

// ResolveBatches implements backends.Batcher.
func (b *Backend) ResolveBatches(ctx context.Context, ids []string) (r backends.ResolvedBatches, err error) {
	if err := b.fault(); err != nil {
		return r, err
	}
	err = b.do(ctx, func() error {
		var first error
		for _, x := range slices.SortedFunc(maps.Values(b.batches), compareBatches) {
			if ids != nil && !slices.Contains(ids, x.ID) {
				continue
			}
			if c := b.countMembers(x); x.State == backends.BatchClosed && c.CanEnd(x.On) {
				first = cmp.Or(first, b.fireBatch(x, c, &r))
			}
			if !x.ExpiresAt.After(b.now) {
				if !x.State.Ended() {
					r.Expired = append(r.Expired, x.Batch)
				}
				delete(b.batches, x.ID)
			}
		}
		b.endings = nil
		r.Ready = slices.Clone(b.madeReady)
		return first
	})
	if err == nil && len(r.Ended) > 0 {
		err = b.after(backends.CommitContent{})
	}
	return r, err
}

// fireBatch stores the callback of a batch.
func (b *Backend) fireBatch(x *batch, c batches.Counts, r *backends.ResolvedBatches) error {
	job := batches.Callback(x.ID, x.callback, c)
	job.Batch = ""
	parent := b.batches[x.Parent]
	if parent != nil && !parent.State.Ended() {
		job = batches.InBatch(job, x.Parent)
	} else {
		parent = nil
	}
	if err := b.refuse(job); err != nil {
		return backends.Refused(err)
	}
	x.State, x.Done, x.Failed = backends.BatchEnded, c.Done, c.Failed
	x.Callback = b.store([]backends.NewJob{job})[0].ID
	if parent != nil {
		delete(parent.members, x.ID)
		parent.members[x.Callback] = false
		b.jobs[x.Callback].Batch = x.Parent
	}
	b.endBatch(x)
	r.Ended = append(r.Ended, x.Batch)
	return nil
}

// batchesDue reports whether a batch can possibly end, or be deleted.
func (b *Backend) batchesDue() bool {
	for _, x := range b.batches {
		if x.State == backends.BatchClosed || !x.ExpiresAt.After(b.now) {
			return true
		}
	}
	return len(b.endings) > 0
}
