package statement

import (
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Stats counts the rows in each state, up to one more than backends.StatsExact, and finds the ages
// of the oldest ones.
func (q *Queue) Stats(st *backends.QueueStats) (all []*backends.Statement) {
	for state, n := range core.Counts(st) {
		if where := q.InState(state); where != nil {
			all = append(all, &backends.Statement{
				Text: q.countFirst(query.And(where...), backends.StatsExact+1),
				Row:  func(cells [][]byte) error { return query.Int(cells[0], n) },
			})
		}
	}
	return append(append(all, q.oldest(mapping.CreatedAt, backends.StateReady, &st.OldestReady)...), q.oldest(mapping.ClaimedAt, backends.StateClaimed, &st.OldestClaimed)...)
}

// oldest finds how long ago the time in the role is at most, of the rows in the state.
func (q *Queue) oldest(role mapping.Role, state backends.State, age *time.Duration) []*backends.Statement {
	c, has := q.Column(role)
	if !has {
		return nil
	}
	return []*backends.Statement{{
		Text: q.Dialect.SelectFirst(query.Columns(q.Dialect.ToText(q.Dialect.NowMillis()+" - "+q.ToMillis(c))), q.SQLName, query.And(q.InState(state)...), q.Quote(c), "1"),
		Row: func(cells [][]byte) error {
			var ms int64
			err := query.Int(cells[0], &ms)
			*age = max(core.FromMS(ms), time.Millisecond)
			return err
		},
	}}
}

// countFirst counts the rows that meet the condition, up to a limit.
func (q *Queue) countFirst(where string, limit int) string {
	return "SELECT " + query.Columns(q.Dialect.ToText("count(*)")) + " FROM (" + q.Dialect.SelectFirst("1 AS one", q.SQLName, where, "", fmt.Sprint(limit)) + ") x"
}

// Count counts all rows in the state.
func (q *Queue) Count(state backends.State, n *int64) *backends.Statement {
	return &backends.Statement{
		Text: "SELECT " + query.Columns(q.Dialect.ToText("count(*)")) + " FROM " + q.SQLName + " WHERE " + query.And(q.InState(state)...),
		Row:  func(cells [][]byte) error { return query.Int(cells[0], n) },
	}
}

// Sizes reads the number of bytes of the payload and the result of each job; nil: they have none.
func (q *Queue) Sizes(items []string, sizes map[string]int64) []*backends.Statement {
	columns := slices.Clone(q.Payload)
	if c, has := q.Column(mapping.Result); has {
		columns = append(columns, c)
	}
	if len(columns) == 0 {
		return nil
	}
	return q.ForItems(items, func(b *condition.Builder, where string) *backends.Statement {
		return &backends.Statement{
			Text: "SELECT " + query.Columns(append(q.KeyTexts(), q.Dialect.ToText(q.size(columns)))...) + " FROM " + q.SQLName + " WHERE " + where, Args: b.Args,
			Row: func(cells [][]byte) error {
				var n int64
				err := query.Int(cells[len(q.Key)], &n)
				sizes[q.Item(cells)] = n
				return err
			},
		}
	})
}

// stateCase is the state of a row, as a sidecar sees it.
func (q *Queue) stateCase() string {
	text := "CASE"
	for _, s := range []backends.State{backends.StateClaimed, backends.StateDone, backends.StateDead, backends.StateScheduled, backends.StateReady} {
		if where := q.InState(s); where != nil {
			text += " WHEN " + query.And(where...) + " THEN " + q.Dialect.Text(string(s))
		}
	}
	return text + " END"
}

// viewColumns is the number of output columns of Views between the key's and the payload's.
const viewColumns = 9

// Views reads what the rows of the jobs show.
func (q *Queue) Views(items []string, views map[string]*backends.View) []*backends.Statement {
	ended := mapping.FinishedAt
	if !q.Has(ended) {
		ended = mapping.FailedAt
	}
	columns := append(q.KeyTexts(), q.Dialect.ToText(q.stateCase()))
	for _, role := range []mapping.Role{mapping.CreatedAt, mapping.RunAt, mapping.ClaimedAt, ended} {
		columns = append(columns, q.output(role, q.millisOf))
	}
	for _, role := range []mapping.Role{mapping.Priority, mapping.Attempts, mapping.Worker} {
		columns = append(columns, q.output(role, q.Dialect.AsText))
	}
	columns = append(columns, q.output(mapping.Result, q.Dialect.AsBytes))
	for _, c := range slices.Concat(q.Payload, q.Headers) {
		columns = append(columns, q.Dialect.AsBytes(c))
	}
	if q.Has(mapping.OwnLimit) {
		columns = append(columns, q.Dialect.ToText(q.AttemptLimit(q.MaxAttempts)))
	}
	return q.ForItems(items, func(b *condition.Builder, where string) *backends.Statement {
		return &backends.Statement{
			Text: "SELECT " + query.Columns(columns...) + " FROM " + q.SQLName + " WHERE " + query.And(append(q.InQueue(), where)...), Args: b.Args,
			Row: func(cells [][]byte) error {
				v, err := q.readView(q.Item(cells), cells[len(q.Key):])
				if err == nil && v.State != "" { // else the mapping has no such state
					views[v.ID] = v
				}
				return err
			},
		}
	})
}

// readView reads a row of Views, after the key's columns.
func (q *Queue) readView(item string, cells [][]byte) (*backends.View, error) {
	v := &backends.View{
		ID: item, Queue: q.Queue, State: backends.State(cells[0]), MaxAttempts: q.MaxAttempts, Worker: string(cells[7]),
		Priority: int16Of(query.AnyNumber(cells[5])), Attempt: int(query.AnyNumber(cells[6])),
	}
	for i, to := range []*time.Time{&v.EnqueuedAt, &v.RunAt, &v.ClaimedAt, &v.FinishedAt} {
		if cells[1+i] == nil {
			continue
		}
		var ms int64
		if err := query.Int(cells[1+i], &ms); err != nil {
			return nil, err
		}
		*to = time.UnixMilli(ms).UTC()
	}
	if q.Has(mapping.OwnLimit) {
		v.MaxAttempts = int(query.AnyNumber(cells[len(cells)-1]))
	}
	if cells[8] != nil {
		v.Result = append([]byte{}, cells[8]...)
	}
	var err error
	v.Payload, v.Headers, err = q.readContents(cells[viewColumns:])
	return v, err
}

// AddLease adds to a view what the job's lease has.
func (q *Queue) AddLease(v *backends.View, l *lease.Lease) {
	if !q.Has(mapping.Attempts) {
		v.Attempt = l.Attempts
	}
	if l.Sidecar != 0 {
		v.Worker, v.ClaimedAt = l.Worker, time.UnixMilli(l.ClaimedAt).UTC()
	}
	if l.NotBefore > 0 && l.NotBefore < lease.Never && v.RunAt.IsZero() {
		v.RunAt = time.UnixMilli(l.NotBefore).UTC()
	}
	for _, f := range l.Failures {
		v.Failures = append(v.Failures, backends.Failure{Attempt: f.Attempt, Cause: f.Cause, Message: f.Message, At: time.UnixMilli(f.At).UTC()})
	}
}
