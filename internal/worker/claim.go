package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"

	"github.com/qsidecar/qsidecar/protocol"
)

// claimAll claims a job for each idle runner and calls begin for it, until ctx ends, or
// Options.Once or Options.Drain stops it.
func (w *Worker) claimAll(ctx context.Context, begin func(runner, protocol.Job)) error {
	for {
		free, err := w.idleRunners(ctx)
		if err != nil {
			return err
		}
		unanswered := w.opts.Drain && w.settler.Unanswered() > 0
		jobs, err := w.claim(ctx, len(free))
		if unanswered && qsidecar.IsCode(err, protocol.CodeBusy) { // jobs_per_connection counts the jobs of these settles
			err = nil
		}
		if ctx.Err() != nil && len(jobs) > 0 { // jobs arrived although the worker is stopping
			err = w.giveBack(ctx, jobs)
			jobs = nil
		}
		for i, r := range free {
			if i < len(jobs) {
				begin(r, jobs[i])
			} else {
				w.idle <- r
			}
		}
		switch {
		case ctx.Err() != nil:
			if !errors.Is(err, context.Cause(ctx)) { // an error other than the canceled claim
				return errors.Join(context.Cause(ctx), err)
			}
			return context.Cause(ctx)
		case err != nil:
			return err
		case w.opts.Once && len(jobs) == 0:
			return ErrNoJob
		case len(jobs) == 0 && unanswered:
			// An ack that is unanswered can store follow-up jobs.
			if err := w.settler.Wait(ctx); err != nil {
				return err
			}
		case w.opts.Once, w.opts.Drain && len(jobs) == 0 && len(free) == w.opts.Jobs:
			return nil
		case w.opts.Drain && len(jobs) == 0:
			// A running command can enqueue more jobs, so claim again after the next one
			// ends.
			if err := w.waitForIdle(ctx, len(free)); err != nil {
				return err
			}
		}
	}
}

// idleRunners waits for an idle runner that can begin a job, and returns all that are idle.
func (w *Worker) idleRunners(ctx context.Context) ([]runner, error) {
	var free []runner
	select {
	case r := <-w.idle:
		free = append(free, r)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := w.settler.WaitToClaim(ctx); err != nil {
		w.idle <- free[0]
		return nil, err
	}
	for {
		select {
		case r := <-w.idle:
			free = append(free, r)
		default:
			return free, nil
		}
	}
}

// waitForIdle waits until more than n runners are idle.
func (w *Worker) waitForIdle(ctx context.Context, n int) error {
	var taken []runner
	defer func() {
		for _, r := range taken {
			w.idle <- r
		}
	}()
	for len(taken) <= n {
		select {
		case r := <-w.idle:
			taken = append(taken, r)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// giveBack returns jobs that arrived after the worker began to stop.
func (w *Worker) giveBack(ctx context.Context, jobs []protocol.Job) error {
	ctx, cancel := w.opts.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	return GiveBack(ctx, w.client, jobs)
}

// GiveBack returns claimed jobs that no worker has started. They are ready again at once,
// and no attempt is counted.
func GiveBack(ctx context.Context, c *qsidecar.Client, jobs []protocol.Job) error {
	leases := make([]string, len(jobs))
	for i, j := range jobs {
		leases[i] = j.Lease
	}
	now := time.Duration(0)
	if _, err := c.NackMany(ctx, leases, qsidecar.Nack{Snooze: true, Delay: &now}); err != nil {
		return fmt.Errorf("giving it back: %w", err)
	}
	return nil
}

// claim claims up to most jobs. If that can succeed later, claim logs the error, pauses, and
// returns no error unless the options Once or Drain are set.
func (w *Worker) claim(ctx context.Context, most int) ([]protocol.Job, error) {
	cl := qsidecar.Claim{Queues: w.opts.Queues, Order: w.opts.Order, Weights: w.opts.Weights, Max: most, Wait: claimWait}
	if w.opts.Once || w.opts.Drain {
		cl.Wait = 0
		var cancel context.CancelFunc
		ctx, cancel = w.opts.WithTimeout(ctx, claimTimeout)
		defer cancel()
		return w.client.Claim(ctx, cl)
	}
	jobs, err := w.client.Claim(ctx, cl)
	if err != nil && ctx.Err() == nil && w.opts.TryAgain(err) {
		w.logf("claim: %v; going on", err)
		sleep(ctx, claimPause)
		return nil, nil
	}
	return jobs, err
}
