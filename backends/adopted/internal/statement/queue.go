package statement

import (
	"errors"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Queue writes the statements of one adopted queue.
type Queue struct {
	*condition.Table

	enqueueErr error // why no jobs can be enqueued; nil: they can

	claimIndex string // has the rows that wait in the order of claims; empty: none is known to
	sought     bool   // claims find them at a value of its first column

	startOrder []condition.OrderColumn // by which claims can start at a row; nil: they can't
	rowValues  bool                    // see backends.RowOrdering
}

// New is the queue of a mapping without problems.
func New(m *mapping.Mapping) *Queue {
	q := &Queue{Table: &condition.Table{Mapping: m}}
	q.enqueueErr = q.checkInsert()
	return q
}

// UseIndex makes claims name the index that serves them.
func (q *Queue) UseIndex(o backends.RowOrdering) {
	if q.claimIndex, q.sought = q.ClaimIndex(o); q.claimIndex != "" {
		q.startOrder, q.rowValues = q.StartOrder(), o.RowValues
	}
}

// Starts are the ranges of the rows from one on, in their order.
func (q *Queue) Starts(at []string) (all []*condition.Start) {
	for _, run := range condition.Runs(q.startOrder) {
		all = append(all, &condition.Start{At: at, Run: run})
	}
	return all
}

// Appends reports whether new jobs come after all rows at which claims can start.
func (q *Queue) Appends() bool {
	if len(q.startOrder) == 0 {
		return true
	}
	first := q.startOrder[0]
	return !first.Descending && (q.IsIn(mapping.CreatedAt, first.Name) || first.Kind == backends.NumberColumn && len(q.Key) == 1 && first.Name == q.Key[0].Name)
}

// requirement is what a new job can require, besides being stored.
type requirement struct {
	role  mapping.Role // that it needs; empty: no mapping can do it
	what  string       // the error's text if the table has nothing for it
	needs func(backends.NewJob) bool
}

var requirements = []requirement{
	{mapping.Payload, "a job's payload cannot be stored", func(j backends.NewJob) bool { return len(j.Payload) > 0 }},
	{mapping.Priority, "a job's priority cannot be stored", func(j backends.NewJob) bool { return j.Priority != 0 }},
	{mapping.RunAt, "a job cannot be scheduled", func(j backends.NewJob) bool { return j.Delay > 0 || !j.RunAt.IsZero() }},
	{mapping.Headers, "a job's headers cannot be stored", func(j backends.NewJob) bool { return len(j.Headers) > 0 }},
	{"", "a job cannot have a key", func(j backends.NewJob) bool { return j.Key != "" }},
	{mapping.OwnLimit, "a job cannot have a max_attempts of its own", func(j backends.NewJob) bool { return j.MaxAttempts != 0 }},
	{"", "a job cannot have a timeout_ms of its own", func(j backends.NewJob) bool { return j.Timeout != 0 }},
}

const noResult = "the result of an ack cannot be kept"

// NoNewest is what no mapping supports: an index serves the order of claims only.
const NoNewest = "jobs cannot be listed with the newest first"

// unsupported is the error for what needs a column in the role.
func (q *Queue) unsupported(role mapping.Role, what string) error {
	return &backends.UnsupportedError{Queue: q.Queue, Role: string(role), What: what}
}

// checkRequirements returns an error if the table lacks what a new job requires.
func (q *Queue) checkRequirements(j backends.NewJob) error {
	for _, r := range requirements {
		if r.needs(j) && !q.Has(r.role) {
			return q.unsupported(r.role, r.what)
		}
	}
	return nil
}

// TakesJobs reports whether jobs can be enqueued.
func (q *Queue) TakesJobs() bool { return q.enqueueErr == nil }

// Deletes reports whether the login can delete rows.
func (q *Queue) Deletes() bool { return !slices.Contains(q.Info.Denied, "DELETE") }

// NoJobs returns why no jobs can be enqueued; nil: they can.
func (q *Queue) NoJobs() error { return q.enqueueErr }

// Replace replaces an older description of the table. If the table took jobs then, its owner has taken a right or a default
// away, and can give it back: that isn't unsupported.
func (q *Queue) Replace(old *Queue) {
	if _, never := errors.AsType[*backends.UnsupportedError](old.enqueueErr); q.enqueueErr != nil && !never {
		q.enqueueErr = errors.New(q.enqueueErr.Error())
	}
}

// Unsupported is everything that the queue answers with an UnsupportedError.
func (q *Queue) Unsupported() (all []error) {
	if q.enqueueErr != nil {
		all = append(all, q.enqueueErr)
	}
	for _, r := range requirements {
		if q.enqueueErr == nil && !q.Has(r.role) {
			all = append(all, q.unsupported(r.role, r.what))
		}
	}
	if !q.Has(mapping.Result) {
		all = append(all, q.unsupported(mapping.Result, noResult))
	}
	all = append(all, q.unsupported("", NoNewest))
	if q.ClaimInTx {
		for _, what := range []string{backends.NoTimedLease, backends.NoExtend, backends.NotElsewhere} {
			all = append(all, &backends.UnsupportedError{Queue: q.Queue, What: what, InTx: true})
		}
	}
	return all
}

// output is an expression of the column in the role; NULL: there is none.
func (q *Queue) output(role mapping.Role, expression func(c backends.Column) string) string {
	if c, has := q.Column(role); has {
		return expression(c)
	}
	return "NULL"
}

func (q *Queue) textOf(c backends.Column) string   { return q.Dialect.ToText(q.Quote(c)) }
func (q *Queue) millisOf(c backends.Column) string { return q.Dialect.ToText(q.ToMillis(c)) }

// size is the number of bytes in the columns together.
func (q *Queue) size(columns []backends.Column) string {
	if len(columns) == 0 {
		return "0"
	}
	all := make([]string, len(columns))
	for i, c := range columns {
		all[i] = "coalesce(" + q.Dialect.ByteLength(c) + ", 0)"
	}
	return strings.Join(all, " + ")
}
