package pipeline

import (
	"iter"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/jobends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/progress"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// jobEvents publishes what happens to the jobs of one database. Events are published before the client gets the reply,
// so that they are in the order of a job's life.
type jobEvents struct {
	hub      *jobevents.Hub
	waits    *jobends.Hub
	progress *progress.Board
	database string
	trace    func(headers map[string]string) (parent, state string)
}

// received returns the time at which a request arrives, or zero if no event needs it.
func (j *jobEvents) received() time.Time {
	if !j.hub.Active() {
		return time.Time{}
	}
	return time.Now()
}

// publish publishes an event. A nil session means that no client caused it.
func (j *jobEvents) publish(e jobevents.Event, s *quota.Session) {
	e.Database, e.Error = j.database, textfmt.Cut(e.Error, jobevents.MaxError)
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if s != nil && s.Client != nil {
		e.Session, e.Worker = s.Client.Identify()
	}
	j.hub.Publish(&e)
}

// written publishes the effects of a committed write.
func (j *jobEvents) written(p *PendingWrite, res *backends.WriteResult) {
	if res.Err == nil && j.waits.Waits() {
		j.passOn(p, res)
	}
	if res.Err == nil && j.progress.Used() {
		j.endProgress(p, res)
	}
	if !j.hub.Active() || res.Err != nil {
		return
	}
	defer j.storedPending(res.Pending) // after the ends of the claims for which they waited
	if p.unseen() {
		return
	}
	e, s := jobevents.Event{Jobs: 1}, p.session
	switch w := p.write.(type) {
	case backends.Enqueue, backends.Ack:
		j.stored(newJobs(w), res.Stored, p.received, s)
	case backends.Nack:
		e.Cause, e.Error = string(backends.CauseNacked), w.Error
	case backends.Release:
		e.Cause, e.Error, s = string(w.Cause), w.Message, p.holder
	}
	for held, kind := range ends(p.write, p.runs, res) {
		if kind == jobevents.Lost && held.Queue == "" {
			continue // it was lost before, or another sidecar's
		}
		one := e
		one.Kind = kind
		if kind == jobevents.Lost {
			one.Cause, one.Error = "", ""
		}
		j.publish(withJob(one, held), s)
	}
}

// passOn passes on the jobs that a write ended to the requests that wait for them.
func (j *jobEvents) passOn(p *PendingWrite, res *backends.WriteResult) {
	for held, kind := range ends(p.write, p.runs, res) {
		e := jobends.End{ID: held.ID()}
		switch kind {
		case jobevents.Acked:
			e.State, e.Result = backends.StateDone, p.write.(backends.Ack).Result
		case jobevents.Dead:
			e.State = backends.StateDead
			switch w := p.write.(type) {
			case backends.Nack:
				e.LastError = w.Error
			case backends.Release:
				e.LastError = w.Message
			}
		default:
			continue
		}
		j.waits.Pass(held.Queue, e)
	}
}

// endProgress forgets the reports about leases that a write ended.
func (j *jobEvents) endProgress(p *PendingWrite, res *backends.WriteResult) {
	for held, kind := range ends(p.write, p.runs, res) {
		job := ""
		if kind == jobevents.Acked || kind == jobevents.Dead || kind == jobevents.Lost {
			job = held.ID()
		}
		j.progress.Ended(held.Lease.Token, job)
	}
}

func withJob(e jobevents.Event, h *lease.Held) jobevents.Event {
	e.Queue, e.Job, e.Attempt, e.MaxAttempts = h.Queue, h.ID(), h.Info.Attempt, h.Info.MaxAttempts
	e.EnqueuedAt, e.ClaimedAt, e.TraceParent, e.TraceState = h.Info.EnqueuedAt, h.Since, h.Info.TraceParent, h.Info.TraceState
	return e
}

func (j *jobEvents) stored(jobs []backends.NewJob, stored []backends.Stored, received time.Time, s *quota.Session) {
	now := time.Now()
	for i := range stored {
		if stored[i].Duplicate {
			continue
		}
		e := j.enqueued(&jobs[i], stored[i].ID, now)
		e.ReceivedAt = received
		j.publish(e, s)
	}
}

func (j *jobEvents) enqueued(n *backends.NewJob, id string, now time.Time) jobevents.Event {
	e := jobevents.Event{Kind: jobevents.Enqueued, Time: now, Queue: n.Queue, Job: id, Jobs: 1, MaxAttempts: n.MaxAttempts, RunAt: n.RunAt}
	e.TraceParent, e.TraceState = j.trace(n.Headers)
	if n.Delay > 0 {
		e.RunAt = now.Add(n.Delay)
	}
	return e
}

// storedPending publishes the pending jobs that became jobs of their own. The client that enqueued them is not known here.
func (j *jobEvents) storedPending(all []backends.StoredPending) {
	if !j.hub.Active() {
		return
	}
	for i := range all {
		j.publish(j.enqueued(&all[i].NewJob, all[i].ID, time.Now()), nil)
	}
}

// handedOut publishes that a worker got jobs.
func (j *jobEvents) handedOut(jobs []backends.Job, now time.Time, s *quota.Session) {
	if !j.hub.Active() {
		return
	}
	for i := range jobs {
		b := &jobs[i]
		e := jobevents.Event{Kind: jobevents.Claimed, Time: now, Queue: b.Queue, Job: b.ID, Jobs: 1, Attempt: b.Attempt,
			MaxAttempts: b.MaxAttempts, EnqueuedAt: b.EnqueuedAt, ClaimedAt: now}
		e.TraceParent, e.TraceState = j.trace(b.Headers)
		j.publish(e, s)
	}
}

// failed publishes the attempts that maintenance or a claim ended. The database returns only their number.
func (j *jobEvents) failed(all backends.FailedCounts) {
	if !j.hub.Active() {
		return
	}
	for _, f := range all {
		e := jobevents.Event{Kind: jobevents.Failed, Queue: f.Queue, Jobs: int64(f.Jobs), Cause: string(f.Cause)}
		switch {
		case f.Dead:
			e.Kind = jobevents.Dead
		case f.Cause == backends.CauseExpired:
			e.Kind = jobevents.Deleted
		}
		j.publish(e, nil)
	}
}

// lost publishes the claims that sessions no longer have.
func (j *jobEvents) lost(all lease.Lost, reason string) {
	if !j.hub.Active() {
		return
	}
	for s, gone := range all {
		for i := range gone {
			j.publish(withJob(jobevents.Event{Kind: jobevents.Lost, Jobs: 1, Cause: reason}, &gone[i]), s)
		}
	}
}

// commanded publishes the effect of an operator's command. If some of its ids were not changed, it is not known which.
func (j *jobEvents) commanded(c *backends.Command, count int64) {
	kind := map[backends.CommandKind]jobevents.Kind{
		backends.Cancel: jobevents.Dead,
		backends.Retry:  jobevents.Retried, backends.Delete: jobevents.Deleted, backends.Purge: jobevents.Deleted, backends.Reclaim: jobevents.Released,
	}[c.Kind]
	if c.Kind == backends.Cancel && c.Remove {
		kind = jobevents.Deleted
	}
	if !j.hub.Active() || kind == "" || count == 0 {
		return
	}
	e := jobevents.Event{Kind: kind, Queue: c.Queue, Jobs: count, Cause: "operator"}
	if c.Kind == backends.Cancel {
		e.Cause = string(backends.CauseCancelled)
	}
	if int(count) != len(c.IDs) {
		j.publish(e, nil)
		return
	}
	e.Jobs = 1
	for _, e.Job = range c.IDs {
		j.publish(e, nil)
	}
}

// Ends returns what each lease of a committed settle ended with.
func (s *Settle) Ends(res *backends.WriteResult) iter.Seq2[*lease.Held, jobevents.Kind] {
	return ends(s.pending.write, s.Runs, res)
}

// Ends returns what each lease of a committed release ended with.
func (p *PendingWrite) Ends(res *backends.WriteResult) iter.Seq2[*lease.Held, jobevents.Kind] {
	return ends(p.write, p.runs, res)
}

// ends returns the leases of a write that ended, and how. If a write killed some of its jobs and not others, ends finds out
// which by their attempts.
func ends(w backends.Write, runs []lease.Run, res *backends.WriteResult) iter.Seq2[*lease.Held, jobevents.Kind] {
	return func(yield func(*lease.Held, jobevents.Kind) bool) {
		if _, ok := w.(backends.Deliver); ok {
			return
		}
		leases, lost, dead := backends.LeasesOf(w), res.LostTokens(), res.Failed.Dead()
		all := dead == len(leases)-len(lost)
		for i, l := range leases {
			h := lease.Held{Lease: l} // nothing more is known of a job that another sidecar claimed, or this one before a restart
			if i < len(runs) {
				h = runs[i].Held
			}
			if h.Queue == "" && len(res.Failed) == 1 {
				h.Queue = res.Failed[0].Queue
			}
			kind := jobevents.Lost
			if !lost[l.Token] {
				kind = end(w, dead > 0, all, lastAttempt(&h))
			}
			if kind != "" && !yield(&h, kind) {
				return
			}
		}
	}
}

// end returns what a write does with a job whose lease is valid, or "" if the lease goes on. The write killed some or all of
// its jobs, and last reports whether a failure is known to be the job's last.
func end(w backends.Write, some, all, last bool) jobevents.Kind {
	switch w := w.(type) {
	case backends.Ack:
		return jobevents.Acked
	case backends.Nack:
		switch {
		case some && (all || w.Dead || !w.Snooze && last):
			return jobevents.Dead
		case w.Snooze:
			return jobevents.Snoozed
		}
		return jobevents.Failed
	case backends.Release:
		switch {
		case w.Uncounted:
			return jobevents.Released
		case some && (all || last):
			return jobevents.Dead
		}
		return jobevents.Failed
	}
	return ""
}

// lastAttempt reports whether a failure of this delivery is known to be the job's last.
func lastAttempt(h *lease.Held) bool {
	return h.Info.Attempt > 0 && h.Info.Attempt >= h.Info.MaxAttempts
}
