package mysql

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Peek implements backends.Inspector.
func (s *Store) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	if p.State == "" {
		p.State = backends.StateReady
	}
	var views []backends.View
	err := s.read(ctx, func(ctx context.Context, t *tx) error {
		views = nil
		ids, err := t.chosen(ctx, p)
		if err != nil || len(ids) == 0 {
			return err
		}
		views, err = t.views(ctx, p, ids)
		return err
	})
	if err != nil {
		return nil, err
	}
	return views, nil
}

// numbers are those of the ids that are any, each once.
func numbers(ids []string) (all []int64) {
	for _, text := range ids {
		if id, ok := batch.Number(text); ok && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

const sizes = "SELECT id, " + bytesOf + " + COALESCE(LENGTH(result), 0) FROM "

// chosen are the ids that p may show, in its order, until their bytes or their
// number are enough: before any of the bytes are read.
func (t *tx) chosen(ctx context.Context, p backends.Peek) (ids []int64, err error) {
	size, full := int64(0), false
	fits := func(id, bytes int64) {
		size += bytes
		full = full || len(ids) == p.Max || p.MaxBytes > 0 && size > p.MaxBytes && len(ids) > 0
		if !full {
			ids = append(ids, id)
		}
	}
	each := func(r *result) error {
		fits(r.int(0), r.int(1))
		return nil
	}
	if len(p.IDs) > 0 {
		wanted := numbers(p.IDs)
		if len(wanted) == 0 {
			return nil, nil
		}
		bytes := map[int64]int64{}
		t.each(func(r *result) error {
			bytes[r.int(0)] = r.int(1)
			return nil
		}, sizes+"qsidecar_jobs WHERE id IN ("+list(wanted)+") AND queue = ?", p.Queue)
		err = t.send(ctx)
		for _, id := range wanted {
			if n, ok := bytes[id]; ok {
				fits(id, n)
			}
		}
		return ids, err
	}
	from, err := t.place(ctx, p)
	if err != nil {
		return nil, err
	}
	switch letter := laneOf[p.State]; p.State {
	case backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead:
		t.each(each, sizes+jobs+" WHERE lane = ? AND (urgency = ? AND place = ? AND id > ? OR urgency = ? AND place > ? OR urgency > ?) ORDER BY urgency, place, id LIMIT ?",
			letter+p.Queue, int64(from.spot.Urgency), from.spot.Position, from.id, int64(from.spot.Urgency), from.spot.Position, int64(from.spot.Urgency), p.Max)
	case backends.StateClaimed: // in one lane for each sidecar; there are never many
		t.each(each, sizes+jobs+" WHERE lane > 'c' AND lane < 'd' AND queue = ? AND (claimed_at > ? OR claimed_at = ? AND id > ?) ORDER BY claimed_at, id LIMIT ?",
			p.Queue, from.claimed, from.claimed, from.id, p.Max)
	default:
		return nil, fmt.Errorf("%w: no job is ever %q", errOwn, p.State)
	}
	err = t.send(ctx)
	return ids, err
}

// place is where a list goes on.
type place struct {
	spot    cursor.Spot
	claimed instant
	id      int64
}

func (t *tx) place(ctx context.Context, p backends.Peek) (from place, err error) {
	from = place{spot: cursor.Beginning, claimed: 1}
	if p.After == "" {
		return from, nil
	}
	id, ok := batch.Number(p.After)
	if !ok {
		return from, backends.ErrNoSuchJob
	}
	found := false
	t.each(func(r *result) error {
		found = true
		at := map[backends.State]instant{
			backends.StateReady: instant(r.int(1)), backends.StateScheduled: r.instant(2), backends.StateDone: r.instant(4), backends.StateDead: r.instant(4),
		}[p.State]
		from.id, from.spot = id, cursor.Spot{Position: at.int()} // it may be in another state by now
		if p.State == backends.StateReady {
			from.spot.Urgency = int32(-r.int(0))
		}
		from.claimed = max(r.instant(3), 1)
		return nil
	}, "SELECT priority, position, run_at, claimed_at, finished_at FROM qsidecar_jobs WHERE id = ? AND queue = ?", id, p.Queue)
	if err = t.send(ctx); err == nil && !found {
		err = backends.ErrNoSuchJob
	}
	return from, err
}

func (t *tx) views(ctx context.Context, p backends.Peek, ids []int64) (views []backends.View, err error) {
	order := map[int64]int{}
	for i, id := range ids {
		order[id] = i
	}
	t.each(func(r *result) error {
		views = append(views, readView(r))
		return nil
	}, "SELECT id, queue, state, payload, priority, attempts, COALESCE(claim_max, max_attempts, 0), enqueued_at, run_at, claimed_at, finished_at, "+
		"worker, `key`, headers, result FROM qsidecar_jobs WHERE id IN ("+list(ids)+") AND queue = ?", p.Queue)
	failures := map[string][]backends.Failure{}
	t.each(func(r *result) error {
		id := batch.ID(r.int(0))
		failures[id] = append(failures[id], backends.Failure{Attempt: int(r.int(1)), Cause: backends.Cause(r.text(2)), Message: r.text(3), At: r.instant(4).time()})
		return nil
	}, "SELECT job, attempt, cause, message, at FROM qsidecar_failures WHERE job IN ("+list(ids)+") ORDER BY job, fence")
	if err := t.send(ctx); err != nil {
		return nil, err
	}
	for i := range views {
		views[i].Failures = failures[views[i].ID]
	}
	slices.SortFunc(views, func(a, b backends.View) int {
		x, _ := batch.Number(a.ID)
		y, _ := batch.Number(b.ID)
		return cmp.Compare(order[x], order[y])
	})
	return views, nil
}

func readView(r *result) (v backends.View) {
	v = backends.View{
		ID: batch.ID(r.int(0)), Queue: r.text(1), State: backends.State(r.text(2)), Payload: r.bytes(3), Priority: int16(r.int(4)),
		Attempt: int(r.int(5)), MaxAttempts: int(r.int(6)), EnqueuedAt: r.instant(7).time(), FinishedAt: r.instant(10).time(),
		Key: r.text(12), Result: r.bytes(14),
	}
	switch v.State {
	case backends.StateScheduled:
		v.RunAt = r.instant(8).time()
	case backends.StateClaimed:
		v.ClaimedAt, v.Worker = r.instant(9).time(), r.text(11)
	}
	v.Headers = batch.ReadHeaders(r.text(13))
	return v
}
