package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// inspectTimeout bounds a database query that a person waits for.
const inspectTimeout = 30 * time.Second

// keepsIDs is the maximum number of ids of a request that is carried out in its own goroutine.
const keepsIDs = 16

// beginInspection waits until no other large reply of the session is in progress, and then reserves that slot until done is
// called. The slot is a channel instead of a lock, because a test on a virtual clock can't wait for a lock. ctx ends
// after inspectTimeout, or when no reply can be sent any more: the end of a session waits for all of its queries, and
// so do the jobs that the client holds.
func (s *Session) beginInspection(op protocol.Op) (ctx context.Context, done func()) {
	s.mu.Lock()
	if s.inspecting == nil { // most sessions never need it
		s.inspecting = make(chan struct{}, 1)
	}
	slot := s.inspecting
	s.mu.Unlock()
	slot <- struct{}{}
	ctx, cancel := s.untilGone(op, inspectTimeout)
	return ctx, func() {
		cancel()
		<-slot
	}
}

// untilGone returns a context that ends after limit, or when no reply can be sent any more.
func (s *Session) untilGone(op protocol.Op, limit time.Duration) (ctx context.Context, end context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("%s: no answer within %v", op, limit))
	stop := context.AfterFunc(s.gone, func() {
		switch cause := context.Cause(s.gone); {
		case errors.Is(cause, ErrHangUp):
			cancel()
		case errors.Is(cause, errServer):
			time.AfterFunc(lastReplyTimeout, cancel)
		}
	})
	if cause := context.Cause(s.gone); errors.Is(cause, ErrHangUp) || errors.Is(cause, errServer) {
		cancel()
	}
	return ctx, func() {
		stop()
		cancel()
	}
}

func (s *Session) stats(req *protocol.Request) finisher {
	queue, p := req.Queue, s.shared.Plan()
	if queue != "" {
		if _, wire := p.DatabaseOfQueue(queue); wire != nil {
			return fail(wire)
		}
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, done := s.beginInspection(protocol.OpStats)
		if ctx.Err() != nil {
			return s.failure(ErrDraining), done
		}
		stats, err := statsOf(ctx, p, queue, (*pipeline.Pipeline).ReplicaStats)
		if err != nil {
			return s.failure(err), done
		}
		reply := &protocol.Reply{Queues: s.seen(stats)}
		if queue != "" && len(reply.Queues) == 1 {
			reply.Unknown = unknown(ctx, p, &reply.Queues[0])
		}
		return reply, done
	})}
}

// unknown reports whether nothing is recorded about a queue: the config doesn't name it, it has no job, pause or limits, and neither this sidecar
// nor the database has counted a job of it. The counts of other sidecars reach the database an hour late.
func unknown(ctx context.Context, p *plan.Plan, q *protocol.QueueStat) bool {
	if q.Ready+q.Blocked+q.Scheduled+q.Claimed+q.Dead+q.Done > 0 || q.Paused || q.MaxClaimed.Set || q.Rate != "" || q.GroupLimit.Set || q.GroupReady.Set || q.GroupOnFailure != "" || q.Enqueued.Or(0)+q.Acked.Or(0) > 0 {
		return false
	}
	db, wire := p.Inspectable(q.Queue)
	if _, named := p.Queues[q.Queue]; named || wire != nil || db.Adopted(q.Queue) {
		return false
	}
	hours, err := db.Hours(ctx, q.Queue)
	return err == nil && len(hours) == 0
}

// unknownQueue is unknown for a request about a queue.
func unknownQueue(ctx context.Context, p *plan.Plan, queue string) bool {
	stats, err := statsOf(ctx, p, queue, (*pipeline.Pipeline).Stats)
	return err == nil && len(stats) == 1 && unknown(ctx, p, &stats[0])
}

// seen removes the stats of queues that the session is not allowed to see.
func (s *Session) seen(all []protocol.QueueStat) []protocol.QueueStat {
	g := s.granted()
	return slices.DeleteFunc(all, func(q protocol.QueueStat) bool { return !g.Queue(protocol.OpStats, q.Queue) })
}

// statsReader is Pipeline.Stats or Pipeline.ReplicaStats.
type statsReader func(db *pipeline.Pipeline, ctx context.Context, queue string) ([]backends.QueueStats, error)

// statsOf returns the stats of one queue, or of all databases if queue is empty. In that case it also lists queues that
// are configured by name and have no jobs.
func statsOf(ctx context.Context, p *plan.Plan, queue string, read statsReader) ([]protocol.QueueStat, error) {
	if queue != "" {
		db, wire := p.Inspectable(queue)
		if wire != nil {
			return nil, wire
		}
		out, err := statsIn(ctx, db, queue, read)
		if err == nil && len(out) == 0 {
			out = append(out, counted(db, protocol.QueueStat{Queue: queue}))
		}
		return out, err
	}
	out := []protocol.QueueStat{}
	seen := make(map[string]bool)
	for _, db := range p.Databases {
		if !db.Served || !db.Inspectable() {
			continue
		}
		part, err := statsIn(ctx, db, "", read)
		if err != nil {
			return nil, err
		}
		for i := range part {
			if !p.IsIn(part[i].Queue, db) {
				continue // jobs of a queue that is not served here, or no longer
			}
			seen[part[i].Queue] = true
			out = append(out, part[i])
		}
	}
	for name, q := range p.Queues {
		if name != "*" && !seen[name] {
			out = append(out, counted(q.Database, protocol.QueueStat{Queue: name}))
		}
	}
	slices.SortFunc(out, func(a, b protocol.QueueStat) int { return cmp.Compare(a.Queue, b.Queue) })
	return out, nil
}

func statsIn(ctx context.Context, db *plan.Database, queue string, read statsReader) ([]protocol.QueueStat, error) {
	stats, err := read(db.Pipeline, ctx, queue)
	if err != nil {
		return nil, err
	}
	out := make([]protocol.QueueStat, len(stats))
	for i := range stats {
		out[i] = counted(db, wirejob.FromStats(&stats[i]))
		out[i].Limited = limitOf(db, &stats[i])
	}
	return out, nil
}

// limitOf returns the limit that the ready jobs of a queue wait for.
func limitOf(db *plan.Database, q *backends.QueueStats) protocol.Limit {
	switch most := q.Limits.MaxClaimed; {
	case q.Ready == 0 || q.Paused:
	case most > 0 && q.Claimed >= most:
		return protocol.LimitMaxClaimed
	case q.Limits.Rate.Jobs > 0 && db.WaitsForRate(q.Queue):
		return protocol.LimitRate
	}
	return ""
}

// counted adds the counters of this sidecar.
func counted(db *plan.Database, q protocol.QueueStat) protocol.QueueStat {
	if enqueued, acked, ok := db.Metrics.Load().Totals(q.Queue); ok {
		q.Enqueued, q.Acked = protocol.Some(enqueued), protocol.Some(acked)
	}
	return q
}
