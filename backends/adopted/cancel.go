package adopted

import (
	"context"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// statesRead is how many bytes of payloads statesOf has in memory, or one job's.
const statesRead = 4 << 20

// statesOf returns the states of jobs.
func (s *Store) statesOf(ctx context.Context, queue string, ids []string) (map[string]backends.JobState, error) {
	all := make(map[string]backends.JobState, len(ids))
	for _, id := range ids {
		all[id] = backends.JobState{ID: id, State: backends.StateDeleted}
	}
	for len(ids) > 0 {
		views, err := s.peek(ctx, backends.Peek{Queue: queue, IDs: ids, Max: len(ids), MaxBytes: statesRead})
		if err != nil {
			return nil, err
		}
		if len(views) == 0 {
			break
		}
		for i := range views {
			v := &views[i]
			n := len(v.Failures)
			all[v.ID] = backends.JobState{ID: v.ID, State: v.State, Cancelled: v.State == backends.StateDead && n > 0 && v.Failures[n-1].Cause == backends.CauseCancelled}
		}
		ids = ids[1+slices.Index(ids, views[len(views)-1].ID):]
	}
	return all, nil
}

// reportUnchanged passes on which of the named jobs a command did not change.
func (s *Store) reportUnchanged(ctx context.Context, c *backends.Command, changed []string) error {
	var rest []string
	for _, id := range c.IDs {
		if !slices.Contains(changed, id) && !slices.Contains(rest, id) {
			rest = append(rest, id)
		}
	}
	if c.Unchanged == nil || len(rest) == 0 {
		return nil
	}
	states, err := s.statesOf(ctx, c.Queue, rest)
	if err != nil {
		return err
	}
	left := make([]backends.JobState, len(rest))
	for i, id := range rest {
		left[i] = states[id]
	}
	c.Unchanged(left)
	return nil
}

// cancel ends rows that wait, and claims. A row must show that its job is dead, because the table's own consumers don't read leases.
// ended gets the claims that it ended.
func (s *Store) cancel(q *statement.Queue, c backends.Command, ended *[]backends.Token) batchFunc {
	waiting := []string{"(" + query.And(q.InState(backends.StateReady)...) + " OR " + query.And(q.InState(backends.StateScheduled)...) + ")"}
	return func(ctx context.Context, sql backends.SQL, _ string) (int64, []string, error) {
		*ended = nil
		again, err := s.cancelledBefore(ctx, sql, q, c.IDs)
		if err != nil {
			return 0, nil, err
		}
		var claimed []string
		if !q.ClaimInTx {
			claimed, *ended, err = s.cancelClaims(ctx, sql, q, c)
			if err != nil {
				return 0, nil, err
			}
		}
		rest := slices.DeleteFunc(slices.Clone(c.IDs), func(id string) bool { return slices.Contains(again, id) || !c.Remove && slices.Contains(claimed, id) })
		var items []string
		if len(rest) > 0 {
			if items, err = lockItems(ctx, sql, q, waiting, rest, ""); err != nil {
				return 0, nil, err
			}
		}
		if c.Remove {
			if gone := slices.Concat(again, items); len(gone) > 0 {
				err = sql.Do(ctx, append(q.ForItems(gone, q.Delete), lease.DeleteOfJobs(q.Dialect, q.Queue, gone))...)
			}
			changed := slices.Concat(again, items)
			return int64(len(changed)), changed, err
		}
		changed := slices.Concat(again, claimed, items)
		return int64(len(changed)), changed, s.cancelWaiting(ctx, sql, q, items)
	}
}

// cancelledBefore locks the rows of jobs that a cancel made dead, and returns their ids.
func (s *Store) cancelledBefore(ctx context.Context, sql backends.SQL, q *statement.Queue, ids []string) (again []string, err error) {
	dead := q.InState(backends.StateDead)
	if dead == nil {
		return nil, nil
	}
	items, err := lockItems(ctx, sql, q, dead, ids, "")
	if err != nil || len(items) == 0 {
		return nil, err
	}
	kept := leases{}
	if err := sql.Do(ctx, kept.query(lease.Select(s.dialect, lease.OfJobs(s.dialect)), q.Queue, items)); err != nil {
		return nil, err
	}
	for _, l := range kept.sorted() {
		if n := len(l.Failures); n > 0 && l.Failures[n-1].Cause == backends.CauseCancelled {
			again = append(again, l.Item)
		}
	}
	return again, nil
}

// cancelClaims ends claims, and stores that for their owners. With Command.Remove their rows are ready then, for cancel to delete.
func (s *Store) cancelClaims(ctx context.Context, sql backends.SQL, q *statement.Queue, c backends.Command) (items []string, ended []backends.Token, err error) {
	claims := leases{}
	where := "l.queue = " + s.dialect.TextArg(1) + " AND l.token_sidecar IS NOT NULL AND " + s.dialect.AnyOf(2, lease.ItemColumn)
	if err := sql.Do(ctx, claims.query(lease.SelectLocked(s.dialect, lease.ByItem, where, "id", false), q.Queue, c.IDs)); err != nil {
		return nil, nil, err
	}
	if len(claims) == 0 {
		return nil, nil, nil
	}
	x := &changes{dialect: s.dialect, alone: true}
	var owners []int64
	var tokens []backends.Token
	var made []*statement.Change
	for _, l := range claims.sorted() {
		s.held.forget(l.ID)
		owner, token := l.Owner, l.Proof().Token
		d := l.AttemptState().AfterCancel()
		if c.Remove {
			d = l.AttemptState().AfterRelease(backends.Release{Uncounted: true}, 0)
		}
		change, err := x.add(q.End(l, d, backends.CauseCancelled))
		if err != nil {
			return nil, nil, err
		}
		made, owners, tokens = append(made, change), append(owners, owner), append(tokens, token)
	}
	if err := x.flush(ctx, sql); err != nil {
		return nil, nil, err
	}
	var values []string
	var args []any
	for i, change := range made {
		if change.Statement.Matched > 0 { // otherwise the table's own consumers have changed the row
			items, ended = append(items, change.Lease.Item), append(ended, tokens[i])
			if owners[i] == 0 { // no sidecar would read the note
				continue
			}
			n := len(args)
			values = append(values, "("+s.dialect.IntArg(n+1)+", "+s.dialect.IntArg(n+2)+", "+s.dialect.IntArg(n+3)+")")
			args = append(args, owners[i], int64(tokens[i].Sidecar), int64(tokens[i].Number))
		}
	}
	if len(values) == 0 {
		return items, ended, nil
	}
	columns := []string{s.dialect.Name("owner"), s.dialect.Name("token_sidecar"), s.dialect.Name("token_number")}
	return items, ended, sql.Do(ctx, &backends.Statement{
		Text: "INSERT INTO " + s.dialect.SidecarTable("qsidecar_cancelled") + " (" + strings.Join(columns, ", ") + ") VALUES " + strings.Join(values, ", "), Args: args,
	})
}

// cancelWaiting makes rows dead that wait, which are locked. Their leases keep why.
func (s *Store) cancelWaiting(ctx context.Context, sql backends.SQL, q *statement.Queue, items []string) error {
	if len(items) == 0 {
		return nil
	}
	kept, now := leases{}, int64(0)
	if err := sql.Do(ctx,
		kept.query(lease.SelectLocked(s.dialect, lease.ByItem, lease.OfJobs(s.dialect), "id", false), q.Queue, items),
		&backends.Statement{Text: "SELECT " + query.Columns(s.dialect.ToText(s.dialect.NowMillis())), Row: func(cells [][]byte) error { return query.Int(cells[0], &now) }},
	); err != nil {
		return err
	}
	of := map[string]*lease.Lease{}
	for _, l := range kept.sorted() {
		of[l.Item] = l
	}
	x := &changes{dialect: s.dialect, alone: true}
	for _, item := range items {
		l := of[item]
		if l == nil {
			l = lease.New(q.Queue, item)
			l.Now = now
		}
		if _, err := x.add(q.Cancel(l)); err != nil {
			return err
		}
	}
	return x.flush(ctx, sql)
}

// checkCancel returns an error if a cancel can't be carried out: the row couldn't show it, or one of the claims is an open transaction.
func (s *Store) checkCancel(ctx context.Context, q *statement.Queue, c *backends.Command) error {
	if err := q.CheckCancel(c.Remove); err != nil || !q.ClaimInTx {
		return err
	}
	held := map[string]bool{}
	for _, j := range s.tx.ofQueue(q.Queue) {
		held[j.lease.Item] = true
	}
	states, err := s.statesOf(ctx, c.Queue, c.IDs)
	if err != nil {
		return err
	}
	var waiting []string
	for _, id := range c.IDs {
		if held[id] {
			return &backends.UnsupportedError{Queue: c.Queue, What: "cancelling a claimed job", InTx: true}
		}
		if c.Changes(states[id].State) {
			waiting = append(waiting, id)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	// Another host's transaction shows only by its lock.
	var free []string
	if err := s.transaction(ctx, func() []string { return nil }, func(ctx context.Context, sql backends.SQL) error {
		free = nil
		return sql.Do(ctx, q.ForItems(waiting, func(b *condition.Builder, these string) *backends.Statement {
			return q.LockRows(these, true, func(item string) { free = append(free, item) }, b.Args...)
		})...)
	}); err != nil {
		return err
	}
	for _, id := range waiting {
		if !slices.Contains(free, id) {
			return &backends.UnsupportedError{Queue: c.Queue, What: "cancelling a claimed job", InTx: true}
		}
	}
	return nil
}
