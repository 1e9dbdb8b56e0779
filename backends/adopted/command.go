package adopted

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Command implements backends.Inspector. A pause stops claims of sidecars: the table's own
// consumers go on. No command touches what they have claimed.
func (s *Store) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	if !s.Adopted(c.Queue) || c.Kind == backends.Pause || c.Kind == backends.Resume {
		return s.Engine.Command(ctx, c)
	}
	defer func() {
		if isOfTable(err) && backends.LacksRight(err) { // it was revoked since the table was described
			s.describeOld(ctx, c.Queue)
			if why := s.queues()[c.Queue].CheckChange(&c); why != nil {
				err = why
			}
		}
		err = s.named(c.Queue, err)
	}()
	q := s.queues()[c.Queue]
	if q == nil {
		return 0, false, s.obstruction(c.Queue, backends.DoingClaim)
	}
	if c.Kind == backends.Limit { // its own consumers pass no gate, so that no limit would hold
		return 0, false, &backends.UnsupportedError{Queue: c.Queue, What: "limits", InTx: q.ClaimInTx}
	}
	if c.Kind == backends.Cancel {
		if err := s.checkCancel(ctx, q, &c); err != nil {
			return 0, false, err
		}
	}
	if q.ClaimInTx && c.Kind == backends.Reclaim {
		changed := s.reclaimInTx(ctx, q, c.IDs)
		return int64(len(changed)), len(changed) > 0, s.reportUnchanged(ctx, &c, changed)
	}
	if err := q.CheckChange(&c); err != nil {
		s.describeOld(ctx, c.Queue) // the right is possibly granted now
		if q = s.queues()[c.Queue]; q.CheckChange(&c) != nil {
			return 0, false, err
		}
	}
	run := s.command(q, c)
	var ended []backends.Token
	if c.Kind == backends.Cancel {
		run = s.cancel(q, c, &ended)
	}
	frees := c.Frees()
	var refused refusals
	for after := ""; ; {
		var n int64
		var found []string
		if err = s.transaction(ctx, func() []string {
			if n == 0 || !frees {
				return nil
			}
			return []string{c.Queue}
		}, func(ctx context.Context, sql backends.SQL) (err error) {
			n, found, err = run(ctx, sql, after)
			return err
		}); backends.IsRefused(err) {
			whole := len(c.IDs) > 0
			if whole {
				found = c.IDs
			}
			if len(found) == 0 {
				return count, freed, err
			}
			some, made, err := s.commandApart(ctx, c, found, err, &refused)
			count, freed, n = count+some, freed || made, 0
			if err != nil || whole || refused.full() {
				return count, freed, cmp.Or(err, refused.err())
			}
		} else if err != nil {
			return count, freed, err
		}
		count += n
		c.Progressed()
		freed = freed || n > 0 && frees
		if c.Ended != nil && len(ended) > 0 {
			c.Ended(ended)
		}
		if len(c.IDs) > 0 {
			return count, freed, s.reportUnchanged(ctx, &c, found)
		}
		if len(found) < q.MaxItems() || found[len(found)-1] == after {
			return count, freed, refused.err()
		}
		after = found[len(found)-1]
	}
}

// refusals are the jobs of a command that the database refuses to change.
type refusals struct {
	n     int
	first error
}

func (r *refusals) add(job string, err error) {
	if r.n++; r.first == nil {
		r.first = fmt.Errorf("job %s: %w", job, err)
	}
}

// full reports whether there are so many that a command of all jobs ends.
func (r *refusals) full() bool { return r.n >= core.MostRefused }

func (r *refusals) err() error { return core.FirstRefused(r.first, r.n) }

// commandApart carries out a command for the jobs, after the database refused it for all of them together with why. It finds the
// refused ones.
func (s *Store) commandApart(ctx context.Context, c backends.Command, items []string, why error, refused *refusals) (count int64, freed bool, _ error) {
	if len(items) == 1 {
		refused.add(items[0], why)
		return 0, false, nil
	}
	for _, half := range [][]string{items[:len(items)/2], items[len(items)/2:]} {
		c.IDs = half
		n, made, err := s.commandOnce(ctx, c)
		if count, freed = count+n, freed || made; backends.IsRefused(err) && !refused.full() {
			n, made, err = s.commandApart(ctx, c, half, err, refused)
			count, freed = count+n, freed || made
		}
		if err != nil {
			return count, freed, err
		}
	}
	return count, freed, nil
}

// commandOnce carries out a command for the jobs that it names, in one transaction.
func (s *Store) commandOnce(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	q := s.queues()[c.Queue]
	if q == nil {
		return 0, false, s.obstruction(c.Queue, backends.DoingClaim)
	}
	var ended []backends.Token
	var found []string
	run, frees := s.command(q, c), c.Frees()
	if c.Kind == backends.Cancel {
		run = s.cancel(q, c, &ended)
	}
	if err := s.transaction(ctx, func() []string {
		if count == 0 || !frees {
			return nil
		}
		return []string{c.Queue}
	}, func(ctx context.Context, sql backends.SQL) (err error) {
		count, found, err = run(ctx, sql, "")
		return err
	}); err != nil {
		return 0, false, err
	}
	c.Progressed()
	if c.Ended != nil && len(ended) > 0 {
		c.Ended(ended)
	}
	return count, count > 0 && frees, s.reportUnchanged(ctx, &c, found)
}

// batchFunc changes a batch of jobs and returns their number, and the ids of the rows that it found. Without ids, these
// are rows after a job's, in the order of their keys, so that a job that is dead again is not retried a second time. It also returns
// the rows if the database refuses to change one.
type batchFunc func(ctx context.Context, sql backends.SQL, after string) (n int64, found []string, err error)

func (s *Store) command(q *statement.Queue, c backends.Command) batchFunc {
	switch c.Kind {
	case backends.Reclaim:
		return func(ctx context.Context, sql backends.SQL, _ string) (n int64, items []string, err error) {
			items, err = s.reclaim(ctx, sql, q, c.IDs)
			return int64(len(items)), items, err
		}
	case backends.Retry:
		return s.retry(q, c.IDs)
	case backends.Purge:
		return changeRows(q, q.InState(c.State), c.IDs, q.Delete)
	case backends.Change:
		return s.changeWaiting(q, c)
	}
	var either []string
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead} {
		if where := q.InState(state); where != nil {
			either = append(either, "("+query.And(where...)+")")
		}
	}
	return changeRows(q, []string{"(" + strings.Join(either, " OR ") + ")"}, c.IDs, q.Delete)
}

// retry makes dead rows ready. Columns that the last claim overwrote get back what its lease has kept.
func (s *Store) retry(q *statement.Queue, ids []string) batchFunc {
	reset := changeRows(q, q.InState(backends.StateDead), ids, func(b *condition.Builder, where string) *backends.Statement { return q.Reset(b, where, true, nil) })
	if !q.Overwrites() {
		return reset
	}
	return func(ctx context.Context, sql backends.SQL, after string) (int64, []string, error) {
		items, err := lockItems(ctx, sql, q, q.InState(backends.StateDead), ids, after)
		if err != nil || len(items) == 0 {
			return 0, nil, err
		}
		kept := leases{}
		if err := sql.Do(ctx, kept.query(lease.SelectLocked(s.dialect, lease.ByItem, lease.OfJobs(s.dialect)+" AND l.claim_values IS NOT NULL", "id", false), q.Queue, items)); err != nil {
			return 0, nil, err
		}
		rest := slices.Clone(items)
		var all []*backends.Statement
		for _, l := range kept.sorted() {
			if i := slices.Index(rest, l.Item); i >= 0 {
				rest = slices.Delete(rest, i, i+1)
				b := &condition.Builder{Table: q.Table}
				all = append(all, q.Reset(b, b.Row(l.Item), true, l.Before))
			}
		}
		all = append(all, q.ForItems(rest, func(b *condition.Builder, where string) *backends.Statement { return q.Reset(b, where, true, nil) })...)
		if err := sql.Do(ctx, append(all, lease.DeleteOfJobs(q.Dialect, q.Queue, items))...); err != nil {
			return 0, items, err
		}
		return matched(all), items, nil
	}
}

// changeWaiting changes the priority or the time of rows that wait. Their leases stay, because these count attempts.
func (s *Store) changeWaiting(q *statement.Queue, c backends.Command) batchFunc {
	where := []string{"(" + query.And(q.InState(backends.StateReady)...) + " OR " + query.And(q.InState(backends.StateScheduled)...) + ")"}
	return func(ctx context.Context, sql backends.SQL, after string) (int64, []string, error) {
		items, err := lockItems(ctx, sql, q, where, c.IDs, after)
		if err != nil || len(items) == 0 {
			return 0, nil, err
		}
		return int64(len(items)), items, sql.Do(ctx, q.ForItems(items, func(b *condition.Builder, where string) *backends.Statement { return q.Change(b, where, &c) })...)
	}
}

// changeRows changes rows that meet the conditions, and removes their leases. It changes those of
// the ids, or with nil a batch of all. With nil conditions there are no such rows.
func changeRows(q *statement.Queue, where, ids []string, change func(b *condition.Builder, where string) *backends.Statement) batchFunc {
	if where == nil {
		return func(context.Context, backends.SQL, string) (int64, []string, error) { return 0, nil, nil }
	}
	return func(ctx context.Context, sql backends.SQL, after string) (int64, []string, error) {
		items, err := lockItems(ctx, sql, q, where, ids, after)
		if err != nil || len(items) == 0 {
			return 0, nil, err
		}
		all := q.ForItems(items, change)
		if err := sql.Do(ctx, append(all, lease.DeleteOfJobs(q.Dialect, q.Queue, items))...); err != nil {
			return 0, items, err
		}
		return matched(all), items, nil
	}
}

// lockItems locks the rows for changeRows. Without ids, and where claims are open transactions, it
// skips rows that others have locked.
func lockItems(ctx context.Context, sql backends.SQL, q *statement.Queue, where, ids []string, after string) (items []string, err error) {
	add := func(item string) { items = append(items, item) }
	if ids == nil {
		b := &condition.Builder{Table: q.Table}
		if after != "" {
			where = append(slices.Clone(where), b.After(after))
		}
		n := b.Arg(int64(q.MaxItems()))
		err = sql.Do(ctx, q.LockItems(query.And(where...), q.KeyOrder(), n, true, add, b.Args...))
		return items, err
	}
	requested := q.Requested(ids)
	err = sql.Do(ctx, q.ForItems(ids, func(b *condition.Builder, these string) *backends.Statement {
		return q.LockRows(condition.WhileRows(these, where), q.ClaimInTx, func(item string) {
			if requested(item) {
				add(item)
			}
		}, b.Args...)
	})...)
	return items, err
}

// reclaim takes claims back from the workers.
func (s *Store) reclaim(ctx context.Context, sql backends.SQL, q *statement.Queue, ids []string) (items []string, err error) {
	claims := leases{}
	where := "l.queue = " + s.dialect.TextArg(1) + " AND l.token_sidecar IS NOT NULL AND " + s.dialect.AnyOf(2, lease.ItemColumn)
	if err := sql.Do(ctx, claims.query(lease.SelectLocked(s.dialect, lease.ByItem, where, "id", false), q.Queue, ids)); err != nil {
		return nil, err
	}
	x := &changes{dialect: s.dialect, alone: true}
	var all []*statement.Change
	for _, l := range claims.sorted() {
		s.held.forget(l.ID)
		change, err := x.add(q.End(l, l.AttemptState().AfterRelease(backends.Release{Uncounted: true}, 0), ""))
		if err != nil {
			return nil, err
		}
		all = append(all, change)
	}
	err = x.flush(ctx, sql)
	for _, change := range all {
		if change.Statement.Matched > 0 {
			items = append(items, change.Lease.Item)
		}
	}
	return items, err
}
