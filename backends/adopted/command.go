package adopted

import (
	"context"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// Command implements backends.Inspector. A queue is paused for sidecars: the
// table's own consumers go on. What they have claimed no command touches.
func (s *Store) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	t := s.tables[c.Queue]
	if t == nil || c.Kind == backends.Pause || c.Kind == backends.Resume {
		return s.Adopter.Command(ctx, c)
	}
	if t.Hold && c.Kind == backends.Reclaim {
		count = s.takeBackHeld(ctx, t, c.IDs)
		return count, count > 0, nil
	}
	var run func(ctx context.Context, sql backends.SQL) (int64, error)
	switch c.Kind {
	case backends.Reclaim:
		run = func(ctx context.Context, sql backends.SQL) (int64, error) { return s.takeBack(ctx, sql, t, c.IDs) }
	case backends.Retry:
		run = t.each(t.in(backends.StateDead), c.IDs, func(w *writing, these string) *backends.Statement {
			w.state(backends.StateReady)
			w.unclaimed()
			for _, role := range []Role{FinishedAt, FailedAt} {
				if col, has := t.one[role]; has && col.Nullable {
					w.set(col, "NULL")
				}
			}
			if col, has := t.one[Attempts]; has {
				w.set(col, "0")
			}
			return w.update(these)
		})
	case backends.Purge:
		run = t.each(t.in(c.State), nil, t.deletes)
	default:
		var either []string
		for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead} {
			if where := t.in(state); where != nil {
				either = append(either, "("+strings.Join(where, " AND ")+")")
			}
		}
		run = t.each([]string{"(" + strings.Join(either, " OR ") + ")"}, c.IDs, t.deletes)
	}
	for {
		var n int64
		frees := func() bool { return n > 0 && (c.Kind == backends.Retry || c.Kind == backends.Reclaim) }
		if _, err = s.CommitWith(ctx, backends.Batch{}, backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) (err error) {
			n, err = run(ctx, sql)
			return err
		}, Freed: func() []string {
			if !frees() {
				return nil
			}
			return []string{c.Queue}
		}}); err != nil {
			return count, freed, err
		}
		count += n
		c.Progressed()
		freed = freed || frees()
		if n < int64(t.most()) || len(c.IDs) > 0 {
			return count, freed, nil
		}
	}
}

func (t *table) deletes(w *writing, these string) *backends.Statement {
	return &backends.Statement{Text: "DELETE FROM " + t.name + " WHERE " + these, Args: w.args}
}

// each changes rows that meet the conditions, of the ids or (none) of all, and
// forgets what is remembered of them. nil conditions: there are no such rows.
func (t *table) each(where, ids []string, change func(w *writing, these string) *backends.Statement) func(context.Context, backends.SQL) (int64, error) {
	if where == nil {
		return func(context.Context, backends.SQL) (int64, error) { return 0, nil }
	}
	g := t.g
	return func(ctx context.Context, sql backends.SQL) (int64, error) {
		var items []string
		named := t.named(ids)
		find := func(w *writing, limit int, more ...string) *backends.Statement {
			w.args = append(w.args, int64(limit))
			return &backends.Statement{
				Text: g.SelectLocked(outputs(t.keyTexts()...), t.name, strings.Join(append(slices.Clone(where), more...), " AND "), t.keyNames(), len(w.args), ids == nil || t.Hold), Args: w.args,
				Row: func(cells [][]byte) error {
					if item := t.item(cells); named(item) {
						items = append(items, item)
					}
					return nil
				},
			}
		}
		finds := []*backends.Statement{find(&writing{t: t}, t.most())}
		if ids != nil {
			finds = t.amongst(ids, func(w *writing, these string) *backends.Statement { return find(w, len(ids), these) })
		}
		if err := sql.Do(ctx, finds...); err != nil || len(items) == 0 {
			return 0, err
		}
		changes := t.amongst(items, change)
		forget := &backends.Statement{
			Text: "DELETE FROM " + g.SidecarTable(leasesTable) + " WHERE queue = " + g.TextArg(1) + " AND " + g.AnyOf(2, itemColumn), Args: []any{t.queue, items},
		}
		if err := sql.Do(ctx, append(changes, forget)...); err != nil {
			return 0, err
		}
		return changed(changes), nil
	}
}

// changed is how many rows the statements matched.
func changed(all []*backends.Statement) (n int64) {
	for _, st := range all {
		n += st.Matched
	}
	return n
}

// takeBack ends claims of sidecars by force.
func (s *Store) takeBack(ctx context.Context, sql backends.SQL, t *table, ids []string) (count int64, err error) {
	x := &settling{s: s, leases: map[int64]*lease{}, single: true}
	if err := sql.Do(ctx, x.query(recall(s.g, "l.queue = "+s.g.TextArg(1)+" AND l.token_host IS NOT NULL AND "+s.g.AnyOf(2, itemColumn), "id", false),
		t.queue, ids)); err != nil {
		return 0, err
	}
	for _, l := range x.leases {
		if _, err := x.end(t, l, l.standing().AfterRelease(backends.Release{Uncounted: true}), "", nil); err != nil {
			return 0, err
		}
	}
	if err := x.flush(ctx, sql); err != nil {
		return 0, err
	}
	for _, e := range x.ends {
		count += e.statement.Matched
	}
	return count, nil
}
