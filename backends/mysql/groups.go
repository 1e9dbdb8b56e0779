package mysql

import (
	"context"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// hasSlot reports whether the job has a slot of its group.
func hasSlot(j *job) bool { return j.Group != "" }

// noteSlots notes the groups of those jobs that have slots and that `which` accepts, and returns their ids in ascending order.
func (t *tx) noteSlots(all []*job, which func(j *job) bool) (ids []int64) {
	groups := map[core.Group]bool{}
	for _, j := range all {
		if hasSlot(j) && which(j) {
			ids, groups[core.Group{Queue: j.Queue, Name: j.Group}] = append(ids, j.ID), true
		}
	}
	slices.Sort(ids)
	t.NoteGroups(slices.Collect(maps.Keys(groups)))
	return ids
}

// NoteGroups implements core.Grouper.
func (t *tx) NoteGroups(groups []core.Group) {
	if t.o.NoNotes {
		return
	}
	notes := rowList{tx: t, head: t.s.sql.noteGroup}
	for _, g := range groups {
		t.wrote = true
		notes.add(1024, g.Queue, []byte(g.Name))
	}
}

// NoteAllGroups implements core.Grouper.
func (t *tx) NoteAllGroups(queue string) {
	t.wrote = true
	before, _ := table.BlockedIn(table.Noticed, queue)
	t.Add(t.s.sql.noteAll, queue, len(before)+1, table.Blocked(queue), queue)
}

// LeaveGroups implements core.Grouper.
func (t *tx) LeaveGroups(ids []int64) {
	t.wrote = true
	t.Add(t.s.sql.leaveGroups, session.IDs(ids))
	var skipped []int64
	t.Ints(&skipped, t.s.sql.skipped, session.IDs(ids))
	t.then = append(t.then, func() {
		if len(skipped) > 0 {
			t.Add(t.s.sql.waitAgain, nil, session.IDs(skipped))
		}
	})
}

// admission is what Admit has read about a group.
type admission struct {
	core.Admission
	entered []int64 // its jobs in qsidecar_admitted
}

// LockGroups implements core.Grouper. Servers of which several write find out with the COMMIT which stripes others have locked.
func (t *tx) LockGroups(ctx context.Context, groups []core.Group, how core.StripeLock) (locked []core.Group, err error) {
	if v := t.s.dialer.Server; how == core.LockSafe && (!v.SkipLocked || v.SeveralWriters()) {
		return nil, nil
	}
	t.wrote = true
	queues, stripes := core.StripesOf(groups)
	if how != core.LockWait {
		var has core.StripeSet
		args := make([]any, 0, 2*len(queues))
		for i, queue := range queues {
			args = append(args, queue, int64(stripes[i]))
		}
		t.Each(func(r *session.Result) { has.Add(r.Text(0), int32(r.Int(1))) }, t.s.sql.freeStripes, session.Part{SQL: repeated(t.s.sql.oneStripe, " OR ", len(queues)), Args: args})
		if err := t.Flush(ctx); err != nil {
			return nil, err
		}
		groups = has.Groups(groups)
		queues, stripes = core.StripesOf(groups)
	}
	for i, queue := range queues {
		t.Add(t.s.sql.lockStripe, queue, int64(stripes[i]))
	}
	return groups, nil
}

// Admit implements core.Grouper. After the lock it reads without locks: until the commit other transactions can only free slots. Then it
// locks the rows to change, except those that others have locked, and leaves alone those that others have changed.
func (t *tx) Admit(ctx context.Context, groups []core.Group, limit int, admitted func(queue string, urgency int32, position, returns int64)) (changed int, again []core.Group, err error) {
	all, notes, unnoticed, err := t.readGroups(ctx, groups, limit)
	if err != nil {
		return 0, nil, err
	}
	wanted := slices.Clone(unnoticed)
	for i := range all {
		wanted = append(wanted, all[i].Candidates()...)
	}
	locked := map[int64]*job{}
	slices.Sort(wanted)
	rows, err := t.lockRows(ctx, slices.Compact(wanted), t.s.sql.lockFree)
	if err != nil {
		return 0, nil, err
	}
	for _, j := range rows {
		locked[j.ID] = j
	}
	if len(notes) > 0 {
		t.Add(t.s.sql.deleteNotes, session.IDs(notes))
	}
	backs := map[string][]core.Member{}
	enter := rowList{tx: t, head: t.s.sql.enterAdmitted}
	var leave, block, admit []int64
	var last core.Ranked // those that get new positions
	for i := range all {
		a := &all[i]
		late, down, up, more := a.Decide(a.has(locked))
		leave = append(leave, late...)
		if block = append(block, down...); more {
			again = append(again, a.Group)
		}
		changed += len(late) + len(down) + len(up)
		fair := a.Limits.GroupReady > 0
		for _, m := range up {
			enter.add(1024, a.Queue, []byte(a.Name), m.ID)
			if fair {
				admitted(a.Queue, m.Urgency, m.Position, 0)
			} else {
				admit, backs[a.Queue] = append(admit, m.ID), append(backs[a.Queue], m)
			}
		}
		if fair {
			last.Add(up)
		}
	}
	fair := t.admitLast(last.Order())
	t.changeSlots(leave, block, admit, slices.DeleteFunc(unnoticed, func(id int64) bool {
		return locked[id] == nil || !locked[id].is(backends.StateBlocked) || slices.Contains(fair, id)
	}))
	t.countReturns(slices.Collect(maps.Keys(backs)), func(queue string, returns int64) {
		for _, m := range backs[queue] {
			admitted(queue, m.Urgency, m.Position, returns)
		}
	})
	return changed, again, nil
}

// admitLast admits blocked jobs, with new positions in the order of the list. It returns their ids.
func (t *tx) admitLast(all []core.Member) (ids []int64) {
	ranks := map[int64]int64{}
	for i, m := range all {
		ranks[m.ID] = int64(i)
	}
	if ids = slices.Sorted(maps.Keys(ranks)); len(ids) > 0 {
		values := make([]int64, len(ids))
		for i, id := range ids {
			values[i] = ranks[id]
		}
		t.Add(t.s.sql.admitLast, table.Among(ids, values), session.IDs(ids))
	}
	return ids
}

// changeSlots queues the UPDATEs of locked rows. It marks as noticed those that it does not admit.
func (t *tx) changeSlots(leave, block, admit, notice []int64) {
	slices.Sort(leave)
	slices.Sort(block)
	slices.Sort(admit)
	if notice = slices.DeleteFunc(notice, func(id int64) bool { _, is := slices.BinarySearch(admit, id); return is }); len(notice) > 0 {
		slices.Sort(notice)
		t.Add(t.s.sql.notice, session.IDs(notice))
	}
	if len(leave) > 0 {
		t.Add(t.s.sql.waitAgain, nil, session.IDs(leave))
	}
	if len(block) > 0 {
		t.Add(t.s.sql.waitAgain, 1, session.IDs(block))
	}
	if len(admit) > 0 {
		t.Add(t.s.sql.admit, session.IDs(admit))
	}
}

// has returns a function that reports whether a job of the group is among locked rows, and in a state.
func (a *admission) has(locked map[int64]*job) func(id int64, state backends.State) bool {
	return func(id int64, state backends.State) bool {
		j := locked[id]
		if j == nil || !j.is(state) {
			return false
		}
		if state == backends.StateBlocked {
			return j.group == a.Name
		}
		return j.Group == a.Name
	}
}

// anyGroup returns the condition that a row is of one of the groups.
func (t *tx) anyGroup(groups []core.Group) session.Part {
	var args []any
	for _, g := range groups {
		args = append(args, g.Queue, []byte(g.Name))
	}
	return session.Part{SQL: repeated(t.s.sql.oneGroup, " OR ", len(groups)), Args: args}
}

// readGroups reads the slots and the members of groups, and removes rows of qsidecar_admitted whose jobs have no slots any more. It also
// returns notes of the groups, and at most limit jobs that no sidecar has noticed.
func (t *tx) readGroups(ctx context.Context, groups []core.Group, limit int) (all []admission, notes, unnoticed []int64, err error) {
	all = make([]admission, len(groups))
	of := map[core.Group]*admission{}
	limits := map[string]backends.Limits{}
	var entered []int64
	for i, g := range groups {
		all[i].Group, of[g], limits[g.Queue] = g, &all[i], backends.Limits{}
	}
	t.Ints(&notes, t.s.sql.notesOf, t.anyGroup(groups), limit)
	t.Each(func(r *session.Result) {
		limits[r.Text(0)] = backends.Limits{GroupLimit: r.Int(1), GroupReady: r.Int(2)}
	}, t.s.sql.groupLimits, session.Texts(slices.Collect(maps.Keys(limits))))
	t.Each(func(r *session.Result) {
		a := of[core.Group{Queue: r.Text(0), Name: r.Text(1)}]
		a.entered, entered = append(a.entered, r.Int(2)), append(entered, r.Int(2))
	}, t.s.sql.admittedOf, t.anyGroup(groups))
	if err := t.Flush(ctx); err != nil {
		return nil, nil, nil, err
	}
	for i := range all {
		all[i].Limits = limits[all[i].Queue]
	}
	found := map[int64]bool{}
	for part := range slices.Chunk(entered, core.BatchRows) {
		t.Each(func(r *session.Result) {
			a := of[core.Group{Queue: r.Text(1), Name: r.Text(2)}]
			if a == nil {
				return
			}
			found[r.Int(0)] = true
			m := core.Member{ID: r.Int(0), Urgency: int32(r.Int(4)), Position: r.Int(5)}
			switch backends.State(r.Text(3)) {
			case backends.StateReady:
				a.Members = append(a.Members, m)
			case backends.StateScheduled:
				a.Delayed = append(a.Delayed, m)
			default:
				a.Claimed++
			}
		}, t.s.sql.admittedRows, session.IDs(part))
	}
	t.readBlocked(all, limit, &unnoticed)
	if err := t.Flush(ctx); err != nil {
		return nil, nil, nil, err
	}
	for i := range all {
		a := &all[i]
		a.Sort()
		if gone := slices.DeleteFunc(a.entered, func(id int64) bool { return found[id] }); len(gone) > 0 {
			t.Add(t.s.sql.leaveAdmitted, a.Queue, []byte(a.Name), session.IDs(gone))
		}
	}
	return all, notes, unnoticed, nil
}

// readBlocked queues one statement for the first blocked jobs of each group. It reads both kinds with one snapshot: a job that is
// marked as noticed because of it is also among the members.
func (t *tx) readBlocked(all []admission, limit int, unnoticed *[]int64) {
	counts := map[int64]int{}
	read := func(r *session.Result) {
		n := r.Int(0)
		a, most := &all[n/2], int(min(all[n/2].Limits.GroupPlaces(0), int64(limit)))
		if n%2 == 0 && len(*unnoticed) < limit {
			*unnoticed = append(*unnoticed, r.Int(1))
		}
		if counts[n]++; counts[n] <= most {
			a.Members = append(a.Members, core.Member{ID: r.Int(1), Urgency: int32(r.Int(2)), Position: r.Int(3), Blocked: true})
			a.Full = a.Full || counts[n] == limit
		}
	}
	for i := range all {
		segment := table.GroupSegment(all[i].Queue, all[i].Name)
		if i == 0 {
			t.Each(read, t.s.sql.firstBlocked, 0, table.Unnoticed+segment, limit)
		} else {
			t.Text("\nUNION ALL ")
			t.Text(t.s.sql.firstBlocked, 2*i, table.Unnoticed+segment, limit)
		}
		t.Text("\nUNION ALL ")
		t.Text(t.s.sql.firstBlocked, 2*i+1, table.Noticed+segment, min(all[i].Limits.GroupPlaces(0), int64(limit)))
	}
}

// GroupSlots implements core.GroupFinder.
func (t *tx) GroupSlots(ctx context.Context, g core.Group, limit int) (all []backends.JobState, err error) {
	t.Each(func(r *session.Result) {
		all = append(all, backends.JobState{ID: core.ID(r.Int(0)), State: backends.State(r.Text(1))})
	}, t.s.sql.groupSlots, g.Queue, []byte(g.Name), limit)
	return all, t.Flush(ctx)
}

// FindGroups implements core.GroupFinder.
func (t *tx) FindGroups(ctx context.Context, searches core.GroupSearches) (found core.FoundGroups, err error) {
	blocked := func(letter, before string) func(*groupScan) {
		return func(s *groupScan) {
			from := letter
			if s.After.Queue != "" {
				from += table.GroupSegment(s.After.Queue, s.After.Name)
			}
			t.Each(func(r *session.Result) { s.add(table.GroupOf(r.Text(0)), r.Int(1)) }, t.s.sql.findBlocked, from, before, s.most())
		}
	}
	rows := func(sql string) func(*groupScan) {
		return func(s *groupScan) {
			t.Each(func(r *session.Result) { s.add(core.Group{Queue: r.Text(0), Name: r.Text(1)}, r.Int(2)) }, sql, s.After.Queue, s.After.Queue, []byte(s.After.Name), s.most())
		}
	}
	scans := []*groupScan{
		{source: core.NotedGroups, next: rows(t.s.sql.findNotes)},
		{source: core.ArrivedGroups, next: blocked(table.Unnoticed, table.Noticed)},
		{source: core.AllGroups, next: blocked(table.Noticed, table.AfterBlocked)},
		{source: core.AllGroups, next: rows(t.s.sql.findAdmitted)},
	}
	for _, s := range scans {
		s.GroupSearch = searches[s.source]
	}
	for going := slices.Clone(scans); len(going) > 0; going = slices.DeleteFunc(going, (*groupScan).ended) {
		for _, s := range going {
			s.rows = 0
			s.next(s)
		}
		if err := t.Flush(ctx); err != nil {
			return found, err
		}
	}
	t.s.cleaner.notes.Store(false)
	for _, s := range scans {
		some := slices.Concat(found[s.source], s.groups)
		slices.SortFunc(some, core.CompareGroups)
		some = slices.Compact(some)
		found[s.source] = some[:min(len(some), s.Limit)]
	}
	return found, nil
}

// groupScan is a search that reads some entries of an index at a time. The next part skips the other entries of the last group.
type groupScan struct {
	core.GroupSearch // after the groups that it found
	source           core.GroupSource
	next             func(*groupScan) // reads a part
	groups           []core.Group
	rows             int64 // of the last part
}

// most returns how many entries a part has.
func (g *groupScan) most() int { return min(20*g.Limit, 500) }

// add adds a group of a part that has some entries.
func (g *groupScan) add(group core.Group, rows int64) {
	g.groups, g.After, g.rows = append(g.groups, group), group, g.rows+rows
}

func (g *groupScan) ended() bool { return len(g.groups) >= g.Limit || g.rows < int64(g.most()) }
