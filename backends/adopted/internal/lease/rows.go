package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// The table's columns.
var (
	numberColumns = []string{
		"id", "fence", "attempts", "losses", "not_before", "claim_max", "backoff_ms", "backoff_max_ms",
		"token_sidecar", "token_number", "owner", "lease_ms", "deadline", "due_at", "claimed_at", "changed_at",
	}
	textColumns = []string{"queue", "item", "worker", "claim_values", "failures"}
	allColumns  = slices.Concat(numberColumns, textColumns)
)

// Columns that queries find leases by.
var (
	IDColumn    = backends.Column{Name: "id", Type: "bigint", Kind: backends.NumberColumn}
	QueueColumn = backends.Column{Name: "queue", Type: "text", Kind: backends.TextColumn}
	ItemColumn  = backends.Column{Name: "item", Type: "text", Kind: backends.TextColumn}
)

// From is the table with its alias l, for a FROM.
func From(d backends.Dialect) string { return d.SidecarTable(Table) + " l" }

// Columns is the select list of a query that Read reads, from From.
func Columns(d backends.Dialect) string {
	var all []string
	for _, c := range allColumns {
		all = append(all, d.ToText("l."+c))
	}
	return query.Columns(append(all, d.ToText(d.NowMillis()))...)
}

// Select reads leases without locks.
func Select(d backends.Dialect, where string) string {
	return "SELECT " + Columns(d) + " FROM " + From(d) + " WHERE " + where
}

// The table's indexes by which queries with locks find their rows. In a small table MySQL uses an index only with a hint. Otherwise it waits for locks on other rows.
const (
	ByID   = "PRIMARY" // MySQL's name
	ByItem = "qsidecar_leases_item"
)

// everyRow is a condition that each row meets. If a DELETE reads only the columns of an index, MySQL can read all of that index in spite of the hint.
const everyRow = " AND fence >= 0"

// SelectLocked locks the leases that the condition finds by an index. skip: on a HintDialect it
// skips those that other transactions have locked.
func SelectLocked(d backends.Dialect, index, where, order string, skip bool) string {
	_, hints := d.(backends.HintDialect)
	return d.SelectByKey(Columns(d), From(d), index, where, order, skip && hints)
}

// OfJobs is the condition for the leases of jobs: argument 1 is the queue, argument 2 the ids.
func OfJobs(d backends.Dialect) string {
	return "l.queue = " + d.TextArg(1) + " AND " + d.AnyOf(2, ItemColumn)
}

// OfLost is the condition for session leases of sidecars that are not alive.
func OfLost(d backends.Dialect) string {
	return "l.token_sidecar IS NOT NULL AND l.owner IS NOT NULL AND l.lease_ms IS NULL AND NOT " + d.IsAlive("l.owner")
}

// MostOverdue is how many leases Overdue finds at most.
const MostOverdue = 1000

// Overdue finds the jobs of a queue whose claims ended more than a minute ago, or whose sidecars are lost and began them
// before that.
func Overdue(d backends.Dialect, queue string, f func(item string)) *backends.Statement {
	ago := d.NowMillis() + " - 60000"
	where := "l.queue = " + d.TextArg(1) + " AND (l.due_at IS NOT NULL AND l.due_at < " + ago + " OR l.claimed_at < " + ago + " AND " + OfLost(d) + ")"
	return &backends.Statement{
		Text: d.SelectFirst(query.Columns(d.ToText("l.item")), From(d), where, "l.id", d.IntArg(2)), Args: []any{queue, int64(MostOverdue)},
		Row: func(cells [][]byte) error { f(string(cells[0])); return nil },
	}
}

// Read reads a row of Columns.
func Read(cells [][]byte) (*Lease, error) {
	l := &Lease{Stored: true}
	var limit, attempts, losses int64
	for i, to := range []*int64{
		&l.ID, &l.Fence, &attempts, &losses, &l.NotBefore, &limit, &l.Backoff, &l.BackoffMax,
		&l.Sidecar, &l.Number, &l.Owner, &l.Length, &l.Deadline, &l.DueAt, &l.ClaimedAt, &l.Changed,
	} {
		if err := query.Int(cells[i], to); err != nil {
			return nil, fmt.Errorf("%s, column %s: %w", Table, numberColumns[i], err)
		}
	}
	cells = cells[len(numberColumns):]
	l.Attempts, l.Losses, l.Limit = int(attempts), int(losses), int(limit)
	l.Queue, l.Item, l.Worker = string(cells[0]), string(cells[1]), string(cells[2])
	var claim claimValues
	for i, to := range map[int]any{3: &claim, 4: &l.Failures} {
		if cells[i] == nil {
			continue
		}
		if err := json.Unmarshal(cells[i], to); err != nil {
			return nil, fmt.Errorf("%s, column %s of row %d: %w", Table, textColumns[i], l.ID, err)
		}
	}
	l.Shown, l.Before = claim.Wrote, claim.Before
	return l, query.Int(cells[5], &l.Now)
}

// claimValues is the column claim_values, as JSON.
type claimValues struct {
	Wrote  map[mapping.Role]string `json:"wrote,omitempty"`
	Before map[mapping.Role]string `json:"before,omitempty"`
}

// values are the row's, in the order of its columns.
func (l *Lease) values() ([]any, error) {
	shown, err := jsonOrNull(claimValues{l.Shown, l.Before}, len(l.Shown)+len(l.Before))
	failures, err2 := jsonOrNull(l.Failures, len(l.Failures))
	var worker any
	if l.Worker != "" {
		worker = l.Worker
	}
	return []any{
		l.ID, l.Fence, int64(l.Attempts), int64(l.Losses), orNull(l.NotBefore), int64(l.Limit), l.Backoff, l.BackoffMax,
		orNull(l.Sidecar), orNull(l.Number), orNull(l.Owner), orNull(l.Length), orNull(l.Deadline), orNull(l.DueAt), orNull(l.ClaimedAt), l.Now,
		l.Queue, l.Item, worker, shown, failures,
	}, errors.Join(err, err2)
}

func jsonOrNull(v any, length int) (any, error) {
	if length == 0 {
		return nil, nil
	}
	text, err := json.Marshal(v)
	return string(text), err
}

func orNull(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// MaxRows is the most rows that one statement about claims writes.
const MaxRows = 64

// insertSizes are the numbers of rows that an INSERT stores. There are few, so that the server
// sees few different statements.
var insertSizes = []int{MaxRows, 16, 4, 1}

// Save writes the leases as they are now, and removes those with nothing to keep.
func Save(d backends.Dialect, leases []*Lease) (all []*backends.Statement, err error) {
	var fresh []*Lease
	for _, l := range leases {
		switch {
		case l.empty():
			all = append(all, l.Delete(d))
		case !l.Stored:
			fresh = append(fresh, l)
		default:
			st := &backends.Statement{Text: updateText(d)}
			if st.Args, err = l.values(); err != nil {
				return nil, err
			}
			all = append(all, st)
		}
	}
	for len(fresh) > 0 {
		n := insertSizes[slices.IndexFunc(insertSizes, func(n int) bool { return n <= len(fresh) })]
		st := &backends.Statement{Text: insertText(d, n)}
		for _, l := range fresh[:n] {
			args, err := l.values()
			if err != nil {
				return nil, err
			}
			st.Args = append(st.Args, args...)
		}
		all, fresh = append(all, st), fresh[n:]
	}
	return all, nil
}

// rowArgs are the arguments of a row, from argument n on.
func rowArgs(d backends.Dialect, n int) (all []string) {
	for range numberColumns {
		all = append(all, d.IntArg(n+len(all)))
	}
	for range textColumns {
		all = append(all, d.TextArg(n+len(all)))
	}
	return all
}

// updateText updates the row of an id.
func updateText(d backends.Dialect) string {
	sets := rowArgs(d, 1)
	for i, c := range allColumns {
		sets[i] = c + " = " + sets[i]
	}
	return "UPDATE " + d.SidecarTable(Table) + " SET " + strings.Join(sets[1:], ", ") + " WHERE " + sets[0]
}

// insertText stores n rows.
func insertText(d backends.Dialect, n int) string {
	var rows []string
	for i := range n {
		rows = append(rows, "("+strings.Join(rowArgs(d, i*len(allColumns)+1), ", ")+")")
	}
	return "INSERT INTO " + d.SidecarTable(Table) + " (" + strings.Join(allColumns, ", ") + ") VALUES " + strings.Join(rows, ", ")
}

// Delete removes the row.
func (l *Lease) Delete(d backends.Dialect) *backends.Statement {
	return &backends.Statement{Text: "DELETE FROM " + d.SidecarTable(Table) + " WHERE id = " + d.IntArg(1), Args: []any{l.ID}}
}

// DeleteAll removes the rows of the leases.
func DeleteAll(d backends.Dialect, leases []*Lease) *backends.Statement {
	ids := make([]string, len(leases))
	for i, l := range leases {
		ids[i] = fmt.Sprint(l.ID)
	}
	return &backends.Statement{Text: d.DeleteByKey(d.SidecarTable(Table), ByID, d.AnyOf(1, IDColumn)+everyRow), Args: []any{ids}}
}

// DeleteOfJobs removes the rows of the jobs of a queue.
func DeleteOfJobs(d backends.Dialect, queue string, items []string) *backends.Statement {
	return &backends.Statement{
		Text: d.DeleteByKey(d.SidecarTable(Table), ByItem, "queue = "+d.TextArg(1)+" AND "+d.AnyOf(2, ItemColumn)+everyRow), Args: []any{queue, items},
	}
}
