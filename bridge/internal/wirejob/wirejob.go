// Package wirejob converts jobs between the wire format and the job tables.
//
// A wire job and a stored job are different types on purpose: a renamed column can't change the wire format. The cost
// is the conversion in this package, which depends on nothing but the two formats.
package wirejob

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/protocol"
)

// Millis returns ms milliseconds.
func Millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func optMillis(t time.Time) protocol.Opt[int64] {
	if t.IsZero() {
		return protocol.Opt[int64]{}
	}
	return protocol.Some(t.UnixMilli())
}

// Stored converts a job of a request to one for the database. expiry has the queue's values.
func Stored(j *protocol.NewJob, keyTTL time.Duration, expiry backends.Expiry) backends.NewJob {
	out := backends.NewJob{
		Queue:       j.Queue,
		Payload:     j.Payload,
		Priority:    int16(j.Priority),
		Delay:       Millis(j.DelayMS.Or(0)),
		Key:         j.Key,
		KeyTTL:      keyTTL,
		Group:       j.Group,
		Headers:     j.Headers,
		MaxAttempts: int(j.MaxAttempts.Or(0)),
		Timeout:     Millis(j.TimeoutMS.Or(0)),
		Retain:      Millis(j.RetainMS.Or(0)),

		KeyUntilStart: j.KeyUntil == protocol.KeyUntilStart,
		DebounceMax:   Millis(j.DebounceMaxMS.Or(0)),
	}
	if j.OnConflict != protocol.ConflictKeep {
		out.OnConflict = backends.OnConflict(j.OnConflict)
	}
	if at, ok := j.RunAt.Get(); ok {
		out.RunAt = time.UnixMilli(at)
	}
	if j.Batch != "" {
		out.Batch, out.Headers = j.Batch, maps.Clone(j.Headers)
		if out.Headers == nil {
			out.Headers = map[string]string{}
		}
		out.Headers[backends.BatchHeader] = j.Batch
	}
	if j.OnExpiry != "" {
		expiry.Remove = j.OnExpiry == protocol.ExpireDelete
	}
	if at, ok := j.StartBefore.Get(); ok {
		expiry.StartBefore, expiry.StartWithin = time.UnixMilli(at), 0
	}
	if ms, ok := j.StartWithinMS.Get(); ok {
		expiry.StartWithin = Millis(ms)
	}
	if expiry.Some() {
		out.Expiry = expiry
	}
	return out
}

// FromClaim converts a claimed job of the database for the reply to its claim.
func FromClaim(database string, j *backends.Job) protocol.Job {
	out := protocol.Job{
		ID:          j.ID,
		Queue:       j.Queue,
		Lease:       FormatLease(database, j.Lease()),
		Payload:     j.Payload,
		Attempt:     int64(j.Attempt),
		MaxAttempts: int64(j.MaxAttempts),
		Fence:       j.Fence,
		Priority:    int64(j.Priority),
		EnqueuedAt:  j.EnqueuedAt.UnixMilli(),
		Headers:     j.Headers,
		Key:         j.Key,
		LastError:   j.LastError,
	}
	if j.Timeout > 0 {
		out.TimeoutMS = protocol.Some(j.Timeout.Milliseconds())
	}
	out.Progress = fromProgress(j.Progress)
	return out
}

// Progress returns the progress that a request reports.
func Progress(req *protocol.Request) backends.Progress {
	return backends.Progress{Done: req.Done.Or(-1), Total: req.Total.Or(-1), Data: slices.Clone(req.Data)}
}

func fromProgress(p *backends.Progress) *protocol.Progress {
	if p == nil {
		return nil
	}
	out := &protocol.Progress{At: p.At.UnixMilli()}
	if p.Done >= 0 {
		out.Done = protocol.Some(p.Done)
	}
	if p.Total >= 0 {
		out.Total = protocol.Some(p.Total)
	}
	if len(p.Data) > 0 {
		out.Data = p.Data
	}
	return out
}

// FromView converts a stored job for peek. maxAttempts is the queue's, for a job that was never claimed and has no
// value of its own.
func FromView(v *backends.View, maxAttempts int) protocol.JobView {
	out := protocol.JobView{
		ID:          v.ID,
		Queue:       v.Queue,
		State:       protocol.State(v.State),
		Payload:     v.Payload,
		Priority:    int64(v.Priority),
		Attempt:     int64(v.Attempt),
		MaxAttempts: int64(v.MaxAttempts),
		EnqueuedAt:  optMillis(v.EnqueuedAt).Or(0),
		RunAt:       optMillis(v.RunAt),
		ClaimedAt:   optMillis(v.ClaimedAt),
		FinishedAt:  optMillis(v.FinishedAt),
		StartBefore: optMillis(v.StartBefore),
		Worker:      v.Worker,
		Key:         v.Key,
		Group:       v.Group,
		Headers:     v.Headers,
		Result:      v.Result,
		Errors:      make([]protocol.Failure, len(v.Failures)),
		Progress:    fromProgress(v.Progress),
	}
	if v.MaxAttempts == 0 {
		out.MaxAttempts = int64(maxAttempts)
	}
	for i, f := range v.Failures {
		out.Errors[i] = protocol.Failure{Attempt: int64(f.Attempt), Cause: string(f.Cause), Message: f.Message, At: f.At.UnixMilli()}
	}
	return out
}

// FromEvent converts a job event.
func FromEvent(e *jobevents.Event) protocol.JobEvent {
	out := protocol.JobEvent{
		Event:       string(e.Kind),
		At:          e.Time.UnixMilli(),
		Database:    e.Database,
		Queue:       e.Queue,
		ID:          e.Job,
		Attempt:     int64(e.Attempt),
		MaxAttempts: int64(e.MaxAttempts),
		Worker:      e.Worker,
		Session:     e.Session,
		EnqueuedAt:  optMillis(e.EnqueuedAt),
		ClaimedAt:   optMillis(e.ClaimedAt),
		RunAt:       optMillis(e.RunAt),
		Cause:       e.Cause,
		Error:       e.Error,
	}
	if e.Job == "" {
		out.Jobs = e.Jobs
	}
	out.TraceID, _ = protocol.TraceID(e.TraceParent)
	return out
}

// FromStats converts the statistics of a queue.
func FromStats(q *backends.QueueStats) protocol.QueueStat {
	s := protocol.QueueStat{
		Queue:           q.Queue,
		Ready:           q.Ready,
		Blocked:         q.Blocked,
		Scheduled:       q.Scheduled,
		Claimed:         q.Claimed,
		Dead:            q.Dead,
		Done:            q.Done,
		Paused:          q.Paused,
		OldestReadyMS:   q.OldestReady.Milliseconds(),
		OldestClaimedMS: q.OldestClaimed.Milliseconds(),
		Approx:          q.Approx,
		Rate:            q.Limits.Rate.String(),
	}
	if n := q.Limits.MaxClaimed; n > 0 {
		s.MaxClaimed = protocol.Some(n)
	}
	if n := q.Limits.GroupReady; n > 0 {
		s.GroupReady = protocol.Some(n)
	}
	if n := q.Limits.GroupLimit; n > 0 {
		s.GroupLimit = protocol.Some(n)
	}
	if q.Limits.GroupOnFailure == backends.GroupSkips {
		s.GroupOnFailure = protocol.GroupSkip
	}
	if s.Rate != "" {
		s.Burst = protocol.Some(q.Limits.Starts())
	}
	return s
}

// FromPeer returns a sidecar of a database, whose row was read age ago. self is the identity of this sidecar.
func FromPeer(database string, p *backends.Peer, age time.Duration, self backends.Identity) protocol.Sidecar {
	s := protocol.Sidecar{Database: database, Sidecar: fmt.Sprintf("%016x", uint64(p.Sidecar)), Name: p.Name, Version: p.Version,
		State: protocol.SidecarAlive, HeartbeatAgeMS: max(0, p.Timeout-p.Left+age).Milliseconds(), StatsLeader: p.DepthLeader, Self: p.Sidecar == self}
	switch {
	case p.Dead:
		s.State = protocol.SidecarDead
	case p.HasLeft:
		s.State = protocol.SidecarLeft
	case p.Expired || p.Left <= age:
		s.State = protocol.SidecarLate
	}
	if p.Leases >= 0 {
		s.Leases = protocol.Some(p.Leases)
	}
	return s
}

// FromTotals converts totals of a time that began at an instant, in milliseconds.
func FromTotals(at int64, t *backends.Totals) protocol.HistoryPoint {
	p := protocol.HistoryPoint{At: at, Enqueued: t.Enqueued, Acked: t.Acked, Failed: t.Failed}
	if t.Ready >= 0 {
		p.Ready = protocol.Some(t.Ready)
	}
	for _, n := range t.Runs {
		p.Runs += n
	}
	if d, ok := t.RunTime(0.5); ok {
		p.RunP50MS = protocol.Some(d.Milliseconds())
	}
	if d, ok := t.RunTime(0.95); ok {
		p.RunP95MS = protocol.Some(d.Milliseconds())
	}
	return p
}
