package adopted

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// aged are rows that may be deleted when they have been finished for long enough: its
// owner asked for it.
type aged struct {
	t     *table // where they are: the queue's, or its archive
	state backends.State
	when  backends.Column // since when
	keep  time.Duration
}

// ages finds what Keep and KeepDead ask for in the table itself.
func (t *table) ages(p *problems) {
	if t.Keep > 0 && t.OnAck != Archive {
		t.age(p, "keep", backends.StateDone, t.Keep)
	}
	if t.KeepDead > 0 {
		t.age(p, "keep_dead", backends.StateDead, t.KeepDead)
	}
}

func (t *table) age(p *problems, key string, state backends.State, keep time.Duration) {
	when, has := t.one[FinishedAt]
	if c, failed := t.one[FailedAt]; failed && state == backends.StateDead {
		when, has = c, true
	}
	if !has {
		p.add(key, "columns.finished_at is missing: nothing says since when a row is %s", state)
	}
	if t.shows(state) == nil {
		p.add(key, "states.%s is missing: nothing says which rows are %s", state, state)
	}
	t.mayDelete(p, key)
	t.aged = append(t.aged, aged{t, state, when, keep})
}

// agesThere finds what Keep asks for in the archive.
func (t *table) agesThere(p *problems, to backends.TableInfo) {
	if t.Keep <= 0 {
		return
	}
	a := &table{Table: t.Table, queue: t.queue, g: t.g, info: to, name: t.archTo}
	for i, name := range append(slices.Clone(t.Columns[ID]), slices.Sorted(maps.Keys(t.Where))...) {
		c, has := to.Column(name)
		if !has {
			p.add("keep", "the table %s has no column %s, by which a row of this queue is found: add it there, or leave keep out", to.Name, name)
			continue
		}
		if i < len(t.Columns[ID]) {
			a.key = append(a.key, c)
		}
	}
	when, has := to.Column(t.one[FinishedAt].Name)
	if !has && len(t.archStamps) > 0 {
		when, has = t.archStamps[0], true
	}
	if why, _ := a.unfitTime(when); !has || why != "" {
		p.add("keep", "nothing says since when a row is in %s: that takes the column in the role finished_at, in both tables", to.Name)
	}
	a.mayDelete(p, "keep")
	t.aged = append(t.aged, aged{a, "", when, t.Keep})
}

// mayDelete: the login may find rows and delete them.
func (t *table) mayDelete(p *problems, key string) {
	lacking := slices.DeleteFunc([]string{"SELECT", "DELETE"}, func(right string) bool { return !slices.Contains(t.info.Denied, right) })
	if all := strings.Join(lacking, ", "); all != "" {
		p.wrong(key, fmt.Sprintf("GRANT %s ON %s", all, t.name), "this login lacks %s on the table %s", all, t.info.Name)
	}
}

// over are the conditions of a row whose time is over; argument n is the age, below 0.
func (a aged) over(n int) string {
	all := append(a.t.inQueue(), a.t.shows(a.state)...)
	all = append(all, a.t.passed(a.when, n))
	return strings.Join(all, " AND ")
}

// prune deletes a bite of what has been finished for long enough, of each queue whose
// owner said for how long it is to be kept.
func (s *Store) prune(ctx context.Context, r *backends.MaintenanceResult, limit int) error {
	for _, q := range s.queues() {
		for _, a := range s.tables[q].aged {
			if err := s.bite(ctx, r, a, limit); err != nil {
				return err
			}
		}
	}
	return nil
}

// bite looks first, without a lock: to look may take long, where no index serves it.
func (s *Store) bite(ctx context.Context, r *backends.MaintenanceResult, a aged, limit int) error {
	began := time.Now()
	var items []string
	if err := s.Query(ctx, &backends.Statement{
		Text: s.g.SelectFirst(outputs(a.t.keyTexts()...), a.t.name, a.over(1), "", s.g.IntArg(2)), Args: []any{a.age(), int64(limit)},
		Row: func(cells [][]byte) error { items = append(items, a.t.item(cells)); return nil },
	}); err != nil || len(items) == 0 {
		return a.passed(r, err)
	}
	found := len(items)
	gone, err := s.deleteOld(ctx, a, items)
	if backends.IsRefused(err) {
		// One of them is what others refer to, or what a trigger keeps: the rest may go.
		for i := 0; i < len(items) && a.passed(r, err) == nil; i++ {
			var n int
			n, err = s.deleteOld(ctx, a, items[i:i+1])
			gone += n
		}
		found = gone // what stays is not to be tried again and again at once
	}
	r.AddPruned(gone, found, limit, time.Since(began))
	return a.passed(r, err)
}

// deleteOld deletes the rows, as far as their time is still over.
func (s *Store) deleteOld(ctx context.Context, a aged, items []string) (gone int, err error) {
	deletes := a.t.amongst(items, func(w *writing, where string) *backends.Statement {
		w.args = append(w.args, a.age())
		return &backends.Statement{Text: "DELETE FROM " + a.t.name + " WHERE " + where + " AND " + a.over(len(w.args)), Args: w.args}
	})
	if _, err := s.CommitWith(ctx, backends.Batch{}, backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) error {
		return sql.Do(ctx, deletes...)
	}}); err != nil {
		return 0, err
	}
	for _, st := range deletes {
		gone += int(st.Matched)
	}
	return gone, nil
}

// age is the argument of over.
func (a aged) age() int64 { return -a.keep.Milliseconds() }

// passed leaves alone what is locked, for another time, and what the database will not
// have deleted: the sweep's other work must not wait for either.
func (a aged) passed(r *backends.MaintenanceResult, err error) error {
	var locked *backends.LockedError
	switch {
	case errors.As(err, &locked):
		return nil
	case backends.IsRefused(err):
		r.PruneRefused = fmt.Errorf("queues.%s.%s: %w: have them deleted with what refers to them (ON DELETE CASCADE), or leave %[2]s out", a.t.queue, a.key(), err)
		return nil
	}
	return err
}

// key is the config's.
func (a aged) key() string {
	if a.state == backends.StateDead {
		return "keep_dead"
	}
	return "keep"
}

// advise says where an index would spare reading the whole table. That for what is done
// is the one for what is dead, too.
func (a aged) advise(found *backends.Findings, advisor backends.Advisor) {
	var equal []backends.Condition
	for _, column := range slices.Sorted(maps.Keys(a.t.Where)) {
		equal = append(equal, backends.Condition{Column: column, SQL: a.t.is(column, a.t.Where[column])})
	}
	c, stated := a.t.one[State]
	if v, has := a.t.States[a.state]; has && stated {
		equal = append(equal, backends.Condition{Column: c.Name, SQL: a.t.is(c.Name, v)})
	}
	for _, x := range a.t.info.Indexes {
		first := slices.IndexFunc(x.Columns, func(c backends.IndexColumn) bool { return !slices.Contains(columnsOf(equal), c.Name) })
		if x.Only == "" && first >= 0 && x.Columns[first].Name == a.when.Name {
			return
		}
	}
	found.AddWarning("index", fmt.Sprintf("queues.%s.%s: no index of %s leads to the rows that have been finished for long: to look for them may read the whole table",
		a.t.queue, a.key(), a.t.name), advisor.CreateIndex("finished", a.t.info, equal, []backends.IndexColumn{{Name: a.when.Name}}))
}
