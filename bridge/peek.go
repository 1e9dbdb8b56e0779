package bridge

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/search"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

func (s *session) peek(req *protocol.Request) finisher {
	plan := s.bridge.plan.Load()
	if req.Queue != "" {
		if _, wire := plan.inspectable(req.Queue); wire != nil {
			return fail(wire)
		}
	}
	p := wirejob.Peek(req, int64(s.limits.MaxReply)/4) // base64, headers and failures must also fit
	q := search.Query{Text: req.Text, Headers: maps.Clone(req.Headers)}
	if req.State != "" { // without a state the key is looked up
		q.Key, p.Key = p.Key, ""
	}
	f := finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, looked := s.beginInspection(protocol.OpPeek)
		if ctx.Err() != nil {
			return s.failure(errDraining), looked
		}
		done, err := s.bridge.memory.ReserveInspection(s.gone.Done(), p.MaxBytes+search.PageBytes)
		if err != nil {
			return &protocol.Reply{Error: busyMemory(err)}, looked
		}
		defer done()
		reply, bytes, err := s.foundJobs(ctx, plan, p, q)
		if err != nil {
			return s.failure(err), looked
		}
		s.quota.AddUnread(bytes)
		return reply, func() {
			s.quota.AddUnread(-bytes)
			looked()
		}
	})}
	f.keeps = len(p.IDs) > keepsIDs
	return f
}

// foundJobs returns the reply with the jobs that p selects and q describes, and their bytes in the database's result.
func (s *session) foundJobs(ctx context.Context, plan *plan, p backends.Peek, q search.Query) (reply *protocol.Reply, bytes int64, err error) {
	read := func(ctx context.Context, p backends.Peek) ([]backends.View, error) { return s.views(ctx, plan, p) }
	var found search.Result
	if q.Any() {
		found.Views, err = read(ctx, p)
	} else {
		found, err = search.Jobs(ctx, read, p, &q)
	}
	if err != nil {
		return nil, 0, err
	}
	reply = &protocol.Reply{Views: make([]protocol.JobView, len(found.Views)), After: found.After}
	for i := range found.Views {
		v := &found.Views[i]
		bytes += v.Bytes()
		reply.Views[i] = wirejob.FromView(v, plan.maxAttempts(v.Queue))
	}
	reply.Views = s.replyLimit().FitViews(reply.Views)
	if !q.Any() {
		reply.Scanned = protocol.Some(int64(found.Scanned))
		if n := len(reply.Views); n < len(found.Views) {
			reply.After = reply.Views[n-1].ID
		}
	}
	return reply, bytes, nil
}

// views returns the jobs that p selects: from its queue, or from every queue that the session is allowed to see.
func (s *session) views(ctx context.Context, plan *plan, p backends.Peek) ([]backends.View, error) {
	if p.Queue != "" {
		db, wire := plan.inspectable(p.Queue)
		if wire != nil {
			return nil, wire
		}
		return db.Peek(ctx, p)
	}
	queues, err := s.peekable(ctx, plan, &p)
	if err != nil {
		return nil, err
	}
	var all []backends.View
	for i, q := range queues {
		one := p
		if one.Queue = q; p.Newest {
			db, _ := plan.inspectable(q)
			one.Newest = db == nil || !db.Adopted(q)
		}
		if p.IDs == nil { // the first queues have the fewest jobs, and leave the rest of their share to the others
			one.Max = (p.Max + len(queues) - i - 1) / (len(queues) - i)
		}
		if one.Max == 0 || one.MaxBytes <= 0 {
			break
		}
		views, err := s.views(ctx, plan, one)
		if err != nil {
			return nil, err
		}
		if p.IDs == nil {
			p.Max -= len(views)
		}
		for j := range views {
			p.MaxBytes -= views[j].Bytes()
		}
		all = append(all, views...)
	}
	slices.SortStableFunc(all, func(a, b backends.View) int { return cmp.Compare(a.Queue, b.Queue) })
	return all, nil
}

// peekable returns the queues that can have jobs that p selects and that the session is allowed to see. The queue
// with the fewest such jobs comes first.
func (s *session) peekable(ctx context.Context, plan *plan, p *backends.Peek) (queues []string, err error) {
	g := s.granted()
	if p.IDs != nil {
		queues, err = plan.queuesOf(ctx, p.IDs)
		return slices.DeleteFunc(queues, func(q string) bool { return !g.Queue(protocol.OpPeek, q) }), err
	}
	stats, err := plan.stats(ctx, "", (*database).Stats)
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int64)
	for i := range stats {
		q := &stats[i]
		n := map[backends.State]int64{
			backends.StateReady: q.Ready, backends.StateScheduled: q.Scheduled, backends.StateClaimed: q.Claimed,
			backends.StateDead: q.Dead, backends.StateDone: q.Done,
		}[p.State]
		if n > 0 && g.Queue(protocol.OpPeek, q.Queue) {
			counts[q.Queue] = n
			queues = append(queues, q.Queue)
		}
	}
	slices.SortStableFunc(queues, func(a, b string) int { return cmp.Compare(counts[a], counts[b]) })
	return queues, nil
}

// queuesOf returns the queues that can have jobs with these ids. Every adopted table is one, because any id can exist
// in it.
func (p *plan) queuesOf(ctx context.Context, ids []string) (queues []string, err error) {
	leases := make([]backends.Lease, len(ids))
	for i, id := range ids {
		leases[i].Job = id
	}
	for _, db := range p.databases {
		if !p.serves(db) || !db.Inspectable() {
			continue
		}
		found, err := db.QueuesInDatabase(ctx, leases)
		if err != nil {
			return nil, err
		}
		for name := range p.opts.Queues {
			if db.Adopted(name) {
				found = append(found, name)
			}
		}
		for _, name := range found {
			if q, ok := p.queue(name); ok && p.byName[q.Database] == db && !slices.Contains(queues, name) {
				queues = append(queues, name)
			}
		}
	}
	slices.Sort(queues)
	return queues, nil
}
