package statement

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Candidate is a row that a claim locked.
type Candidate struct {
	Item    string
	Size    int64 // of the columns of the payload and the headers, in bytes
	Payload []byte
	Headers map[string]string
	Now     int64        // milliseconds since 1970
	Lease   *lease.Lease // what is kept about the job; nil: it cannot be claimed now
	At      []string     // the row's values in the order of starts; nil: no scan can start at it

	attempts        int64 // the column's; 0: there is none
	limit           int64 // the row's own limit of attempts; 0: there is no column
	priority        int64
	enqueued, fence int64
	claimedAt       string // what the claim writes there; empty: nothing
	before          map[mapping.Role]string
}

// Contents is the number of bytes that a worker gets. A payload of several columns is larger than these.
func (c *Candidate) Contents() int64 {
	n := len(c.Payload)
	for name, value := range c.Headers {
		n += len(name) + len(value)
	}
	return int64(n)
}

// contentSize is an expression for Candidate.Size.
func (q *Queue) contentSize() string { return q.size(slices.Concat(q.Payload, q.Headers)) }

// zeroDate begins a date of MySQL and MariaDB that a strict session can read and not store.
var zeroDate = []byte("0000-00-00")

// overwritten are the roles that a claim overwrites, and whose columns can have a value before it.
func (q *Queue) overwritten() (roles []mapping.Role) {
	marker, _ := q.ClaimMarker()
	for _, role := range q.ClaimRoles() {
		if !q.IsIn(role, marker.Name) {
			roles = append(roles, role)
		}
	}
	return roles
}

// candidateColumns is the number of output columns before the key's.
const candidateColumns = 7

// Overwrites reports whether a claim can overwrite a value of a row.
func (q *Queue) Overwrites() bool { return len(q.overwritten()) > 0 }

// Scan is a part of the rows that can be claimed. The zero value is all of them.
type Scan struct {
	Start   *condition.Start // nil: from the beginning
	Except  []string         // ids of jobs to leave out
	MaxSize int64            // > 0: leave out larger rows, in bytes like Candidate.Size
	Only    []string         // not nil: the only jobs to read, at most MaxItems
}

// LockCandidates locks up to n rows that can be claimed, in the order of claims.
func (q *Queue) LockCandidates(p backends.Policy, n int, scan Scan) *backends.Statement {
	d := q.Dialect
	columns := []string{
		d.ToText(q.contentSize()), q.output(mapping.Attempts, q.textOf), q.output(mapping.Priority, q.textOf), q.output(mapping.CreatedAt, q.millisOf),
		q.output(mapping.ClaimedAt, func(c backends.Column) string { return d.ToText(q.Now(c)) }), d.ToText(d.NowMillis()), d.ToText(d.Fence()),
	}
	columns = append(columns, q.KeyTexts()...)
	for _, c := range q.startOrder {
		columns = append(columns, q.exactText(c.Column))
	}
	for _, role := range q.overwritten() {
		c, _ := q.Column(role)
		columns = append(columns, d.AsText(c))
	}
	if q.Has(mapping.OwnLimit) {
		columns = append(columns, d.ToText(q.AttemptLimit(p.MaxAttempts)))
	}
	return q.lockClaimable(p, n, scan, columns)
}

// lockClaimable locks the rows of LockCandidates and reads the columns.
func (q *Queue) lockClaimable(p backends.Policy, n int, scan Scan, columns []string) *backends.Statement {
	d := q.Dialect
	b := &condition.Builder{Table: q.Table, Args: []any{int64(n), q.Queue}}
	where := q.Claimable(p.MaxAttempts) + " AND NOT " + d.Paused(d.TextArg(2))
	if scan.Start != nil {
		where += " AND " + b.From(q.startOrder, *scan.Start, q.rowValues)
	}
	for some := range slices.Chunk(scan.Except, q.MaxItems()) {
		where += " AND NOT (" + b.Rows(some) + ")"
	}
	if scan.MaxSize > 0 {
		where += fmt.Sprintf(" AND %s <= %d", q.contentSize(), scan.MaxSize)
	}
	if scan.Only != nil {
		where += " AND " + b.Rows(scan.Only)
	}
	var text string
	if h, ok := d.(backends.HintDialect); ok {
		text = h.SelectClaim(query.Columns(columns...), q.SQLName, where, q.OrderBy(), 1, q.claimIndex, q.sought)
	} else {
		text = d.SelectLocked(query.Columns(columns...), q.SQLName, where, q.OrderBy(), 1, true)
	}
	return &backends.Statement{Text: text, Args: b.Args}
}

// CandidateItems locks the rows of LockCandidates too, but reads only their ids: a value in another column can be one that
// the database refuses to convert.
func (q *Queue) CandidateItems(p backends.Policy, n int, scan Scan, f func(item string)) *backends.Statement {
	st := q.lockClaimable(p, n, scan, q.KeyTexts())
	st.Row = q.ReadItems(f)
	return st
}

// exactText is the column's value as text, or NULL if the text wouldn't find it.
func (q *Queue) exactText(c backends.Column) string {
	if u, ok := q.Dialect.(backends.UntypedDialect); ok {
		return "CASE WHEN " + u.IsExact(c) + " THEN " + q.Dialect.AsText(c) + " END"
	}
	return q.Dialect.AsText(c)
}

// readStart reads the columns of exactText. nil: one of them is NULL, or a date without a year, which servers refuse.
func readStart(cells [][]byte) (at []string) {
	for _, cell := range cells {
		if cell == nil || strings.HasPrefix(string(cell), "0000-") {
			return nil
		}
		at = append(at, string(cell))
	}
	return at
}

// Candidates is LockCandidates with its answer appended to rows.
func (q *Queue) Candidates(p backends.Policy, n int, scan Scan, rows *[]*Candidate) *backends.Statement {
	st := q.LockCandidates(p, n, scan)
	overwritten := q.overwritten()
	st.Row = func(cells [][]byte) error {
		r := &Candidate{Item: q.Item(cells[candidateColumns:]), claimedAt: string(cells[4]), attempts: query.AnyNumber(cells[1]), priority: query.AnyNumber(cells[2])}
		if len(r.Item) > condition.MaxID {
			return backends.Refused(fmt.Errorf("the row %q of %s cannot be claimed: a job's id is at most %d bytes, with its escapes", r.Item, q.SQLName, condition.MaxID))
		}
		for i, to := range map[int]*int64{0: &r.Size, 3: &r.enqueued, 5: &r.Now, 6: &r.fence} {
			if err := query.Int(cells[i], to); err != nil {
				return backends.Refused(fmt.Errorf("the row %s of %s can't be claimed: %w", r.Item, q.SQLName, err))
			}
		}
		if q.Has(mapping.OwnLimit) {
			r.limit = query.AnyNumber(cells[len(cells)-1])
		}
		rest := cells[candidateColumns+len(q.Key):]
		r.At = readStart(rest[:len(q.startOrder)])
		for i, role := range overwritten {
			if cell := rest[len(q.startOrder)+i]; cell != nil && !bytes.HasPrefix(cell, zeroDate) {
				if r.before == nil {
					r.before = map[mapping.Role]string{}
				}
				r.before[role] = string(cell)
			}
		}
		if cells[3] == nil {
			r.enqueued = r.Now
		}
		if n := len(*rows); n > 0 {
			r.fence = max(r.fence, (*rows)[n-1].fence+1) // some engines give one number to all rows
		}
		*rows = append(*rows, r)
		return nil
	}
	return st
}

// Contents reads what workers get into the candidates.
func (q *Queue) Contents(items []string, byItem map[string]*Candidate) []*backends.Statement {
	if len(items) == 0 || len(q.Payload)+len(q.Headers) == 0 {
		return nil
	}
	columns := q.KeyTexts()
	for _, c := range slices.Concat(q.Payload, q.Headers) {
		columns = append(columns, q.Dialect.AsBytes(c))
	}
	return q.ForItems(items, func(b *condition.Builder, where string) *backends.Statement {
		return &backends.Statement{
			Text: "SELECT " + query.Columns(columns...) + " FROM " + q.SQLName + " WHERE " + where, Args: b.Args,
			Row: func(cells [][]byte) (err error) {
				r := byItem[q.Item(cells)]
				r.Payload, r.Headers, err = q.readContents(cells[len(q.Key):])
				return err
			},
		}
	})
}

// Begin writes the claim of the slot into the candidate's lease. token is what the claim shows in
// the token's column.
func (q *Queue) Begin(r *Candidate, p backends.Policy, slot backends.Slot, token string) {
	l := r.Lease
	l.Now, l.ClaimedAt, l.Fence, l.NotBefore = r.Now, r.Now, max(r.fence, l.Fence+1), 0
	if q.Has(mapping.Attempts) {
		l.Attempts = int(r.attempts)
	}
	l.Attempts++
	l.Limit, l.Backoff, l.BackoffMax = cmp.Or(int(r.limit), p.MaxAttempts), p.Backoff.Milliseconds(), p.BackoffMax.Milliseconds()
	l.Sidecar, l.Number, l.Owner = int64(slot.Token.Sidecar), int64(slot.Token.Number), int64(slot.Token.Sidecar)
	l.Length, l.Deadline = max(slot.Lease, 0).Milliseconds(), 0
	if p.Timeout > 0 {
		l.Deadline = r.Now + p.Timeout.Milliseconds()
	}
	l.SetDue()
	l.Worker = slot.Worker
	l.Shown, l.Before = map[mapping.Role]string{}, r.before
	for _, role := range q.ClaimRoles() {
		switch c, _ := q.Column(role); role {
		case mapping.Worker:
			l.Shown[role] = workerText(c, slot.Worker)
		case mapping.ClaimedAt:
			l.Shown[role] = r.claimedAt
		default:
			l.Shown[role] = token
		}
	}
}

// Job is the candidate as a worker gets it, after Begin.
func (q *Queue) Job(r *Candidate, p backends.Policy, slot backends.Slot) backends.Job {
	l := r.Lease
	return backends.Job{
		ID: r.Item, Handle: l.Handle(), Queue: q.Queue, Token: slot.Token, Payload: r.Payload, Attempt: l.Attempts, MaxAttempts: l.Limit,
		Fence: l.Fence, Priority: int16Of(r.priority), EnqueuedAt: time.UnixMilli(r.enqueued).UTC(),
		Timeout: p.Timeout, Headers: r.Headers, LastError: l.LastError(), Alone: slot.Alone(l.Attempts, l.Limit, l.Losses),
	}
}

func int16Of(n int64) int16 { return int16(max(-32768, min(n, 32767))) }

// workerText is what a claim writes into the worker's column.
func workerText(c backends.Column, worker string) string {
	return mapping.Truncate(c, cmp.Or(worker, "qsidecar"))
}

// NewToken is what a claim shows in the token's column; empty: there is none.
func (q *Queue) NewToken() string {
	switch t := q.Token; {
	case t == nil:
		return ""
	case t.From == t.To && t.Text != "":
		return t.Text
	default:
		return strconv.FormatInt(t.From+rand.Int64N(t.To-t.From+1), 10)
	}
}

// Claim returns the changes that write the claims of the leases into their rows.
func (q *Queue) Claim(leases []*lease.Lease) (all []*Change) {
	for some := range slices.Chunk(leases, min(lease.MaxRows, q.MaxItems())) {
		items := make([]string, len(some))
		for i, l := range some {
			items[i] = l.Item
		}
		u := q.newUpdate()
		u.claim(q, func(role mapping.Role) { u.setShown(role, some) })
		where := condition.WhileRows(u.Rows(items), q.Waiting())
		all = append(all, &Change{Lease: some[0], Rows: int64(len(some)), queue: q, Statement: u.statement(where)})
	}
	return all
}

// claim sets what a claimed row shows. show sets what it shows in a role of the claim.
func (u *update) claim(q *Queue, show func(role mapping.Role)) {
	u.setState(backends.StateClaimed)
	for _, role := range q.ClaimRoles() {
		show(role)
	}
	if c, has := q.Column(mapping.Attempts); has && q.Deliveries {
		u.addAttempts(c, 1)
	}
}
