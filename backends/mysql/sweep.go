package mysql

import (
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Sweep implements backends.Backend. Where nothing is due it is one statement.
func (s *Store) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	r := backends.MaintenanceResult{Reaped: map[backends.Cause]int{}, Next: -1}
	if len(w.Suspects) > 0 {
		if err := s.giveUp(ctx, w.Suspects); err != nil {
			return r, err
		}
	}
	o, err := s.lookAround(ctx, w)
	if err != nil {
		return r, err
	}
	bites := []struct {
		due bool
		f   func(ctx context.Context, t *tx, b *bitten) error
	}{
		{o.arrived, func(ctx context.Context, t *tx, b *bitten) error { return b.settleIn(ctx, t, w.Limit) }},
		{len(o.scheduled) > 0, func(ctx context.Context, t *tx, b *bitten) error { return b.promote(ctx, t, o.scheduled, w.Limit) }},
		{len(o.due) > 0, func(ctx context.Context, t *tx, b *bitten) error { return b.reapDue(ctx, t, o.due, w.Limit) }},
		{o.lost != nil, func(ctx context.Context, t *tx, b *bitten) error { return b.reapLost(ctx, t, *o.lost, w.Limit) }},
		{len(o.dead) > 0, func(ctx context.Context, t *tx, b *bitten) error { return b.forget(ctx, t, o.dead) }},
	}
	if o.never != 0 {
		r.Unusable = batch.Never(o.never, s.place)
	}
	bit := false
	for _, b := range bites {
		if b.due {
			bit = true
			if err := s.bite(ctx, &r, w.Limit, b.f); err != nil {
				return r, err
			}
		}
	}
	for _, p := range []struct {
		since *instant
		trail *batch.Trail
		f     pruning
	}{{o.expired, &s.trails.jobs, s.pruneJobs}, {o.keys, &s.trails.keys, s.pruneKeys}} {
		if p.since != nil {
			bit = true
			r.PruneOverdue = max(r.PruneOverdue, time.Duration(o.at-*p.since)*time.Microsecond)
			if err := s.prune(ctx, &r, p.f, p.trail, *p.since, w.PruneLimit()); err != nil {
				return r, err
			}
		}
	}
	if w.Prune && s.janitor.visits.Add(1)%tidyEvery == 0 {
		if err := s.tidy(ctx, w.Limit); err != nil {
			return r, err
		}
	}
	if bit {
		w.Prune = false
		if o, err = s.lookAround(ctx, w); err != nil {
			return r, err
		}
		r.More = r.More || o.lost != nil
	}
	r.Ready, r.Next = o.ready, o.next
	return r, nil
}

// bitten is what one bite did.
type bitten struct {
	rows, promoted int
	reaped         map[backends.Cause]int
	freed          []string
	fallen         backends.FailedCounts
}

// bite runs f as one transaction, and adds what it did to r once it is committed.
func (s *Store) bite(ctx context.Context, r *backends.MaintenanceResult, limit int, f func(ctx context.Context, t *tx, b *bitten) error) error {
	var b bitten
	if err := s.write(ctx, func(ctx context.Context, t *tx) error {
		b = bitten{reaped: map[backends.Cause]int{}}
		return f(ctx, t, &b)
	}); err != nil {
		return err
	}
	r.Promoted += b.promoted
	for c, n := range b.reaped {
		r.Reaped[c] += n
	}
	r.Failed.AddAll(b.fallen)
	for _, q := range b.freed {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	r.More = r.More || b.rows >= limit
	return nil
}

// giveUp marks the suspects dead that still look the same.
func (s *Store) giveUp(ctx context.Context, suspects []backends.Suspect) error {
	return s.write(ctx, func(_ context.Context, t *tx) error {
		t.wrote = true
		suspects = slices.Clone(suspects)
		slices.SortFunc(suspects, func(a, b backends.Suspect) int { return int(min(max(int64(a.Host)-int64(b.Host), -1), 1)) })
		for _, x := range suspects {
			// As backends.Ended has it.
			t.add("UPDATE qsidecar_hosts SET dead = 1 WHERE host = ? AND beats = ? AND NOT dead AND (expires_at <= "+s.sql.clock+
				" OR NOT has_left AND expires_at > "+s.sql.clock+" + INTERVAL ? MICROSECOND)", int64(x.Host), int64(x.Heartbeats), x.Timeout.Microseconds())
		}
		return nil
	})
}

// askNow asks for the transaction's instant.
func (t *tx) askNow() {
	t.each(func(r *result) error {
		t.now = r.instant(0)
		return nil
	}, "SELECT "+t.s.sql.clock)
}

// pick queues a look for rows of a lane that are due, in their order. They are not
// locked by it: that is done by their ids.
func (t *tx) pick(ids *[]int64, lane string, limit int) {
	t.each(func(r *result) error {
		*ids = append(*ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = ? AND urgency = 0 AND place <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "+t.s.sql.clock+") ORDER BY urgency, place, id LIMIT ?", lane, limit)
}

// locked locks rows by their ids and returns them in the order of ids: those that
// are there, and that nobody has locked.
func (t *tx) locked(ctx context.Context, ids []int64) (found []*job, all map[int64]*job, err error) {
	all = map[int64]*job{}
	t.lock(all, slices.Clone(ids), t.s.sql.skip)
	if err := t.send(ctx); err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		if j := all[id]; j != nil && !slices.Contains(found, j) {
			found = append(found, j)
		}
	}
	return found, all, nil
}

// settleIn gives plain INSERTs with a run_at their place.
func (b *bitten) settleIn(ctx context.Context, t *tx, limit int) error {
	var ids []int64
	t.askNow()
	t.each(func(r *result) error {
		ids = append(ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = 'n' ORDER BY urgency, place, id LIMIT ?", limit)
	if err := t.send(ctx); err != nil {
		return err
	}
	found, _, err := t.locked(ctx, ids)
	if err != nil {
		return err
	}
	var ready []*job
	var later []int64
	var queues []string
	for _, j := range found {
		if j.state != backends.StateReady || j.runAt == 0 {
			continue
		}
		if queues = append(queues, j.queue); j.runAt <= t.now {
			ready = append(ready, j)
		} else {
			later = append(later, j.id)
		}
	}
	b.rows = len(ids)
	if len(later) > 0 {
		t.wrote = true
		slices.Sort(later)
		t.add("UPDATE " + byID + " SET state = 'scheduled' WHERE id IN (" + list(later) + ")")
	}
	b.makeReady(t, ready)
	t.register(queues)
	return nil
}

// promote makes due jobs ready, in the order in which they are due.
func (b *bitten) promote(ctx context.Context, t *tx, queues []string, limit int) error {
	t.askNow()
	var ids []int64
	for _, q := range queues {
		t.pick(&ids, "s"+q, limit)
	}
	if err := t.send(ctx); err != nil {
		return err
	}
	ids = ids[:min(limit, len(ids))]
	found, _, err := t.locked(ctx, ids)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(j *job) bool { return j.state != backends.StateScheduled || j.runAt > t.now })
	b.rows = len(ids)
	b.makeReady(t, found)
	return nil
}

// makeReady gives jobs new positions in the order of the list.
func (b *bitten) makeReady(t *tx, all []*job) {
	if len(all) == 0 {
		return
	}
	t.wrote = true
	b.promoted += len(all)
	rank := map[int64]int64{}
	var ids, ranks []int64
	for i, j := range all {
		rank[j.id] = int64(i)
		ids, b.freed = append(ids, j.id), append(b.freed, j.queue)
	}
	slices.Sort(ids)
	for _, id := range ids {
		ranks = append(ranks, rank[id])
	}
	t.add("UPDATE "+byID+" SET state = 'ready', run_at = NULL, ready_at = ?, position = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + "+among(ids, ranks)+
		" WHERE id IN ("+list(ids)+")", t.now)
}
