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
	if t.noNotes {
		return nil
	}
	_, err := t.exec(t.sql.noteGroup, g.Queue, g.Name)
	return err
}

// NoteAllGroups implements core.Grouper.
func (t *tx) NoteAllGroups(queue string) {
	t.do(func() error {
		for g := (core.Group{Queue: queue}); ; {
			next, err := t.nextGroup(g, t.sql.nextBlocked, t.sql.nextAdmitted)
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

// nextGroup returns the first group that comes after one in the results of some queries, or zero.
func (t *tx) nextGroup(after core.Group, queries ...string) (next core.Group, _ error) {
	for _, sql := range queries {
		if err := t.query(sql, func(r row) error {
			if g := (core.Group{Queue: r.text(0), Name: r.text(1)}); next == (core.Group{}) || core.CompareGroups(g, next) < 0 {
				next = g
			}
			return nil
		}, after.Queue, after.Name); err != nil {
			return next, err
		}
	}
	return next, nil
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

// LockGroups implements core.Grouper. No other transaction writes.
func (t *tx) LockGroups(_ context.Context, groups []core.Group, _ core.StripeLock) ([]core.Group, error) {
	return groups, t.err
}

// Admit implements core.Grouper. It needs no locks.
func (t *tx) Admit(_ context.Context, groups []core.Group, limit int, admitted func(queue string, urgency int32, position, returns int64)) (changed int, again []core.Group, err error) {
	marks := int64(limit)
	var come [][]member // by their ranks in their groups
	for _, g := range groups {
		if _, err := t.exec(t.sql.takeNote, g.Queue, g.Name); err != nil {
			return 0, nil, err
		}
		marked, err := t.exec(t.sql.takeArrived, g.Queue, g.Name, marks)
		if err != nil {
			return 0, nil, err
		}
		marks -= marked
		blocked, up, more, err := t.decide(g, int64(limit))
		if err != nil {
			return 0, nil, err
		}
		if changed += blocked + len(up); more {
			again = append(again, g)
		}
		for place, m := range up {
			if place == len(come) {
				come = append(come, nil)
			}
			come[place] = append(come[place], m)
		}
	}
	for _, m := range slices.Concat(come...) {
		var position any // its own
		if m.fair {
			if position, err = t.next(); err != nil {
				return 0, nil, err
			}
		}
		if err := t.one(t.sql.admit, position, m.id); err != nil {
			return 0, nil, err
		}
		admitted(m.queue, int32(-m.priority), m.position, 0)
	}
	return changed, again, t.err
}

// member is a job of a group that no worker has.
type member struct {
	id, priority, position int64
	admitted               bool
	queue                  string
	fair                   bool // it gets a new position
}

// decide blocks the jobs of a group that have no slots any more, and returns how many, and the jobs that get slots. more: it possibly has
// more to change than limit.
func (t *tx) decide(g core.Group, limit int64) (changed int, up []member, more bool, err error) {
	var l backends.Limits
	var claimed, delayed, ready int64
	if err := t.query(t.sql.slots, func(r row) error {
		l.GroupLimit, l.GroupReady, claimed, delayed, ready = r.int(0), r.int(1), r.int(2), r.int(3), r.int(4)
		return nil
	}, g.Queue, g.Name); err != nil {
		return 0, nil, false, err
	}
	kept := max(l.GroupSlots()-claimed, 0)
	if surplus := delayed - kept; surplus > 0 {
		rows, err := t.rows(t.sql.delayed, func(row) bool { return true }, g.Queue, g.Name, limit, kept)
		if err != nil {
			return 0, nil, false, err
		}
		for _, r := range rows {
			if err := t.one(t.sql.block, nil, r.int(0)); err != nil {
				return 0, nil, false, err
			}
		}
		changed, more, delayed = len(rows), surplus > limit, delayed-surplus
	}
	places := l.GroupPlaces(claimed + delayed)
	var members []member
	read := func(sql string, has bool, limit int64) error {
		return t.query(sql, func(r row) error {
			members = append(members, member{r.int(0), r.int(1), r.int(2), has, g.Queue, l.GroupReady > 0})
			return nil
		}, g.Queue, g.Name, limit)
	}
	if ready > 0 {
		if err := read(t.sql.admitted, true, limit); err != nil {
			return 0, nil, false, err
		}
	}
	if err := read(t.sql.blocked, false, min(places, limit)); err != nil {
		return 0, nil, false, err
	}
	slices.SortFunc(members, func(x, y member) int {
		if x.priority == y.priority && x.admitted != y.admitted {
			return map[bool]int{true: -1, false: 1}[x.admitted]
		}
		return cmp.Or(cmp.Compare(y.priority, x.priority), cmp.Compare(x.position, y.position), cmp.Compare(x.id, y.id))
	})
	before, gone := max(ready-limit, 0), int64(0) // those that it has not read come before the others
	for i, m := range members {
		if m.admitted && before+int64(i) >= places {
			if err := t.one(t.sql.block, 1, m.id); err != nil {
				return 0, nil, false, err
			}
			gone++
		}
	}
	for _, m := range members {
		if !m.admitted && ready-gone+int64(len(up)) < places {
			up = append(up, m)
		}
	}
	came := int64(len(up))
	more = more || ready-gone > places || came == limit && ready-gone+came < places
	return changed + int(gone), up, more, nil
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
func (t *tx) FindGroups(_ context.Context, searches core.GroupSearches) (found core.FoundGroups, err error) {
	for source, next := range [...][]string{
		core.NotedGroups: {t.sql.nextNoted}, core.ArrivedGroups: {t.sql.nextArrived}, core.AllGroups: {t.sql.nextBlocked, t.sql.nextAdmitted},
	} {
		last := searches[source].After
		for range searches[source].Limit {
			g, err := t.nextGroup(last, next...)
			if err != nil {
				return found, err
			}
			if g == (core.Group{}) {
				break
			}
			found[source], last = append(found[source], g), g
		}
	}
	return found, nil
}
