package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// groupMark is behind the stored name of a group that ends with blanks, because SQL Server passes over these when it compares texts.
const groupMark = "\x01"

// storedGroup returns a group's name as the tables have it: with one more groupMark if blanks, and then any number of groupMarks, are
// at its end. The table refuses such names of plain INSERTs if they end with a blank, so no two groups have one stored name.
func storedGroup(name string) string {
	if strings.HasSuffix(strings.TrimRight(name, groupMark), " ") {
		return name + groupMark
	}
	return name
}

// givenGroup is the inverse of storedGroup.
func givenGroup(stored string) string {
	if strings.HasSuffix(strings.TrimRight(stored, groupMark), " ") {
		return strings.TrimSuffix(stored, groupMark)
	}
	return stored
}

// checkGroup returns an error for a name that a document would change: it could be that of another group then.
func checkGroup(name string) error {
	if !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return backends.Refused(fmt.Errorf("the group %q is not valid UTF-8, or has a NUL", name))
	}
	return nil
}

type groupRow struct {
	N     int    `json:"n"`
	Queue string `json:"queue"`
	Name  string `json:"name"`
	Note  int64  `json:"note"`
}

func groupRows(groups []core.Group) []groupRow {
	rows := make([]groupRow, len(groups))
	for i, g := range groups {
		rows[i] = groupRow{i, g.Queue, storedGroup(g.Name), rand.Int64()}
	}
	return rows
}

// groupsInto returns a reader of queues and names of groups.
func groupsInto(all *[]core.Group) reader {
	return each(func(rows *sql.Rows) error {
		var g core.Group
		err := rows.Scan(&g.Queue, &g.Name)
		g.Name = givenGroup(g.Name)
		*all = append(*all, g)
		return err
	})
}

// notesThem returns a reader of groups, which the transaction notes.
func (t *tx) notesThem() reader {
	return func(rows *sql.Rows) error {
		var groups []core.Group
		err := groupsInto(&groups)(rows)
		if len(groups) > 0 {
			t.NoteGroups(groups)
		}
		return err
	}
}

// NoteGroups implements core.Grouper.
func (t *tx) NoteGroups(groups []core.Group) {
	if t.o.NoNotes {
		return
	}
	chunks(groupRows(groups), func(_ int, rows []groupRow) { t.add(t.s.sql.noteGroups, nil, document(rows)) })
}

// NoteAllGroups implements core.Grouper.
func (t *tx) NoteAllGroups(queue string) { t.add(t.s.sql.noteAll, nil, queue, rand.Int64()) }

// LeaveGroups implements core.Grouper.
func (t *tx) LeaveGroups(ids []int64) {
	chunks(onlyRows(ids), func(_ int, rows []onlyRow) { t.add(t.s.sql.leaveGroups, nil, document(rows)) })
}

type stripeRow struct {
	Queue  string `json:"queue"`
	Stripe int32  `json:"stripe"`
}

// LockGroups implements core.Grouper.
func (t *tx) LockGroups(ctx context.Context, groups []core.Group, how core.StripeLock) (locked []core.Group, err error) {
	queues, stripes := core.StripesOf(groups)
	rows := make([]stripeRow, len(queues))
	for i, queue := range queues {
		rows[i] = stripeRow{queue, stripes[i]}
	}
	if how == core.LockWait {
		chunks(rows, func(_ int, rows []stripeRow) { t.add(t.s.sql.lockStripes, nil, document(rows)) })
		return groups, nil
	}
	var has core.StripeSet
	chunks(rows, func(_ int, rows []stripeRow) {
		t.add(t.s.sql.lockFreeStripes, []reader{each(func(rows *sql.Rows) error {
			var queue string
			var stripe int32
			err := rows.Scan(&queue, &stripe)
			has.Add(queue, stripe)
			return err
		})}, document(rows))
	})
	err = t.send(ctx)
	return has.Groups(groups), err
}

// slotChange is a change of a job's slot: see change_slots.
type slotChange struct {
	N    int   `json:"n"`
	ID   int64 `json:"id"`
	Kind int   `json:"kind"`
}

const (
	leavesSlot = iota + 1
	losesSlot
	getsSlot
	getsSlotLast
	isNoticed
)

// member is a job that the transaction has locked.
type member struct {
	state backends.State
	group string
}

// Admit implements core.Grouper. After the lock it reads without locks: until the commit other transactions can only free slots. Then it
// locks the rows to change, except those that others have locked, and leaves alone those that others have changed.
func (t *tx) Admit(ctx context.Context, groups []core.Group, limit int, admitted func(queue string, urgency int32, position, returns int64)) (changed int, again []core.Group, err error) {
	all, arrived, err := t.readGroups(ctx, groups, limit)
	if err != nil {
		return 0, nil, err
	}
	wanted := slices.Clone(arrived)
	for i := range all {
		wanted = append(wanted, all[i].Candidates()...)
	}
	if len(wanted) == 0 {
		return 0, nil, nil
	}
	locked, err := t.lockMembers(ctx, wanted)
	if err != nil {
		return 0, nil, err
	}
	var changes []slotChange
	change := func(kind int, ids ...int64) {
		for _, id := range ids {
			changes = append(changes, slotChange{len(changes) % maxRows, id, kind})
		}
	}
	kept := map[string][]core.Member{} // those that keep their positions, by queue
	var last core.Ranked               // those that get new ones
	got := map[int64]bool{}
	for i := range all {
		a := &all[i]
		late, down, up, more := a.Decide(func(id int64, state backends.State) bool { return locked[id] == member{state, a.Name} })
		change(leavesSlot, late...)
		change(losesSlot, down...)
		if more {
			again = append(again, a.Group)
		}
		changed += len(late) + len(down) + len(up)
		for _, m := range up {
			got[m.ID] = true
			if a.Limits.GroupReady > 0 {
				admitted(a.Queue, m.Urgency, m.Position, 0)
			} else {
				kept[a.Queue] = append(kept[a.Queue], m)
				change(getsSlot, m.ID)
			}
		}
		if a.Limits.GroupReady > 0 {
			last.Add(up)
		}
	}
	for _, id := range arrived {
		if locked[id].state == backends.StateBlocked && !got[id] {
			change(isNoticed, id)
		}
	}
	for _, m := range last.Order() {
		change(getsSlotLast, m.ID)
	}
	return changed, again, t.changeSlots(ctx, changes, kept, admitted)
}

// changeSlots writes what Admit has decided. Positions follow the order of the list.
func (t *tx) changeSlots(ctx context.Context, changes []slotChange, kept map[string][]core.Member, admitted func(queue string, urgency int32, position, returns int64)) error {
	var done int64
	chunks(changes, func(_ int, rows []slotChange) { t.add(t.s.sql.changeSlots, []reader{total(&done)}, document(rows)) })
	var queues []string
	for queue := range kept {
		queues = append(queues, queue)
	}
	if slices.Sort(queues); len(queues) > 0 {
		t.add(t.s.sql.countReturns, []reader{each(func(rows *sql.Rows) error {
			var n int
			var returns int64
			if err := rows.Scan(&n, &returns); err != nil {
				return err
			}
			queue, err := item(queues, n)
			for _, m := range kept[queue] {
				admitted(queue, m.Urgency, m.Position, returns)
			}
			return err
		})}, listOf(queues))
	}
	if err := t.send(ctx); err != nil {
		return err
	}
	if done < int64(len(changes)) {
		return backends.Refused(core.ErrSilent)
	}
	return nil
}

// readGroups reads the slots and the members of groups, and deletes notes of the groups. arrived are at most limit jobs that no
// sidecar has noticed.
func (t *tx) readGroups(ctx context.Context, groups []core.Group, limit int) (all []core.Admission, arrived []int64, err error) {
	all = make([]core.Admission, len(groups))
	for i, g := range groups {
		all[i].Group = g
	}
	counts := make([]int, len(groups))
	of := func(n int) (*core.Admission, error) {
		if n < 0 || n >= len(all) {
			return nil, noItem(n, len(all))
		}
		return &all[n], nil
	}
	err = t.run(ctx, t.s.sql.readGroups, []reader{
		each(func(rows *sql.Rows) error {
			var n, claimed int
			var l backends.Limits
			if err := rows.Scan(&n, &l.GroupLimit, &l.GroupReady, &claimed); err != nil {
				return err
			}
			a, err := of(n)
			if err == nil {
				a.Limits, a.Claimed = l, claimed
			}
			return err
		}),
		each(func(rows *sql.Rows) error {
			var n int
			var state backends.State
			var m core.Member
			if err := scanMember(rows, &m, &n, (*string)(&state)); err != nil {
				return err
			}
			a, err := of(n)
			switch {
			case err != nil:
			case state == backends.StateScheduled:
				a.Delayed = append(a.Delayed, m)
			default:
				a.Members = append(a.Members, m)
			}
			return err
		}),
		each(func(rows *sql.Rows) error {
			var n int
			m := core.Member{Blocked: true}
			if err := scanMember(rows, &m, &n); err != nil {
				return err
			}
			a, err := of(n)
			if err == nil {
				a.Members = append(a.Members, m)
				counts[n]++
				a.Full = counts[n] == limit
			}
			return err
		}),
		idsInto(&arrived),
	}, document(groupRows(groups)), int64(limit))
	for i := range all {
		all[i].Sort()
	}
	return all, arrived, err
}

// scanMember reads a job after other columns.
func scanMember(rows *sql.Rows, m *core.Member, before ...any) error {
	var priority int16
	err := rows.Scan(append(before, &m.ID, &priority, &m.Position)...)
	m.Urgency = -int32(priority)
	return err
}

// lockMembers locks those of the jobs that no other transaction has locked.
func (t *tx) lockMembers(ctx context.Context, ids []int64) (map[int64]member, error) {
	locked := map[int64]member{}
	slices.Sort(ids)
	chunks(onlyRows(slices.Compact(ids)), func(_ int, rows []onlyRow) {
		t.add(t.s.sql.lockMembers, []reader{each(func(rows *sql.Rows) error {
			var id int64
			var m member
			err := rows.Scan(&id, (*string)(&m.state), &m.group)
			m.group = givenGroup(m.group)
			locked[id] = m
			return err
		})}, document(rows))
	})
	err := t.send(ctx)
	return locked, err
}

// GroupSlots implements core.GroupFinder.
func (q inspection) GroupSlots(ctx context.Context, g core.Group, limit int) (all []backends.JobState, err error) {
	err = q.once(ctx, call{q.sql.groupSlots, []any{g.Queue, storedGroup(g.Name), int64(limit)}, []reader{each(func(rows *sql.Rows) error {
		var id int64
		var state string
		err := rows.Scan(&id, &state)
		all = append(all, backends.JobState{ID: core.ID(id), State: backends.State(state)})
		return err
	})}})
	return all, err
}

// FindGroups implements core.GroupFinder.
func (q inspection) FindGroups(ctx context.Context, searches core.GroupSearches) (found core.FoundGroups, err error) {
	var args []any
	for _, s := range searches {
		args = append(args, s.After.Queue, storedGroup(s.After.Name), int64(s.Limit))
	}
	err = q.once(ctx, call{q.sql.findGroups, args, []reader{
		groupsInto(&found[core.NotedGroups]), groupsInto(&found[core.ArrivedGroups]), groupsInto(&found[core.AllGroups]),
	}})
	return found, err
}
