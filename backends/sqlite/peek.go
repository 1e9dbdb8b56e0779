package sqlite

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Peek implements backends.Inspector.
func (s *Store) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	if p.State == "" {
		p.State = backends.StateReady
	}
	var views []backends.View
	err := s.reading(ctx, func(t *tx) error {
		ids, err := t.chosen(p)
		if err != nil {
			return err
		}
		size := int64(0)
		for _, id := range ids {
			if err := t.query(t.sql.size, func(r row) error { // before any of it is read
				size += r.int(0)
				return nil
			}, id); err != nil {
				return err
			}
			if p.MaxBytes > 0 && size > p.MaxBytes && len(views) > 0 {
				return nil
			}
			v, err := t.view(id)
			if err != nil {
				return err
			}
			if v != nil && v.Queue == p.Queue {
				views = append(views, *v)
			}
			if len(views) == p.Max {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return views, nil
}

// chosen are the ids that p may show, in its order.
func (t *tx) chosen(p backends.Peek) (ids []int64, err error) {
	if len(p.IDs) > 0 {
		for _, text := range p.IDs {
			if id, ok := number(text); ok && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		return ids, nil
	}
	from, err := t.place(p)
	if err != nil {
		return nil, err
	}
	return t.following(p.Queue, p.State, from, p.Max)
}

// place is where a list goes on.
type place struct {
	id, priority, position, at int64
	begin                      bool // at its beginning
}

func (t *tx) place(p backends.Peek) (from place, err error) {
	if p.After == "" {
		return place{begin: true, at: math.MinInt64}, nil
	}
	found := false
	id, ok := number(p.After)
	if ok {
		column := map[backends.State]int{backends.StateScheduled: 2, backends.StateClaimed: 3, backends.StateDone: 4, backends.StateDead: 4}[p.State]
		err = t.query(t.sql.place, func(r row) error {
			found = true
			from = place{id: id, priority: r.int(0), position: r.int(1), at: r.int(column)}
			return nil
		}, id, p.Queue)
	}
	if err == nil && !found {
		err = backends.ErrNoSuchJob
	}
	return from, err
}

// following lists up to limit ids of a queue's jobs in a state from just after a place.
func (t *tx) following(queue string, state backends.State, from place, limit int) (ids []int64, err error) {
	add := func(r row) error {
		ids = append(ids, r.int(0))
		return nil
	}
	switch state {
	case backends.StateReady:
		below := from.priority
		if from.begin {
			below = math.MaxInt64
		} else if err := t.query(t.sql.peekSamePrio, add, queue, from.priority, from.position, limit); err != nil {
			return nil, err
		}
		if len(ids) < limit {
			err = t.query(t.sql.peekReady, add, queue, below, limit-len(ids))
		}
	case backends.StateScheduled:
		err = t.query(t.sql.peekScheduled, add, queue, from.at, from.id, limit)
	case backends.StateClaimed:
		err = t.query(t.sql.peekClaimed, add, queue, from.at, from.id, limit)
	case backends.StateDone:
		err = t.query(t.sql.peekDone, add, queue, from.at, from.id, limit)
	case backends.StateDead:
		err = t.query(t.sql.peekDead, add, queue, from.at, from.id, limit)
	default:
		err = fmt.Errorf("no job is ever %q", state)
	}
	return ids, err
}

func (t *tx) view(id int64) (v *backends.View, err error) {
	failed := false
	err = t.query(t.sql.view, func(r row) error {
		v = &backends.View{
			ID: strconv.FormatInt(id, 10), Queue: r.text(0), State: backends.State(r.text(1)), Payload: r.bytes(2),
			Priority: int16(r.int(3)), Attempt: int(r.int(4)), MaxAttempts: int(r.int(5)), EnqueuedAt: r.time(6),
			FinishedAt: r.time(9), Key: r.text(11), Headers: batch.ReadHeaders(r.text(12)), Result: r.bytes(13),
		}
		switch v.State {
		case backends.StateScheduled:
			v.RunAt = r.time(7)
		case backends.StateClaimed:
			v.ClaimedAt, v.Worker = r.time(8), r.text(10)
		}
		failed = !r.null(14)
		return nil
	}, id)
	if err != nil || !failed {
		return v, err
	}
	return v, t.query(t.sql.failures, func(r row) error {
		v.Failures = append(v.Failures, backends.Failure{
			Attempt: int(r.int(0)), Cause: backends.Cause(r.text(1)), Message: r.text(2), At: r.time(3),
		})
		return nil
	}, id)
}
