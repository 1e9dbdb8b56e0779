package web

import (
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// batchTimeout bounds one request of a task. The sidecar itself waits up to 30 s for its turn.
	batchTimeout = 2 * time.Minute

	// maxRestarts is how often a task starts from the first job again without changing one.
	maxRestarts = 10
)

// run carries out a task in batches. It reads the jobs of a batch, and changes those that belong to the task.
//
// A job that dies again after its retry is not retried a second time: it died after the task began.
func (t *task) run(ctx context.Context, do doFunc) error {
	if t.Op == protocol.OpPurge {
		return t.purge(ctx, do)
	}
	last, byDeath, err := t.lastDeath(ctx, do)
	if err != nil {
		return err
	}
	after, restarts := "", 0 // after is the last job that was read and stays dead
	for {
		rep, err := ask(ctx, do, &protocol.Request{Op: protocol.OpPeek, Queue: t.Queue, State: protocol.StateDead, Max: protocol.Some[int64](batchSize), After: after})
		if isRejected(err) && after != "" && restarts < maxRestarts {
			after, restarts = "", restarts+1 // that job is not dead any more
			continue
		}
		if err != nil {
			return err
		}
		ids, stays, end := t.choose(rep.Views, last, byDeath)
		changed, err := t.changeJobs(ctx, do, ids, stays)
		if err != nil || end {
			return err
		}
		if changed > 0 {
			restarts = 0
		} else if len(ids) > 0 {
			stays[ids[len(ids)-1]] = true // another client was faster, or the sidecar leaves them
		}
		for i := range rep.Views {
			if id := rep.Views[i].ID; stays[id] {
				after = id
			}
		}
	}
}

// lastDeath returns when the newest of the queue's dead jobs died, by the database's clock, which can differ from this
// host's. byDeath reports whether the sidecar lists dead jobs in the order in which they died. In an adopted table it
// doesn't, and the limit is this host's time.
func (t *task) lastDeath(ctx context.Context, do doFunc) (last int64, byDeath bool, err error) {
	rep, err := ask(ctx, do, &protocol.Request{Op: protocol.OpPeek, Queue: t.Queue, State: protocol.StateDead, Max: protocol.Some[int64](1), Newest: true})
	if wire, ok := errors.AsType[*protocol.Error](err); ok && wire.Code == protocol.CodeUnsupported {
		return t.Started.UnixMilli(), false, nil
	}
	if err != nil || len(rep.Views) == 0 {
		return 0, true, err
	}
	return diedAt(&rep.Views[0]), true, nil
}

// choose returns which jobs of a batch the task changes and which stay dead: those of other groups, and those that died
// after last. If the jobs are listed in the order of their deaths, the first of these ends the list.
func (t *task) choose(views []protocol.JobView, last int64, byDeath bool) (ids []string, stays map[string]bool, end bool) {
	stays = make(map[string]bool)
	seen := int64(0)
	for i := range views {
		v := &views[i]
		later := diedAt(v) > last
		if later && byDeath {
			end = true
			break
		}
		seen++
		if later || t.Group != "" && groupKey(failureOf(v)) != t.Group {
			stays[v.ID] = true
		} else {
			ids = append(ids, v.ID)
		}
	}
	t.update(func(p *progress) { p.Seen += seen })
	return ids, stays, end || len(views) == 0
}

// changeJobs retries or deletes jobs and returns how many it changed. If the sidecar rejects a batch because of one job,
// it changes the halves of the batch. It adds the jobs that can't be changed to stays.
func (t *task) changeJobs(ctx context.Context, do doFunc, ids []string, stays map[string]bool) (changed int64, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	rep, err := ask(ctx, do, &protocol.Request{Op: t.Op, Queue: t.Queue, IDs: ids})
	switch {
	case err == nil:
		t.update(func(p *progress) { p.Changed += rep.Count.Or(0) })
		return rep.Count.Or(0), nil
	case !isRejected(err):
		return 0, err
	case len(ids) == 1:
		t.update(func(p *progress) { p.Skipped, p.Why = p.Skipped+1, explain(err) })
		stays[ids[0]] = true
		return 0, nil
	}
	for _, half := range [][]string{ids[:len(ids)/2], ids[len(ids)/2:]} {
		n, err := t.changeJobs(ctx, do, half, stays)
		if changed += n; err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// isRejected reports whether the sidecar refused a request because of one of its jobs.
func isRejected(err error) bool {
	var wire *protocol.Error
	return errors.As(err, &wire) && wire.Code == protocol.CodeBadRequest
}

// purge deletes all jobs in a state. The sidecar does it in one request, and has no progress to report.
func (t *task) purge(ctx context.Context, do doFunc) error {
	rep, err := do(ctx, &protocol.Request{Op: protocol.OpPurge, Queue: t.Queue, State: t.State})
	if err != nil {
		return err
	}
	t.update(func(p *progress) { p.Changed = rep.Count.Or(0) })
	return nil
}

// ask carries out one request of a task.
func ask(ctx context.Context, do doFunc, req *protocol.Request) (*protocol.Reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, batchTimeout, errors.New("the sidecar did not answer in time: start the operation again for the other jobs"))
	defer cancel()
	return do(ctx, req)
}
