package pipeline

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// OpenBatch stores a batch.
func (p *Pipeline) OpenBatch(ctx context.Context, b backends.NewBatch) (id string, existing bool, err error) {
	return p.backend.OpenBatch(ctx, b)
}

// CloseBatch closes a batch. If it has no unfinished job, it ends.
func (p *Pipeline) CloseBatch(ctx context.Context, queue, id string) error {
	err := p.backend.CloseBatch(ctx, queue, id)
	if err == nil {
		p.batches.resolve(ctx, []string{id})
	}
	return err
}

// CancelBatch cancels the jobs of a batch, and ends it without its callback.
func (p *Pipeline) CancelBatch(ctx context.Context, queue, id string) (backends.CancelledBatch, error) {
	return p.backend.CancelBatch(ctx, backends.BatchCancel{
		Queue: queue, ID: id,
		RetainDead: func(queue string) time.Duration {
			policy, _ := p.executor.policy(queue)
			return policy.RetainDead
		},
		Cancelled: func(j backends.CancelledJobs) {
			p.cancelled(j.Claims)
			p.commanded(&backends.Command{Kind: backends.Cancel, Queue: j.Queue, IDs: j.IDs}, j.Jobs, len(j.Claims), j.Freed)
			p.storedPending(j.Pending)
		},
	})
}

// Batches returns batches by id.
func (p *Pipeline) Batches(ctx context.Context, l backends.BatchList) ([]backends.Batch, error) {
	return p.backend.Batches(ctx, l)
}

// WaitForBatch returns a batch when it has ended, or when ctx is done. The error is a *backends.BatchError if the queue has no such batch.
// begin returns the context of its query.
func (p *Pipeline) WaitForBatch(ctx context.Context, begin func() (context.Context, func()), queue, id string) (b backends.Batch, err error) {
	w, stop := p.batches.wait(id)
	defer stop()
	look := func() error {
		ctx, done := begin()
		defer done()
		all, err := p.backend.Batches(ctx, backends.BatchList{States: []string{id}})
		if err == nil && (len(all) == 0 || all[0].Queue != queue) {
			err = &backends.BatchError{Batch: id}
		}
		if err == nil {
			b = all[0]
		}
		return err
	}
	if err := look(); err != nil || b.State.Ended() {
		return b, err
	}
	select {
	case b = <-w:
		if b.State == "" {
			err = &backends.BatchError{Batch: id}
		}
		return b, err
	case <-ctx.Done():
		return b, nil
	}
}

// batchEnds ends batches after commits, and beside the next ones, so that no other write waits for it. One resolves at a time. The batches of
// the commits during it go into the next one together. It also passes on the ends of batches to requests that wait for them.
type batchEnds struct {
	ask    func(ctx context.Context, ids []string) (backends.ResolvedBatches, error)
	states func(ctx context.Context, ids []string) ([]backends.Batch, error)
	ended  func(r *backends.ResolvedBatches)
	wake   chan struct{} // has one if run has to begin to poll

	mu      sync.Mutex
	ids     map[string]struct{} // for the next one
	running bool
	waits   map[string]map[chan backends.Batch]struct{}
	all     sync.WaitGroup
}

// add resolves batches soon. After hard ends, maintenance does, here or elsewhere.
func (b *batchEnds) add(hard context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ids == nil {
		b.ids = map[string]struct{}{}
	}
	for _, id := range ids {
		b.ids[id] = struct{}{}
	}
	if !b.running {
		b.running = true
		b.all.Go(func() { b.runNext(hard) })
	}
}

func (b *batchEnds) runNext(hard context.Context) {
	for {
		b.mu.Lock()
		ids := slices.Sorted(maps.Keys(b.ids))
		b.ids = nil
		b.running = len(ids) > 0 && hard.Err() == nil
		goesOn := b.running
		b.mu.Unlock()
		if !goesOn {
			return
		}
		b.resolve(hard, ids)
	}
}

// resolve ends those of the batches that can end. If it fails, maintenance tries again.
func (b *batchEnds) resolve(ctx context.Context, ids []string) {
	if r, err := b.ask(ctx, ids); err == nil || len(r.Ended) > 0 {
		b.pass(r.Ended)
		b.ended(&r)
	}
}

// waitForEnd returns when none runs. The caller adds no more.
func (b *batchEnds) waitForEnd() { b.all.Wait() }

// wait returns a channel that gets the batch after it has ended.
func (b *batchEnds) wait(id string) (w chan backends.Batch, stop func()) {
	w = make(chan backends.Batch, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waits == nil {
		b.waits = map[string]map[chan backends.Batch]struct{}{}
	}
	if b.waits[id] == nil {
		b.waits[id] = map[chan backends.Batch]struct{}{}
	}
	b.waits[id][w] = struct{}{}
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return w, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if delete(b.waits[id], w); len(b.waits[id]) == 0 {
			delete(b.waits, id)
		}
	}
}

// pass passes on that batches have ended.
func (b *batchEnds) pass(ended []backends.Batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range ended {
		for w := range b.waits[ended[i].ID] {
			select {
			case w <- ended[i]:
			default: // it has it
			}
		}
	}
}

// pollBatches is how often the states of waited batches are read, which other sidecars possibly ended. One query reads all.
const pollBatches = time.Second

// run polls while requests wait, until ctx is done.
func (b *batchEnds) run(ctx context.Context) {
	tick := time.NewTicker(pollBatches)
	defer tick.Stop()
	for {
		b.mu.Lock()
		ids := slices.Sorted(maps.Keys(b.waits))
		b.mu.Unlock()
		if len(ids) == 0 {
			select {
			case <-b.wake:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if len(ids) == 0 {
			continue
		}
		all, err := b.states(ctx, ids)
		if err != nil {
			continue // heartbeats report an unreachable database
		}
		for _, id := range ids {
			i := slices.IndexFunc(all, func(x backends.Batch) bool { return x.ID == id })
			switch {
			case i < 0: // it expired
				b.pass([]backends.Batch{{ID: id}})
			case all[i].State.Ended():
				b.pass(all[i : i+1])
			}
		}
	}
}
