package sqlite

import (
	"cmp"
	"context"
	"slices"

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
func (t *tx) Admit(_ context.Context, groups []core.Group, limit int, admitted func(queue string, urgency int32, position, returns int64)) (changed int, again []core.Group, err error) {
	marks := int64(limit)
	for _, g := range groups {
		if _, err := t.exec(t.sql.takeNote, g.Queue, g.Name); err != nil {
			return 0, nil, err
		}
		marked, err := t.exec(t.sql.takeArrived, g.Queue, g.Name, marks)
		if err != nil {
			return 0, nil, err
		}
		marks -= marked
		n, more, err := t.admit(g, int64(limit), admitted)
		if err != nil {
			return 0, nil, err
		}
		if changed += n; more {
			again = append(again, g)
		}
	}
	return changed, again, t.err
}

// member is a job of a group that no worker has.
type member struct {
	id, priority, position int64
	admitted               bool
}

// admit gives the slots of a group to its first jobs, and blocks the others. more: it possibly has more to change than limit.
func (t *tx) admit(g core.Group, limit int64, admitted func(queue string, urgency int32, position, returns int64)) (changed int, more bool, err error) {
	var most, claimed, delayed, ready int64
	if err := t.query(t.sql.slots, func(r row) error {
		most, claimed, delayed, ready = r.int(0), r.int(1), r.int(2), r.int(3)
		return nil
	}, g.Queue, g.Name); err != nil {
		return 0, false, err
	}
	if surplus := delayed - max(most-claimed, 0); surplus > 0 {
		rows, err := t.rows(t.sql.delayed, func(row) bool { return true }, g.Queue, g.Name, limit, max(most-claimed, 0))
		if err != nil {
			return 0, false, err
		}
		for _, r := range rows {
			if err := t.one(t.sql.block, nil, r.int(0)); err != nil {
				return 0, false, err
			}
		}
		changed, more, delayed = len(rows), surplus > limit, delayed-surplus
	}
	places := max(most-claimed-delayed, 0)
	var members []member
	read := func(sql string, has bool, limit int64) error {
		return t.query(sql, func(r row) error {
			members = append(members, member{r.int(0), r.int(1), r.int(2), has})
			return nil
		}, g.Queue, g.Name, limit)
	}
	if ready > 0 {
		if err := read(t.sql.admitted, true, limit); err != nil {
			return 0, false, err
		}
	}
	if err := read(t.sql.blocked, false, min(places, limit)); err != nil {
		return 0, false, err
	}
	slices.SortFunc(members, func(x, y member) int {
		if x.priority == y.priority && x.admitted != y.admitted {
			return map[bool]int{true: -1, false: 1}[x.admitted]
		}
		return cmp.Or(cmp.Compare(y.priority, x.priority), cmp.Compare(x.position, y.position), cmp.Compare(x.id, y.id))
	})
	before, gone, came := max(ready-limit, 0), int64(0), int64(0) // those that it has not read come before the others
	for i, m := range members {
		if m.admitted && before+int64(i) >= places {
			if err := t.one(t.sql.block, 1, m.id); err != nil {
				return 0, false, err
			}
			gone++
		}
	}
	for _, m := range members {
		if !m.admitted && ready-gone+came < places {
			if err := t.one(t.sql.admit, m.id); err != nil {
				return 0, false, err
			}
			admitted(g.Queue, int32(-m.priority), m.position, 0)
			came++
		}
	}
	more = more || ready-gone > places || came == limit && ready-gone+came < places
	return changed + int(gone+came), more, nil
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
		blocked, err := t.nextGroup(t.sql.nextBlocked, last)
		if err != nil {
			return nil, last, err
		}
		admitted, err := t.nextGroup(t.sql.nextAdmitted, last)
		if err != nil {
			return nil, last, err
		}
		if last = blocked; last == (core.Group{}) || admitted != (core.Group{}) && core.CompareGroups(admitted, last) < 0 {
			last = admitted
		}
		if last == (core.Group{}) {
			break
		}
		groups = append(groups, last)
	}
	return groups, last, nil
}
