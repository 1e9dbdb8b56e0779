package adopted

import (
	"context"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// bite is how many rows one commit of a command changes.
const bite = 1000

// Command implements backends.Inspector. A queue is paused for sidecars: the
// table's own consumers go on. What they have claimed no command touches.
func (s *Store) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	t := s.tables[c.Queue]
	if t == nil || c.Kind == backends.Pause || c.Kind == backends.Resume {
		return s.Adopter.Command(ctx, c)
	}
	var run func(ctx context.Context, sql backends.SQL) (int64, error)
	switch c.Kind {
	case backends.ForceRelease:
		run = func(ctx context.Context, sql backends.SQL) (int64, error) { return s.takeBack(ctx, sql, t, c.IDs) }
	case backends.Retry:
		run = t.each(t.in(backends.StateDead), c.IDs, func(items []string) *backends.Statement {
			w := &writing{t: t, args: []any{items}}
			w.state(backends.StateReady)
			w.unclaimed()
			if col, has := t.one[Attempts]; has {
				w.set(col, "0")
			}
			return w.update(t.g.Among(1, t.id))
		})
	case backends.Purge:
		run = t.each(t.in(c.State), nil, t.deletes)
	default:
		var any []string
		for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead} {
			if where := t.in(state); where != nil {
				any = append(any, "("+strings.Join(where, " AND ")+")")
			}
		}
		run = t.each([]string{"(" + strings.Join(any, " OR ") + ")"}, c.IDs, t.deletes)
	}
	for {
		var n int64
		if _, err = s.CommitWith(ctx, backends.Batch{}, backends.Also{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) (err error) {
			n, err = run(ctx, sql)
			return err
		}}); err != nil {
			return count, freed, err
		}
		count += n
		freed = freed || n > 0 && (c.Kind == backends.Retry || c.Kind == backends.ForceRelease)
		if n < bite || len(c.IDs) > 0 {
			return count, freed, nil
		}
	}
}

func (t *table) deletes(items []string) *backends.Statement {
	return &backends.Statement{Text: "DELETE FROM " + t.name + " WHERE " + t.g.Among(1, t.id), Args: []any{items}}
}

// each changes rows that meet the conditions, of the ids or (none) of all, and
// forgets what is remembered of them. nil conditions: there are no such rows.
func (t *table) each(where, ids []string, change func(items []string) *backends.Statement) func(context.Context, backends.SQL) (int64, error) {
	if where == nil {
		return func(context.Context, backends.SQL) (int64, error) { return 0, nil }
	}
	g := t.g
	args := []any{int64(bite)}
	if ids != nil {
		where, args = append(where, g.Among(2, t.id)), append(args, ids)
	}
	return func(ctx context.Context, sql backends.SQL) (int64, error) {
		var items []string
		err := sql.Do(ctx, &backends.Statement{
			Text: g.Lock(outputs(g.ToText(g.Name(t.id.Name))), t.name, strings.Join(where, " AND "), g.Name(t.id.Name), 1, ids == nil), Args: args,
			Row: func(cells [][]byte) error { items = append(items, string(cells[0])); return nil },
		})
		if err != nil || len(items) == 0 {
			return 0, err
		}
		changed := change(items)
		err = sql.Do(ctx, changed, &backends.Statement{
			Text: "DELETE FROM " + g.Own(leasesTable) + " WHERE queue = " + g.Words(1) + " AND " + g.Among(2, itemColumn), Args: []any{t.queue, items},
		})
		return changed.Matched, err
	}
}

// takeBack ends claims of sidecars by force.
func (s *Store) takeBack(ctx context.Context, sql backends.SQL, t *table, ids []string) (count int64, err error) {
	x := &settling{s: s, leases: map[int64]*lease{}}
	if err := sql.Do(ctx, x.query(s.g.Lock(leaseColumns(s.g), s.g.Own(leasesTable)+" l", "l.queue = "+s.g.Words(1)+" AND l.token_host IS NOT NULL AND "+s.g.Among(2, itemColumn), "id", 0, false),
		t.queue, ids)); err != nil {
		return 0, err
	}
	for _, l := range x.leases {
		if _, err := x.end(t, l, l.standing().Released(backends.Release{Uncharged: true}), nil); err != nil {
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
