package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// namesOf returns the groups as the arrays that statements take.
func namesOf(groups []core.Group) (queues, names []string) {
	for _, g := range groups {
		queues, names = append(queues, g.Queue), append(names, g.Name)
	}
	return queues, names
}

// NoteGroups implements core.Grouper.
func (t *tx) NoteGroups(groups []core.Group) {
	if t.o.NoNotes {
		return
	}
	queues, names := namesOf(groups)
	t.add(t.s.sql.noteGroups, nil, queues, names)
}

// NoteAllGroups implements core.Grouper.
func (t *tx) NoteAllGroups(queue string) { t.add(t.s.sql.noteAll, nil, queue) }

// LeaveGroups implements core.Grouper.
func (t *tx) LeaveGroups(ids []int64) { t.add(t.s.sql.leaveGroups, nil, ids) }

// LockGroups implements core.Grouper.
func (t *tx) LockGroups(ctx context.Context, groups []core.Group, how core.StripeLock) (locked []core.Group, err error) {
	queues, stripes := core.StripesOf(groups)
	if how == core.LockWait {
		t.add(t.s.sql.lockStripes, nil, queues, stripes)
		return groups, nil
	}
	var has core.StripeSet
	err = t.ask(ctx, t.s.sql.lockFreeStripes, func(rows pgx.Rows) error {
		var queue string
		var stripe int32
		err := rows.Scan(&queue, &stripe)
		has.Add(queue, stripe)
		return err
	}, queues, stripes)
	return has.Groups(groups), err
}

// Admit implements core.Grouper.
func (t *tx) Admit(ctx context.Context, groups []core.Group, limit int, admitted func(queue string, urgency int32, position, returns int64)) (changed int, again []core.Group, err error) {
	queues, names := namesOf(groups)
	for _, sql := range []string{t.s.sql.takeNotes, t.s.sql.takeArrived} {
		t.add(sql, nil, queues, names, limit)
	}
	var delayed, ready []core.Group // those with such jobs that have slots: few
	if err := t.ask(ctx, t.s.sql.findWaiting, func(rows pgx.Rows) error {
		var n int64
		var isDelayed, isReady bool
		err := rows.Scan(&n, &isDelayed, &isReady)
		if isDelayed {
			delayed = append(delayed, groups[n-1])
		}
		if isReady {
			ready = append(ready, groups[n-1])
		}
		return err
	}, queues, names); err != nil {
		return 0, nil, err
	}
	take := func(sql string, groups []core.Group) {
		if len(groups) == 0 {
			return
		}
		queues, names := namesOf(groups)
		t.each(sql, func(rows pgx.Rows) error {
			n := 0
			err := rows.Scan(&n)
			changed += n
			return err
		}, queues, names, limit)
	}
	take(t.s.sql.leaveDelayed, delayed)
	take(t.s.sql.block, ready)
	err = t.ask(ctx, t.s.sql.admit, func(rows pgx.Rows) error {
		var n, position, returns int64
		var queue string
		var urgency int32
		if err := rows.Scan(&n, &queue, &urgency, &position, &returns); err != nil {
			return err
		}
		if returns < 0 {
			again = append(again, groups[n-1])
		} else {
			admitted(queue, urgency, position, returns)
			changed++
		}
		return nil
	}, queues, names, limit)
	return changed, again, err
}

// GroupSlots implements core.GroupFinder.
func (t *tx) GroupSlots(ctx context.Context, g core.Group, limit int) (all []backends.JobState, err error) {
	err = t.ask(ctx, t.s.sql.groupSlots, func(rows pgx.Rows) error {
		var id int64
		var state string
		err := rows.Scan(&id, &state)
		all = append(all, backends.JobState{ID: core.ID(id), State: backends.State(state)})
		return err
	}, g.Queue, g.Name, limit)
	return all, err
}

// FindGroups implements core.GroupFinder.
func (t *tx) FindGroups(ctx context.Context, searches core.GroupSearches) (found core.FoundGroups, err error) {
	var args []any
	for _, s := range searches {
		args = append(args, s.After.Queue, s.After.Name, s.Limit)
	}
	err = t.ask(ctx, t.s.sql.findGroups, func(rows pgx.Rows) error {
		var source core.GroupSource
		var g core.Group
		err := rows.Scan(&source, &g.Queue, &g.Name)
		found[source] = append(found[source], g)
		return err
	}, args...)
	return found, err
}
