package sqlite

import (
	"cmp"
	"context"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// NoteGroups implements core.Grouper.
func (t *tx) NoteGroups(groups []core.Group) {
	for _, g := range groups {
		t.do(func() error { return t.noteGroup(g) })
	}
}

func (t *tx) noteGroup(g core.Group) error {
	_, err := t.exec(t.sql.noteGroup, g.Queue, g.Name)
	return err
}

// NoteAllGroups implements core.Grouper.
func (t *tx) NoteAllGroups(queue string) {
	for _, sql := range []string{t.sql.nextBlocked, t.sql.nextAdmitted} {
		t.do(func() error {
			for g := (core.Group{Queue: queue}); ; {
				next, err := t.nextGroup(sql, g)
				if err != nil || next.Queue != queue {
					return err
				}
				if err := t.noteGroup(next); err != nil {
					return err
				}
				g = next
			}
		})
	}
}

// nextGroup returns the group that comes after one, or zero.
func (t *tx) nextGroup(sql string, after core.Group) (next core.Group, err error) {
	err = t.query(sql, func(r row) error {
		next = core.Group{Queue: r.text(0), Name: r.text(1)}
		return nil
	}, after.Queue, after.Name)
	return next, err
}

// LeaveGroups implements core.Grouper.
func (t *tx) LeaveGroups(ids []int64) {
	for _, id := range ids {
		t.do(func() error {
			_, err := t.exec(t.sql.leaveGroup, id)
			return err
		})
	}
}

// Admit implements core.Grouper. No other transaction writes, so it counts without a lock.
func (t *tx) Admit(_ context.Context, groups []core.Group, limit int, admitted func(queue string, urgency int32, position, returns int64)) (again []core.Group, err error) {
	marks := int64(limit)
	for _, g := range groups {
		if _, err := t.exec(t.sql.takeNote, g.Queue, g.Name); err != nil {
			return nil, err
		}
		marked, err := t.exec(t.sql.takeArrived, g.Queue, g.Name, marks)
		if err != nil {
			return nil, err
		}
		marks -= marked
		more, err := t.admit(g, int64(limit), admitted)
		if err != nil {
			return nil, err
		}
		if more {
			again = append(again, g)
		}
	}
	return again, t.err
}

// member is a job of a group that no worker has.
type member struct {
	id, priority, position int64
	admitted               bool
}

// admit gives the slots of a group to its first jobs, and blocks the others. more: it possibly has more to change than limit.
func (t *tx) admit(g core.Group, limit int64, admitted func(queue string, urgency int32, position, returns int64)) (more bool, err error) {
	var most, free int64
	if err := t.query(t.sql.slots, func(r row) error {
		most, free = r.int(0), r.int(0)-r.int(1)
		return nil
	}, g.Queue, g.Name); err != nil {
		return false, err
	}
	var members []member
	read := func(sql string, has bool, limit int64) (n int64, err error) {
		err = t.query(sql, func(r row) error {
			members = append(members, member{r.int(0), r.int(1), r.int(2), has})
			n++
			return nil
		}, g.Queue, g.Name, limit)
		return n, err
	}
	ready, err := read(t.sql.admitted, true, limit)
	if err != nil {
		return false, err
	}
	free += ready
	heads, err := read(t.sql.blocked, false, min(most, limit))
	if err != nil {
		return false, err
	}
	slices.SortFunc(members, func(x, y member) int {
		if x.priority == y.priority && x.admitted != y.admitted {
			return map[bool]int{true: -1, false: 1}[x.admitted]
		}
		return cmp.Or(cmp.Compare(y.priority, x.priority), cmp.Compare(x.position, y.position), cmp.Compare(x.id, y.id))
	})
	for i, m := range members {
		switch first := int64(i) < free; {
		case m.admitted && !first:
			err = t.one(t.sql.block, m.id)
		case !m.admitted && first:
			err = t.one(t.sql.admit, m.id)
			admitted(g.Queue, int32(-m.priority), m.position, 0)
		}
		if err != nil {
			return false, err
		}
	}
	return ready == limit && free < ready || heads == limit && free > limit, nil
}

// GroupSlots implements core.GroupFinder.
func (t *tx) GroupSlots(_ context.Context, g core.Group, limit int) (all []backends.JobState, err error) {
	err = t.query(t.sql.groupSlots, func(r row) error {
		all = append(all, backends.JobState{ID: core.ID(r.int(0)), State: backends.State(r.text(1))})
		return nil
	}, g.Queue, g.Name, limit)
	return all, err
}

// FindGroups implements core.GroupFinder.
func (t *tx) FindGroups(_ context.Context, after core.Group, walk, limit int) (groups []core.Group, last core.Group, err error) {
	for _, sql := range []string{t.sql.noted, t.sql.arrived} {
		if err := t.query(sql, func(r row) error {
			groups = append(groups, core.Group{Queue: r.text(0), Name: r.text(1)})
			return nil
		}, limit); err != nil {
			return nil, last, err
		}
	}
	for last = after; walk > 0; walk-- {
		if last, err = t.nextGroup(t.sql.nextBlocked, last); err != nil || last == (core.Group{}) {
			break
		}
		groups = append(groups, last)
	}
	return groups, last, err
}
