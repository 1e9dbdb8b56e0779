package session

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/search"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

func (s *Session) peek(req *protocol.Request) finisher {
	current := s.shared.Plan()
	if req.Queue != "" {
		if _, wire := current.Inspectable(req.Queue); wire != nil {
			return fail(wire)
		}
	}
	p := wirejob.Peek(req, int64(s.limits.MaxReply)/4) // base64, headers and failures must also fit
	after := req.AfterQueue
	q := search.Query{Text: req.Text, Error: req.Error, Headers: maps.Clone(req.Headers)}
	if req.State != "" { // without a state the key is looked up
		q.Key, p.Key = p.Key, ""
	}
	f := finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, looked := s.beginInspection(protocol.OpPeek)
		if ctx.Err() != nil {
			return s.failure(ErrDraining), looked
		}
		done, err := s.shared.Memory.ReserveInspection(s.gone.Done(), p.MaxBytes+search.PageBytes)
		if err != nil {
			return &protocol.Reply{Error: busyMemory(err)}, looked
		}
		defer done()
		reply, bytes, err := s.foundJobs(ctx, current, p, q, after)
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
func (s *Session) foundJobs(ctx context.Context, in *plan.Plan, p backends.Peek, q search.Query, after string) (reply *protocol.Reply, bytes int64, err error) {
	read := func(ctx context.Context, p backends.Peek) ([]backends.View, error) { return s.views(ctx, in, p) }
	var found search.Result
	rest := "" // the queue in which a search of all queues goes on
	switch {
	case p.Queue == "" && (p.Key != "" || !q.Any()):
		found, rest, err = s.searchAll(ctx, in, p, &q, after)
	case q.Any():
		found.Views, err = read(ctx, p)
	default:
		found, err = search.Jobs(ctx, read, p, &q, search.NewBudget())
	}
	if err != nil {
		return nil, 0, err
	}
	for _, db := range in.Databases {
		db.FillViews(ctx, found.Views, func(queue string) bool { return in.IsIn(queue, db) })
	}
	reply = &protocol.Reply{Views: make([]protocol.JobView, len(found.Views)), After: found.After, AfterQueue: rest}
	for i := range found.Views {
		v := &found.Views[i]
		bytes += v.Bytes()
		reply.Views[i] = wirejob.FromView(v, in.MaxAttempts(v.Queue))
	}
	if len(p.IDs) <= explained && q.Any() && (len(p.IDs) > 0 || p.Key != "") {
		if err := explain(ctx, in, reply.Views); err != nil {
			return nil, 0, err
		}
	}
	reply.Views = s.replyLimit().FitViews(reply.Views)
	if !q.Any() {
		reply.Scanned = protocol.Some(int64(found.Scanned))
		if n := len(reply.Views); n < len(found.Views) {
			if reply.After = reply.Views[n-1].ID; p.Queue == "" {
				reply.AfterQueue = reply.Views[n-1].Queue
			}
		}
	}
	return reply, bytes, nil
}

// searchAll searches all queues that the session is allowed to see, in the order of their names. It begins in the queue `from`, if that isn't
// empty, behind the job p.After. rest is the queue in which the next search begins.
func (s *Session) searchAll(ctx context.Context, in *plan.Plan, p backends.Peek, q *search.Query, from string) (all search.Result, rest string, err error) {
	var queues []string
	if p.Key != "" { // it can have any state
		queues, err = s.queuesSeen(ctx, in)
	} else {
		queues, err = s.peekable(ctx, in, &p)
	}
	if err != nil {
		return all, "", err
	}
	slices.Sort(queues)
	left := search.NewBudget()
	for _, queue := range queues {
		if queue < from {
			continue
		}
		one := p
		if one.Queue = queue; queue != from {
			one.After = ""
		}
		db, wire := in.Inspectable(queue)
		if wire != nil {
			continue
		}
		if p.Key != "" {
			views, err := db.Peek(ctx, one)
			if _, unsupported := errors.AsType[*backends.UnsupportedError](err); err != nil && !unsupported { // jobs of adopted tables have no keys
				return all, "", err
			}
			all.Views = append(all.Views, views...)
			continue
		}
		if one.Max = p.Max - len(all.Views); one.Max == 0 || p.MaxBytes <= 0 || left.Spent() {
			return all, queue, nil
		}
		one.MaxBytes = p.MaxBytes
		found, err := search.Jobs(ctx, db.Peek, one, q, left)
		if err != nil {
			return all, "", err
		}
		for i := range found.Views {
			p.MaxBytes -= found.Views[i].Bytes()
		}
		all.Views, all.Scanned = append(all.Views, found.Views...), all.Scanned+found.Scanned
		if found.After != "" {
			all.After = found.After
			return all, queue, nil
		}
	}
	return all, "", nil
}

// queuesSeen returns the queues for which the session can peek and that have jobs.
func (s *Session) queuesSeen(ctx context.Context, in *plan.Plan) (queues []string, err error) {
	stats, err := statsOf(ctx, in, "", (*pipeline.Pipeline).Stats)
	g := s.granted()
	for i := range stats {
		if g.Queue(protocol.OpPeek, stats[i].Queue) {
			queues = append(queues, stats[i].Queue)
		}
	}
	return queues, err
}

// views returns the jobs that p selects: from its queue, or from every queue that the session is allowed to see.
func (s *Session) views(ctx context.Context, in *plan.Plan, p backends.Peek) ([]backends.View, error) {
	if p.Queue != "" {
		db, wire := in.Inspectable(p.Queue)
		if wire != nil {
			return nil, wire
		}
		return db.Peek(ctx, p)
	}
	queues, err := s.peekable(ctx, in, &p)
	if err != nil {
		return nil, err
	}
	var all []backends.View
	for i, q := range queues {
		one := p
		if one.Queue = q; p.Newest {
			db, _ := in.Inspectable(q)
			one.Newest = db == nil || !db.Adopted(q)
		}
		if p.IDs == nil { // the first queues have the fewest jobs, and leave the rest of their share to the others
			one.Max = (p.Max + len(queues) - i - 1) / (len(queues) - i)
		}
		if one.Max == 0 || one.MaxBytes <= 0 {
			break
		}
		views, err := s.views(ctx, in, one)
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
func (s *Session) peekable(ctx context.Context, in *plan.Plan, p *backends.Peek) (queues []string, err error) {
	g := s.granted()
	if p.IDs != nil {
		queues, err = queuesOf(ctx, in, p.IDs)
		return slices.DeleteFunc(queues, func(q string) bool { return !g.Queue(protocol.OpPeek, q) }), err
	}
	stats, err := statsOf(ctx, in, "", (*pipeline.Pipeline).Stats)
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int64)
	for i := range stats {
		q := &stats[i]
		n := map[backends.State]int64{
			backends.StateReady: q.Ready, backends.StateBlocked: q.Blocked, backends.StateScheduled: q.Scheduled, backends.StateClaimed: q.Claimed,
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
func queuesOf(ctx context.Context, p *plan.Plan, ids []string) (queues []string, err error) {
	leases := make([]backends.Lease, len(ids))
	for i, id := range ids {
		leases[i].Job = id
	}
	for _, db := range p.Databases {
		if !db.Served || !db.Inspectable() {
			continue
		}
		found, err := db.QueuesInDatabase(ctx, leases)
		if err != nil {
			return nil, err
		}
		for name := range p.Queues {
			if db.Adopted(name) {
				found = append(found, name)
			}
		}
		for _, name := range found {
			if p.IsIn(name, db) && !slices.Contains(queues, name) {
				queues = append(queues, name)
			}
		}
	}
	slices.Sort(queues)
	return queues, nil
}
