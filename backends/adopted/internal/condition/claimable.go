package condition

import (
	"fmt"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// MaxID is the length of the longest id of a job, in bytes.
const MaxID = 255

// Claimable is the condition of a row that can be claimed now. limit is the limit of attempts
// of the claim's policy.
func (t *Table) Claimable(limit int) string {
	all := t.Waiting()
	if c, has := t.Column(mapping.Attempts); has {
		count := t.Quote(c) // as it is, so that an index of it serves
		if c.Nullable {
			count = "coalesce(" + count + ", 0)"
		}
		all = append(all, count+" < "+t.AttemptLimit(limit))
	}
	if c, has := t.Column(mapping.RunAt); has {
		all = append(all, fmt.Sprintf("(%s IS NULL OR %s)", t.Quote(c), t.IsPast(c)))
	}
	if valid := t.ValidID(); valid != "" {
		all = append(all, valid)
	}
	leases := lease.From(t.Dialect)
	if h, ok := t.Dialect.(backends.HintDialect); ok { // the claim checks the leases of what it finds again
		leases = h.UnlockedTable(leases)
	}
	return query.And(append(all, t.noLease(leases, "l.not_before > "+t.Dialect.NowMillis()))...)
}

// AttemptLimit is the number of attempts that a row can have: that of its own column, or the
// queue's where that is NULL or below 1.
func (t *Table) AttemptLimit(queue int) string {
	c, has := t.Column(mapping.OwnLimit)
	if !has {
		return fmt.Sprint(queue)
	}
	return fmt.Sprintf("CASE WHEN %[1]s BETWEEN 1 AND %[2]d THEN %[3]s WHEN %[1]s >= %[4]d THEN %[2]d ELSE %[5]d END",
		t.Quote(c), NoLimit-1, t.Dialect.Integer(t.Quote(c)), NoLimit, queue)
}

// HasLease is the condition that a row has a lease that meets the condition. The subquery
// renames the column item, because the table's own columns can have the names of those of
// the leases, and take precedence wherever they are in scope.
func (t *Table) HasLease(condition string) string {
	return fmt.Sprintf("EXISTS (SELECT 1 FROM (SELECT l.item AS qsidecar_item FROM %s WHERE l.queue = %s AND %s) x WHERE x.qsidecar_item = %s)",
		lease.From(t.Dialect), t.Dialect.Text(t.Queue), condition, t.Dialect.RowKey(t.Key))
}

// NoLease is the condition that a row has no lease that meets the condition. It doesn't
// use NOT EXISTS: MySQL turns that into a join, and can then read and sort all waiting rows.
func (t *Table) NoLease(condition string) string { return t.noLease(lease.From(t.Dialect), condition) }

func (t *Table) noLease(leases, condition string) string {
	return fmt.Sprintf("(SELECT x.qsidecar_item FROM (SELECT l.item AS qsidecar_item FROM %s WHERE l.queue = %s AND %s) x WHERE x.qsidecar_item = %s) IS NULL",
		leases, t.Dialect.Text(t.Queue), condition, t.Dialect.RowKey(t.Key))
}

// OrderBy is the order of claims, for an ORDER BY.
func (t *Table) OrderBy() string {
	var all []string
	for _, o := range t.claimOrder() {
		c := t.Dialect.Name(o.Column)
		if o.Descending {
			c += " DESC"
		}
		all = append(all, c)
	}
	return strings.Join(all, ", ")
}

// claimOrder are the columns of the order of claims.
func (t *Table) claimOrder() (all []mapping.Ordering) {
	if len(t.Order) > 0 {
		return t.Order
	}
	if c, has := t.Column(mapping.Priority); has {
		all = append(all, mapping.Ordering{Column: c.Name, Descending: true})
	}
	if c, has := t.Column(mapping.CreatedAt); has {
		all = append(all, mapping.Ordering{Column: c.Name, Descending: t.LIFO})
	}
	for _, c := range t.Key {
		all = append(all, mapping.Ordering{Column: c.Name, Descending: t.LIFO})
	}
	return all
}
