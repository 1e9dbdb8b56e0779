// Package progress stores the progress of jobs in a table that all SQL engines share.
//
// A transaction that saves progress first reads which leases are valid, without locks, so that it delays no settle. It locks a
// job's row only to mark it, which it does once in the life of the job, and passes over rows that others have locked. A row of
// the table has the fence of the claim, so that a sidecar whose claim is over can't replace the progress of a later one.
//
// Start reading at Table.Save.
package progress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	table = "qsidecar_progress"
	jobs  = "qsidecar_jobs"
)

var (
	id   = backends.Column{Name: "id", Type: "bigint", Kind: backends.NumberColumn}
	job  = backends.Column{Name: "job", Type: "bigint", Kind: backends.NumberColumn}
	data = backends.Column{Name: "data", Type: "bytea", Kind: backends.BytesColumn}
)

// Table is the progress of a database.
type Table struct {
	Engine  Engine
	Dialect backends.Dialect
}

// Engine is what a Table needs of the database.
type Engine interface {
	Query(ctx context.Context, statements ...*backends.Statement) error
	CommitWith(ctx context.Context, b backends.CommitContent, also backends.TxHooks) (backends.Results, error)
}

// Item is a progress to save.
type Item struct {
	Job   int64 // 0: the lease has no id of a job
	Token backends.Token
	backends.Progress

	fence int64
}

// Save saves the progress of claims, and returns the outcome of each.
func (t *Table) Save(ctx context.Context, all []Item) (out []backends.ProgressOutcome, err error) {
	out, err = t.try(ctx, all)
	if _, locked := errors.AsType[*backends.LockedError](err); !locked { // some servers can't pass over locked rows
		return out, err
	}
	if len(all) == 1 {
		return []backends.ProgressOutcome{backends.ProgressLocked}, nil
	}
	out = nil
	for i := range all {
		one, err := t.Save(ctx, all[i:i+1])
		if err != nil {
			return nil, err
		}
		out = append(out, one...)
	}
	return out, nil
}

func (t *Table) try(ctx context.Context, all []Item) (out []backends.ProgressOutcome, err error) {
	_, err = t.Engine.CommitWith(ctx, backends.CommitContent{}, backends.TxHooks{Writes: true,
		Before: func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
			out, err = t.save(ctx, sql, slices.Clone(all))
			return err
		}})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (t *Table) save(ctx context.Context, sql backends.SQL, all []Item) ([]backends.ProgressOutcome, error) {
	out := make([]backends.ProgressOutcome, len(all))
	rows := map[int64]*row{}
	if err := sql.Do(ctx, t.read(all, rows)); err != nil {
		return nil, err
	}
	var unmarked []string
	for i := range all {
		x := &all[i]
		r := rows[x.Job]
		if r == nil || r.sidecar != int64(x.Token.Sidecar) || r.number != int64(x.Token.Number) {
			out[i] = backends.ProgressLost
			continue
		}
		if x.fence = r.fence; !r.marked {
			unmarked = append(unmarked, strconv.FormatInt(x.Job, 10))
		}
	}
	marked, err := t.mark(ctx, sql, unmarked)
	if err != nil {
		return nil, err
	}
	var saved []*Item
	for i := range all {
		x := &all[i]
		switch {
		case out[i] == backends.ProgressLost:
		case rows[x.Job].marked || marked[x.Job]:
			saved = append(saved, x)
		default:
			out[i] = backends.ProgressLocked
		}
	}
	if len(saved) == 0 {
		return out, nil
	}
	slices.SortFunc(saved, func(a, b *Item) int { return cmp.Compare(a.Job, b.Job) }) // all sidecars lock rows in this order
	return out, t.write(ctx, sql, saved)
}

// clock is a backends.SQL of an engine.
type clock interface {
	Clock(ctx context.Context) (time.Time, error)
}

// row is what the row of a claimed job has.
type row struct {
	sidecar, number, fence int64
	marked                 bool
}

// isIn is 1 for a job in one of the states. A query reaches jobs by their ids alone, so it has no condition on states.
func (t *Table) isIn(states ...string) string {
	var all []string
	for _, s := range states {
		all = append(all, t.Dialect.Text(s))
	}
	return "CASE WHEN state IN (" + strings.Join(all, ", ") + ") THEN 1 ELSE 0 END"
}

// read is a query for claimed jobs that waits for no lock.
func (t *Table) read(all []Item, rows map[int64]*row) *backends.Statement {
	d := t.Dialect
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = strconv.FormatInt(all[i].Job, 10)
	}
	return &backends.Statement{
		Text: d.SelectUnlocked(t.columns("id", "coalesce(token_sidecar, 0)", "coalesce(token_number, 0)", "fence", "coalesce(progress, 0)", t.isIn("claimed")), d.SidecarTable(jobs), d.AnyOf(1, id)),
		Args: []any{ids},
		Row: func(cells [][]byte) error {
			n, err := numbers(cells)
			if err == nil && n[5] != 0 {
				rows[n[0]] = &row{n[1], n[2], n[3], n[4] != 0}
			}
			return err
		},
	}
}

// columns is a select list of numbers.
func (t *Table) columns(names ...string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = fmt.Sprintf("%s AS qsidecar_%d", t.Dialect.ToText(name), i+1)
	}
	return strings.Join(all, ", ")
}

// mark marks the rows of claimed jobs, except those that others have locked. It returns the rows that it marked.
func (t *Table) mark(ctx context.Context, sql backends.SQL, ids []string) (marked map[int64]bool, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	d := t.Dialect
	marked = map[int64]bool{}
	var free []string
	if err := sql.Do(ctx, &backends.Statement{
		Text: d.SelectByKey(t.columns("id"), d.SidecarTable(jobs), "", d.AnyOf(1, id), "id", true),
		Args: []any{ids},
		Row: func(cells [][]byte) error {
			n, err := numbers(cells)
			if err == nil {
				marked[n[0]], free = true, append(free, string(cells[0]))
			}
			return err
		},
	}); err != nil || len(free) == 0 {
		return nil, err
	}
	return marked, sql.Do(ctx, &backends.Statement{Text: d.UpdateByKey(d.SidecarTable(jobs), "", "progress = 1", d.AnyOf(1, id)), Args: []any{free}})
}

// write updates rows, and inserts those that don't exist.
func (t *Table) write(ctx context.Context, sql backends.SQL, all []*Item) error {
	c, ok := sql.(clock)
	if !ok {
		return fmt.Errorf("%T has no clock", sql)
	}
	at, err := c.Clock(ctx)
	if err != nil {
		return err
	}
	updates := make([]*backends.Statement, len(all))
	for i, x := range all {
		x.At = at
		updates[i] = t.update(x)
	}
	if err := sql.Do(ctx, updates...); err != nil {
		return err
	}
	var inserts []*backends.Statement
	for i, x := range all {
		if updates[i].Matched == 0 {
			inserts = append(inserts, t.insert(x))
		}
	}
	if len(inserts) == 0 {
		return nil
	}
	return sql.Do(ctx, inserts...)
}

var columns = []string{"fence", "done", "total", "at", "data", "job"}

// values are the arguments of args.
func (t *Table) values() []string {
	d := t.Dialect
	return []string{d.IntArg(1), d.IntArg(2), d.IntArg(3), d.IntArg(4), d.Arg(5, data), d.IntArg(6)}
}

// args are the values of a row, in the order of columns.
func (i *Item) args() []any {
	return []any{i.fence, number(i.Done), number(i.Total), i.At.UnixMilli(), append([]byte{}, i.Data...), i.Job}
}

// update matches no row if a later claim has saved its progress. Then insert is refused, and the next try finds the lease lost.
func (t *Table) update(x *Item) *backends.Statement {
	var sets []string
	values := t.values()
	for i, c := range columns[:len(columns)-1] {
		sets = append(sets, c+" = "+values[i])
	}
	return &backends.Statement{
		Text: "UPDATE " + t.Dialect.SidecarTable(table) + " SET " + strings.Join(sets, ", ") + " WHERE job = " + t.Dialect.IntArg(6) + " AND fence <= " + t.Dialect.IntArg(7),
		Args: append(x.args(), x.fence),
	}
}

func (t *Table) insert(x *Item) *backends.Statement {
	return &backends.Statement{
		Text: "INSERT INTO " + t.Dialect.SidecarTable(table) + " (" + strings.Join(columns, ", ") + ") VALUES (" + strings.Join(t.values(), ", ") + ")",
		Args: x.args(),
	}
}

// Of returns the progress of jobs.
func (t *Table) Of(ctx context.Context, ids []int64) (map[int64]backends.Progress, error) {
	all := map[int64]backends.Progress{}
	d := t.Dialect
	err := t.Engine.Query(ctx, &backends.Statement{
		Text: d.SelectUnlocked(t.columns("job", "coalesce(done, -1)", "coalesce(total, -1)", "at")+", data AS qsidecar_5", d.SidecarTable(table), d.AnyOf(1, job)),
		Args: []any{texts(ids)},
		Row: func(cells [][]byte) error {
			n, err := numbers(cells[:4])
			if err == nil {
				all[n[0]] = backends.Progress{Done: n[1], Total: n[2], Data: append([]byte{}, cells[4]...), At: time.UnixMilli(n[3]).UTC()}
			}
			return err
		},
	})
	return all, err
}

// Jobs returns at most limit jobs that have progress, after one.
func (t *Table) Jobs(ctx context.Context, after int64, limit int) (ids []int64, err error) {
	d := t.Dialect
	err = t.Engine.Query(ctx, &backends.Statement{
		Text: d.SelectFirst(t.columns("job"), d.SidecarTable(table), "job > "+d.IntArg(2), "job", d.IntArg(1)),
		Args: []any{int64(limit), after},
		Row: func(cells [][]byte) error {
			n, err := numbers(cells)
			if err == nil {
				ids = append(ids, n[0])
			}
			return err
		},
	})
	return ids, err
}

// Forget deletes the progress of those of the jobs that have ended. It reads the jobs in another transaction than it deletes: a
// DELETE that reads them would lock them.
func (t *Table) Forget(ctx context.Context, ids []int64) error {
	d := t.Dialect
	active, fences := map[int64]bool{}, map[int64]int64{}
	err := t.Engine.Query(ctx, &backends.Statement{
		Text: d.SelectUnlocked(t.columns("job", "fence"), d.SidecarTable(table), d.AnyOf(1, job)),
		Args: []any{texts(ids)},
		Row: func(cells [][]byte) error {
			n, err := numbers(cells)
			if err == nil {
				fences[n[0]] = n[1]
			}
			return err
		},
	}, &backends.Statement{
		Text: d.SelectUnlocked(t.columns("id", t.isIn("done", "dead")), d.SidecarTable(jobs), d.AnyOf(1, id)),
		Args: []any{texts(ids)},
		Row: func(cells [][]byte) error {
			n, err := numbers(cells)
			if err == nil {
				active[n[0]] = n[1] == 0
			}
			return err
		},
	})
	if err != nil {
		return err
	}
	var deletes []*backends.Statement
	for _, n := range slices.Sorted(slices.Values(ids)) {
		if fence, found := fences[n]; found && !active[n] {
			deletes = append(deletes, &backends.Statement{ // a later claim has a higher fence
				Text: "DELETE FROM " + d.SidecarTable(table) + " WHERE job = " + d.IntArg(1) + " AND fence = " + d.IntArg(2),
				Args: []any{n, fence},
			})
		}
	}
	if len(deletes) == 0 {
		return nil
	}
	_, err = t.Engine.CommitWith(ctx, backends.CommitContent{}, backends.TxHooks{Writes: true,
		Before: func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
			return sql.Do(ctx, deletes...)
		}})
	return err
}

func texts(ids []int64) []string {
	all := make([]string, len(ids))
	for i, n := range ids {
		all[i] = strconv.FormatInt(n, 10)
	}
	return all
}

func numbers(cells [][]byte) ([]int64, error) {
	all := make([]int64, len(cells))
	for i, c := range cells {
		n, err := strconv.ParseInt(string(c), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s, column %d: %w", table, i+1, err)
		}
		all[i] = n
	}
	return all, nil
}

// number is NULL for a number that was not reported.
func number(n int64) any {
	if n < 0 {
		return nil
	}
	return n
}
