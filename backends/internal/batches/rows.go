package batches

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// The tables.
const (
	batchTable  = "qsidecar_batches"
	memberTable = "qsidecar_batch_members"
	noteTable   = "qsidecar_batch_notes"
	jobTable    = "qsidecar_jobs"
)

// The columns of qsidecar_batches. A row is read in this order. A column without a value is NULL.
var (
	columnNames = []string{
		"id", "state", "fires_on", "queue", "batch_key", "parent", "headers", "priority", "max_attempts", "timeout_ms", "group_name",
		"created_at", "closed_at", "ended_at", "expires_at", "done", "failed", "callback",
	}
	texts = map[string]bool{"state": true, "fires_on": true, "queue": true, "batch_key": true, "headers": true, "group_name": true, "callback": true}

	payloadColumn = backends.Column{Name: "payload", Type: "bytea", Kind: backends.BytesColumn}
	idColumn      = backends.Column{Name: "id", Type: "bigint", Kind: backends.NumberColumn}
	jobColumn     = backends.Column{Name: "job", Type: "bigint", Kind: backends.NumberColumn}
	batchColumn   = backends.Column{Name: "batch", Type: "bigint", Kind: backends.NumberColumn}
	noteColumn    = backends.Column{Name: "note", Type: "bigint", Kind: backends.NumberColumn}
)

// row is a batch.
type row struct {
	id, parent int64 // parent 0: none
	state      backends.BatchState
	on         backends.BatchCondition
	callback   backends.NewJob // without Batch
	key        string

	created, closed, ended, expires time.Time
	Counts                          // after its end
	job                             string
}

func named(expressions []string) string {
	all := make([]string, len(expressions))
	for i, e := range expressions {
		all[i] = fmt.Sprintf("%s AS qsidecar_%d", e, i+1)
	}
	return strings.Join(all, ", ")
}

// columns is the select list of a query from the table as b that scan reads.
func columns(d backends.Dialect, payload bool) string {
	var all []string
	for _, c := range columnNames {
		all = append(all, d.ToText("b."+c))
	}
	if payload {
		all = append(all, "b.payload")
	}
	return named(all)
}

// cells reads the cells of a row from left to right.
type cells struct {
	all [][]byte
	err error
}

func (c *cells) text() string {
	text := string(c.all[0])
	c.all = c.all[1:]
	return text
}

func (c *cells) number() (n int64) {
	text := c.text()
	if text == "" || c.err != nil {
		return 0
	}
	n, c.err = strconv.ParseInt(text, 10, 64)
	return n
}

func (c *cells) instant() time.Time {
	if ms := c.number(); ms != 0 {
		return time.UnixMilli(ms).UTC()
	}
	return time.Time{}
}

func scan(all [][]byte) (r row, err error) {
	c := &cells{all: all}
	j := &r.callback
	r.id, r.state, r.on, j.Queue, r.key, r.parent = c.number(), backends.BatchState(c.text()), backends.BatchCondition(c.text()), c.text(), c.text(), c.number()
	if headers := c.text(); headers != "" {
		if err := json.Unmarshal([]byte(headers), &j.Headers); err != nil {
			return r, fmt.Errorf("%s, the headers of %d: %w", batchTable, r.id, err)
		}
	}
	j.Priority, j.MaxAttempts, j.Timeout, j.Group = int16(c.number()), int(c.number()), time.Duration(c.number())*time.Millisecond, c.text()
	r.created, r.closed, r.ended, r.expires = c.instant(), c.instant(), c.instant(), c.instant()
	r.Done, r.Failed, r.job = c.number(), c.number(), c.text()
	if len(c.all) > 0 {
		j.Payload = append([]byte{}, c.all[0]...)
	}
	if c.err != nil {
		return r, fmt.Errorf("%s: %w", batchTable, c.err)
	}
	return r, nil
}

// collect is a statement that reads rows.
func collect(text string, rows *[]row, args ...any) *backends.Statement {
	*rows = nil
	return &backends.Statement{Text: text, Args: args, Row: func(all [][]byte) error {
		r, err := scan(all)
		*rows = append(*rows, r)
		return err
	}}
}

// numbers is a statement that reads columns of numbers. Each row of them is appended to all.
func numbers(text string, all *[][]int64, args ...any) *backends.Statement {
	*all = nil
	return &backends.Statement{Text: text, Args: args, Row: func(row [][]byte) error {
		c := &cells{all: row}
		one := make([]int64, len(row))
		for i := range one {
			one[i] = c.number()
		}
		*all = append(*all, one)
		return c.err
	}}
}

func (r *row) insert(d backends.Dialect) *backends.Statement {
	j := &r.callback
	var headers any
	if len(j.Headers) > 0 {
		text, _ := json.Marshal(j.Headers) // of texts
		headers = string(text)
	}
	payload := j.Payload
	if payload == nil {
		payload = []byte{}
	}
	args := []any{
		r.id, string(r.state), string(r.on), j.Queue, orNull(r.key), orNull(r.parent), headers, int64(j.Priority), orNull(int64(j.MaxAttempts)), orNull(j.Timeout.Milliseconds()),
		orNull(j.Group), r.created.UnixMilli(), nil, nil, r.expires.UnixMilli(), nil, nil, nil, payload, int64(1),
	}
	var values []string
	for i, c := range columnNames {
		if texts[c] {
			values = append(values, d.TextArg(i+1))
		} else {
			values = append(values, d.IntArg(i+1))
		}
	}
	n := len(values)
	values = append(values, d.Arg(n+1, payloadColumn), d.IntArg(n+2))
	return &backends.Statement{
		Text: "INSERT INTO " + d.SidecarTable(batchTable) + " (" + strings.Join(columnNames, ", ") + ", payload, changes) VALUES (" + strings.Join(values, ", ") + ")", Args: args,
	}
}

// orNull returns nil, which is NULL, for the zero value.
func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// view is the batch as callers get it.
func (r *row) view() backends.Batch {
	b := backends.Batch{
		ID: ID(r.id), Queue: r.callback.Queue, On: r.on, Key: r.key, State: r.state, CreatedAt: r.created, ClosedAt: r.closed, EndedAt: r.ended, ExpiresAt: r.expires,
		Done: r.Done, Failed: r.Failed, Left: r.Left, Callback: r.job, Payload: r.callback.Payload,
	}
	if r.parent != 0 {
		b.Parent = ID(r.parent)
	}
	return b
}

// members is the source of queries for members of batches (an AnyOf of the argument n) as m, with their jobs as j and their
// child batches as c.
func members(d backends.Dialect, n int) string {
	return "(SELECT batch AS of_batch, job AS of_job, done FROM " + d.SidecarTable(memberTable) + " WHERE " + d.AnyOf(n, batchColumn) + ") m" +
		" LEFT JOIN " + d.SidecarTable(jobTable) + " j ON j.id = m.of_job LEFT JOIN " + d.SidecarTable(batchTable) + " c ON c.id = -m.of_job"
}

// Conditions on these.
const (
	isDone = "(m.done = 1 OR j.id IS NOT NULL AND j.state = 'done')"
	isLeft = "(m.done = 0 AND (j.id IS NOT NULL AND j.state NOT IN ('done', 'dead') OR c.id IS NOT NULL AND c.state IN ('open', 'closed', 'cancelling')))"
)

// memberLeft and memberNotDone are the same as conditions on a member m alone.
func memberLeft(d backends.Dialect) string {
	return "m.done = 0 AND (EXISTS (SELECT 1 FROM " + d.SidecarTable(jobTable) + " j WHERE j.id = m.job AND j.state NOT IN ('done', 'dead'))" +
		" OR EXISTS (SELECT 1 FROM " + d.SidecarTable(batchTable) + " c WHERE c.id = -m.job AND c.state IN ('open', 'closed', 'cancelling')))"
}

func memberNotDone(d backends.Dialect) string {
	return "m.done = 0 AND NOT EXISTS (SELECT 1 FROM " + d.SidecarTable(jobTable) + " j WHERE j.id = m.job AND j.state = 'done')"
}

// count is a statement that counts the members of batches.
func count(d backends.Dialect, ids []string, all map[int64]Counts) *backends.Statement {
	sum := func(condition string) string { return d.ToText("SUM(CASE WHEN " + condition + " THEN 1 ELSE 0 END)") }
	return &backends.Statement{
		Text: "SELECT " + named([]string{d.ToText("m.of_batch"), d.ToText("COUNT(*)"), sum(isDone), sum(isLeft)}) + " FROM " + members(d, 1) + " GROUP BY m.of_batch", Args: []any{ids},
		Row: func(row [][]byte) error {
			c := &cells{all: row}
			id, total, done, left := c.number(), c.number(), c.number(), c.number()
			all[id] = Counts{Done: done, Failed: total - done - left, Left: left}
			return c.err
		},
	}
}

// finished is a query for those of the batches that end, as far as a query without locks shows it.
func finished(d backends.Dialect, ids []string, all *[][]int64) *backends.Statement {
	without := func(on, condition string) string {
		return "b.fires_on = '" + on + "' AND NOT EXISTS (SELECT 1 FROM " + d.SidecarTable(memberTable) + " m LEFT JOIN " + d.SidecarTable(jobTable) + " j ON j.id = m.job LEFT JOIN " +
			d.SidecarTable(batchTable) + " c ON c.id = -m.job WHERE m.batch = b.id AND m.done = 0 AND " + condition + ")"
	}
	return numbers("SELECT "+named([]string{d.ToText("b.id")})+" FROM "+d.SidecarTable(batchTable)+" b WHERE b.state = 'closed' AND "+d.AnyOf(1, idColumn)+
		" AND ("+without("success", "NOT "+isDone)+" OR "+without("finish", isLeft)+")", all, ids)
}

func execute(text string, args ...any) *backends.Statement {
	return &backends.Statement{Text: text, Args: args}
}

// touch is the change of a batch's row that each transaction begins with that concerns its members. It matches no row if the batch isn't in one of the states.
func touch(d backends.Dialect, id int64, states string) *backends.Statement {
	return execute("UPDATE "+d.SidecarTable(batchTable)+" SET changes = changes + 1 WHERE id = "+d.IntArg(1)+" AND state IN ("+states+")", id)
}

// addMember is a member that is a job, or a batch (its negative number) whose callback will be one.
func addMember(d backends.Dialect, batch, job int64) *backends.Statement {
	return execute("INSERT INTO "+d.SidecarTable(memberTable)+" (batch, done, job) VALUES ("+d.IntArg(1)+", 0, "+d.IntArg(2)+")", batch, job)
}

// forget deletes the members and the notes of a batch.
func forget(d backends.Dialect, id int64) []*backends.Statement {
	return []*backends.Statement{
		execute("DELETE FROM "+d.SidecarTable(memberTable)+" WHERE batch = "+d.IntArg(1), id),
		execute("DELETE FROM "+d.SidecarTable(noteTable)+" WHERE batch = "+d.IntArg(1), id),
	}
}
