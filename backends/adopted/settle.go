package adopted

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// settling changes rows of adopted tables and of the table of leases: what is
// collected in it is carried out by flush, in one round trip.
type settling struct {
	s      *Store
	leases map[int64]*lease
	ends   []*ending
	saves  []*lease
	single bool     // each change is a statement of its own
	gone   []*lease // those that are removed
}

// ending is a change of a job's row. It matches the row only while that shows our
// claim.
type ending struct {
	l         *lease
	lease     backends.Lease
	write     int // the write's number in the batch
	before    []*backends.Statement
	statement *backends.Statement
	frees     bool
	cause     backends.Cause
	fell      bool           // it ended without success,
	why       backends.Cause // for that reason,
	dead      bool           // and it is dead
	rows      int64          // a claim's: so many

	// What it has in common with others; see bulk. An empty change: nothing.
	t        *table
	change   string
	fixed    []any
	shown    map[Role]string
	together bool // it is made with the others of its bulk
}

// alike notes what the change has in common with others. It is called when w has all
// but the conditions.
func (e *ending) alike(w *writing, l *lease, change string) {
	e.t, e.change, e.fixed, e.shown = w.t, change, slices.Clone(w.args), l.shown
}

// load locks the leases of the ids.
func (x *settling) load(ctx context.Context, sql backends.SQL, ids []int64) error {
	x.leases = make(map[int64]*lease, len(ids))
	if len(ids) == 0 {
		return nil
	}
	g := x.s.g
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = fmt.Sprint(id)
	}
	return sql.Do(ctx, x.query(recall(g, g.AnyOf(1, idColumn), "id", false), texts))
}

var idColumn = backends.Column{Name: "id", Type: "bigint", Kind: backends.NumberColumn}

// query reads leases.
func (x *settling) query(text string, args ...any) *backends.Statement {
	return &backends.Statement{Text: text, Args: args, Row: func(cells [][]byte) error {
		l, err := readLease(cells)
		if err == nil {
			x.leases[l.id] = l
		}
		return err
	}}
}

// valid finds the claim that a lease proves.
func (x *settling) valid(l backends.Lease, owner backends.Identity) *lease {
	id, ok := handled(l.Job)
	row := x.leases[id]
	if !ok || row == nil || row.host == 0 || row.host != int64(l.Token.Host) || row.number != int64(l.Token.Number) ||
		owner != 0 && row.owner != int64(owner) {
		return nil
	}
	return row
}

// flush carries out what was collected. What then has Matched 0 was not ours any
// more: nothing is remembered of it.
func (x *settling) flush(ctx context.Context, sql backends.SQL) error {
	var all []*backends.Statement
	bulks := x.bulks()
	for _, e := range x.ends {
		if !e.together {
			all = append(append(all, e.before...), e.statement)
		}
	}
	made := make([]*backends.Statement, len(bulks))
	for i, b := range bulks {
		made[i] = b.statement()
	}
	all = append(all, made...)
	saves, err := save(x.s.g, x.saves)
	if err != nil {
		return err
	}
	all = append(all, saves...)
	if len(x.gone) > 0 {
		ids := make([]string, len(x.gone))
		for i, l := range x.gone {
			ids[i] = fmt.Sprint(l.id)
		}
		all = append(all, &backends.Statement{Text: "DELETE FROM " + x.s.g.SidecarTable(leasesTable) + " WHERE " + x.s.g.AnyOf(1, idColumn), Args: []any{ids}})
	}
	if len(all) == 0 {
		return nil
	}
	if err := sql.Do(ctx, all...); err != nil {
		return err
	}
	for i, b := range bulks {
		if err := b.done(made[i]); err != nil {
			return err
		}
	}
	all = nil
	for _, e := range x.ends {
		if e.statement.Matched == 0 {
			all = append(all, e.l.remove(x.s.g))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return sql.Do(ctx, all...)
}

// claims has the rows show the claims.
func (x *settling) claims(t *table, leases []*lease) {
	x.saves = append(x.saves, leases...)
	for some := range slices.Chunk(leases, min(together, t.most())) {
		items := make([]string, len(some))
		for i, l := range some {
			items[i] = l.item
		}
		w := &writing{t: t}
		w.state(backends.StateClaimed)
		for _, role := range t.showing() {
			w.set(t.one[role], w.each(role, some))
		}
		if c, has := t.one[Attempts]; has && t.Deliveries {
			w.set(c, "coalesce("+t.g.Name(c.Name)+", 0) + 1")
		}
		where := append([]string{w.among(items)}, t.waits()...)
		x.ends = append(x.ends, &ending{l: some[0], rows: int64(len(some)), statement: w.update(strings.Join(where, " AND "))})
	}
}

// ack ends a job that is done.
func (x *settling) ack(t *table, l *lease, result []byte) (*ending, error) {
	w := &writing{t: t}
	e := &ending{l: l}
	c, has := t.one[Result]
	if len(result) > 0 && !has {
		return nil, t.unsupported(Result, noResult)
	}
	if err := tooLong(c, string(result)); err != nil {
		return nil, err
	}
	switch t.OnAck {
	case Delete, Archive:
		if t.OnAck == Archive {
			e.before = []*backends.Statement{t.locks(l), t.moves(l, result)}
		}
		change := "DELETE FROM " + t.name
		if t.OnAck == Delete {
			e.alike(w, l, change)
		}
		where := w.row(l.item, w.ours(l))
		e.statement = &backends.Statement{Text: change + " WHERE " + where, Args: w.args}
	default:
		w.state(backends.StateDone)
		if c, has := t.one[FinishedAt]; has {
			w.set(c, t.clock(c))
		}
		if has && result != nil {
			w.set(c, w.exactly(c, string(result)))
		}
		if c, has := t.one[Error]; has && c.Nullable && len(l.failures) > 0 {
			w.set(c, "NULL") // what earlier tries wrote there
		}
		e.alike(w, l, w.change())
		where := w.row(l.item, w.ours(l))
		e.statement = w.update(where)
	}
	l.unclaimed()
	x.ends, x.gone = append(x.ends, e), append(x.gone, l)
	return e, nil
}

// locks locks the row while it shows the claim: what is moved is what is deleted.
func (t *table) locks(l *lease) *backends.Statement {
	w := &writing{t: t}
	where := w.row(l.item, w.ours(l))
	return &backends.Statement{Text: t.g.SelectLocked(outputs(t.g.ToText("1")), t.name, where, "", 0, false), Args: w.args}
}

// moves puts the row into the archive, as one that is done.
func (t *table) moves(l *lease, result []byte) *backends.Statement {
	w := &writing{t: t}
	values := make([]string, len(t.archive))
	for i, name := range t.archive {
		values[i] = t.g.Name(name)
		switch v, done := t.States[backends.StateDone]; name {
		case t.one[State].Name:
			if done {
				values[i] = t.constant(name, v)
			}
		case t.one[FinishedAt].Name:
			values[i] = t.clock(t.one[FinishedAt])
		case t.one[Result].Name:
			if result != nil {
				values[i] = w.exactly(t.one[Result], string(result))
			}
		}
	}
	names := make([]string, len(t.archive))
	for i, name := range t.archive {
		names[i] = t.g.Name(name)
	}
	for _, c := range t.archStamps {
		names, values = append(names, t.g.Name(c.Name)), append(values, t.clock(c))
	}
	where := w.row(l.item, w.ours(l))
	return &backends.Statement{
		Text: "INSERT INTO " + t.archTo + " (" + strings.Join(names, ", ") + ") SELECT " + strings.Join(values, ", ") + " FROM " + t.name + " WHERE " + where,
		Args: w.args,
	}
}

// end ends a claim without success, because of why. where are the conditions for its row; nil: that
// it shows the claim.
func (x *settling) end(t *table, l *lease, f backends.Disposition, why backends.Cause, where []string) (*ending, error) {
	w := &writing{t: t}
	e := &ending{l: l, frees: f.State == backends.StateReady, cause: f.Cause, fell: true, why: why, dead: f.State == backends.StateDead}
	buried := f.State == backends.StateDead && w.state(backends.StateDead)
	if !buried {
		w.state(backends.StateReady)
		w.unclaimed()
	} else if c, has := t.one[FinishedAt]; has {
		w.set(c, t.clock(c))
	}
	if c, has := t.one[FailedAt]; has && f.State == backends.StateDead {
		w.set(c, t.clock(c))
		buried = true
	}
	l.notBefore = 0
	c, counts := t.one[Attempts]
	grown := f.Attempts - l.attempts // the column's, by this end
	if !t.Deliveries {
		grown++
	}
	switch {
	case counts && f.State == backends.StateDead && !buried:
		w.set(c, fmt.Sprint(max(l.limit, f.Attempts)))
	case counts && grown != 0:
		w.set(c, fmt.Sprintf("coalesce(%s, 0) + %d", t.g.Name(c.Name), grown))
	case f.State == backends.StateDead && !buried:
		l.notBefore = never
	}
	if f.State == backends.StateScheduled {
		if c, has := t.one[RunAt]; has {
			w.args = append(w.args, batch.MS(f.Delay))
			w.set(c, t.later(c, len(w.args)))
		} else {
			l.notBefore = l.now + batch.MS(f.Delay)
		}
	}
	if f.Cause != "" {
		message := f.Message
		if message == "" {
			message = string(f.Cause)
		}
		// That a worker or a sidecar was lost is the owner's concern only if it was the last try.
		if f.Cause == backends.CauseNacked || f.State == backends.StateDead {
			if err := w.text(Error, message); err != nil {
				return nil, err
			}
		}
		l.failed(failure{Attempt: f.Attempts, Cause: f.Cause, Message: f.Message, At: l.now})
	}
	if where == nil {
		e.alike(w, l, w.change())
		where = w.ours(l)
	}
	e.statement = w.update(w.row(l.item, where))
	l.attempts, l.losses = f.Attempts, f.Losses
	l.unclaimed()
	x.ends, x.saves = append(x.ends, e), append(x.saves, l)
	return e, nil
}

// extend renews a claim.
func (x *settling) extend(t *table, l *lease, e backends.Extend) *ending {
	w := &writing{t: t}
	end := &ending{l: l}
	c, has := t.one[Worker]
	ours := w.ours(l)
	if text := workerText(c, e.Worker); has && e.Bind != 0 && l.shown[Worker] != text {
		w.set(c, w.value(c, text))
		end.statement = w.update(w.row(l.item, ours))
		l.shown[Worker] = text
	} else {
		where := w.row(l.item, ours)
		end.statement = &backends.Statement{Text: "SELECT " + outputs(t.g.ToText("1")) + " FROM " + t.name + " WHERE " + where, Args: w.args}
	}
	switch {
	case e.Bind != 0:
		l.leaseMS, l.owner, l.worker = 0, int64(e.Bind), e.Worker
	case e.Lease > 0:
		l.leaseMS = batch.MS(e.Lease)
	}
	l.dueAt = l.due(l.now)
	x.ends, x.saves = append(x.ends, end), append(x.saves, l)
	return end
}
