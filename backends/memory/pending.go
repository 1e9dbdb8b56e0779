package memory

import (
	"bytes"
	"maps"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/pending"
)

// pendingJob is a job that waits for the end of the claim of the one that its key returns.
type pendingJob struct {
	backends.NewJob
	since time.Time // when the first of those that it replaced was stored
}

// replace sees to a new job whose key returns first. If that has ended, the answer has no id, and the caller stores the job.
func (b *Backend) replace(first *job, n backends.NewJob) backends.Stored {
	s := backends.Stored{ID: first.id, Duplicate: true, Outcome: backends.OutcomeReplaced}
	switch {
	case first.waits():
		b.replaceContent(first, &n)
		c := backends.Command{Delay: &n.Delay}
		switch {
		case n.OnConflict == backends.ConflictDebounce:
			c.Within = n.DebounceMax
		case n.Delay <= 0 && !n.RunAt.IsZero():
			c.Delay, c.RunAt = nil, n.RunAt
		}
		if n.Delay > 0 || !n.RunAt.IsZero() || n.OnConflict == backends.ConflictDebounce || first.state == backends.StateScheduled {
			b.changeWaiting(first, c)
		}
		b.setState(first, first.state, time.Time{}) // wakes claims
	case first.state == backends.StateClaimed:
		s.Outcome = backends.OutcomePending
		p := &pendingJob{NewJob: n, since: b.now}
		if first.pending != nil {
			p.since = first.pending.since
		}
		p.Payload, p.Headers = bytes.Clone(n.Payload), maps.Clone(n.Headers)
		p.RunAt, p.Delay = pending.RunAt(&n, b.now, p.since), 0
		first.pending = p
	default:
		return backends.Stored{}
	}
	s.State = first.state
	return s
}

func (b *Backend) replaceContent(j *job, n *backends.NewJob) {
	j.Payload, j.Headers = bytes.Clone(n.Payload), maps.Clone(n.Headers)
}

// settlePending sees to the pending job of a job whose claim ended.
func (b *Backend) settlePending(j *job) {
	p := j.pending
	if p == nil {
		return
	}
	j.pending = nil
	if j.waits() {
		b.replaceContent(j, &p.NewJob)
		if p.RunAt.After(b.now) && p.RunAt.After(j.runAt) {
			b.changeWaiting(j, backends.Command{RunAt: p.RunAt})
		}
		return
	}
	if k := (key{j.Queue, j.Key}); b.keys[k] == j {
		delete(b.keys, k)
	}
	p.OnConflict = backends.ConflictKeep
	stored := backends.StoredPending{NewJob: p.NewJob, ID: b.store([]backends.NewJob{p.NewJob})[0].ID}
	stored.Payload = nil
	b.pending = append(b.pending, stored)
}
