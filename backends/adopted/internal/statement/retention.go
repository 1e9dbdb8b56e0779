package statement

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Retention deletes rows that were finished long enough ago, of a queue's table or its archive.
type Retention struct {
	mapping.Retention
	queue *Queue // of the table that has the rows
}

// Retentions are those of the queue's mapping.
func (q *Queue) Retentions() (all []Retention) {
	for _, r := range q.Retained {
		all = append(all, Retention{r, &Queue{Table: &condition.Table{Mapping: r.Mapping}}})
	}
	return all
}

// expired is the condition of a row to delete now. Argument n is age.
func (r Retention) expired(n int) string {
	all := append(r.queue.InQueue(), r.queue.Shows(r.State)...)
	return query.And(append(all, r.queue.IsOlder(r.Since, n))...)
}

func (r Retention) age() int64 { return r.Age.Milliseconds() }

// Expired finds up to limit rows to delete. It locks none: where no index serves it, the search
// can take long.
func (r Retention) Expired(limit int, f func(item string)) *backends.Statement {
	return r.queue.Items(r.expired(1), "", r.Dialect.IntArg(2), f, r.age(), int64(limit))
}

// Delete deletes those of the rows that are still expired.
func (r Retention) Delete(items []string) []*backends.Statement {
	return r.queue.ForItems(items, func(b *condition.Builder, where string) *backends.Statement {
		return r.queue.Delete(b, condition.WhileRows(where, []string{r.expired(b.Arg(r.age()))}))
	})
}

// FixedColumns are the columns that have one value in all of the rows.
func (r Retention) FixedColumns() []backends.Condition {
	all := r.queue.QueueColumns()
	for i := range all {
		all[i].Null = false
	}
	c, stated := r.Column(mapping.State)
	if v, has := r.States[r.State]; has && stated {
		all = append(all, backends.Condition{Column: c.Name, SQL: r.queue.Equal(c.Name, v)})
	}
	return all
}
