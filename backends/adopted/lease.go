package adopted

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	leasesTable = "qsidecar_leases"

	// never is the not_before of a dead job.
	never = math.MaxInt64

	// maxFailures is how many failures of a job are remembered, the latest.
	maxFailures = 50
)

// lease is a row of the table of leases: a claim, and what there is to remember of
// a job until it is settled. Times are milliseconds since 1970; 0 is none.
type lease struct {
	id          int64
	queue, item string
	fence       int64
	attempts    int // charged deliveries
	losses      int
	notBefore   int64

	limit               int
	backoff, backoffMax int64

	host, number    int64 // the token; 0: there is no claim
	owner           int64
	leaseMS         int64 // 0: a session lease
	deadline, dueAt int64
	claimedAt       int64
	worker          string
	shown           map[Role]string // what the claim wrote into the job's row
	failures        []failure
	now             int64 // when it was read
	changed         int64 // when it was written
	stored          bool
	held            bool // its row is locked by us, and shows nothing
}

// failure is one, as it is kept.
type failure struct {
	Attempt int            `json:"attempt"`
	Cause   backends.Cause `json:"cause"`
	Message string         `json:"message,omitempty"`
	At      int64          `json:"at"`
}

// handle is what Lease.Job is for an adopted job. No id of a managed one begins
// with a letter.
func handle(id int64) string { return "a" + strconv.FormatInt(id, 10) }

func handled(job string) (id int64, ok bool) {
	digits, ok := strings.CutPrefix(job, "a")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseInt(digits, 10, 64)
	return id, err == nil && id > 0 && handle(id) == job
}

// newID is a number that no other row has.
func newID() int64 {
	for {
		var raw [8]byte
		rand.Read(raw[:]) // never fails
		if id := int64(binary.BigEndian.Uint64(raw[:]) >> 1); id > 0 {
			return id
		}
	}
}

// standing is what the rules of attempts ask for.
func (l *lease) standing() backends.AttemptState {
	return backends.AttemptState{
		Attempts: l.attempts, Limit: l.limit, Losses: l.losses,
		Backoff: time.Duration(l.backoff) * time.Millisecond, BackoffMax: time.Duration(l.backoffMax) * time.Millisecond,
	}
}

// unclaimed takes the claim from it.
func (l *lease) unclaimed() {
	l.host, l.number, l.owner, l.leaseMS, l.deadline, l.dueAt, l.claimedAt = 0, 0, 0, 0, 0, 0, 0
	l.worker, l.shown = "", nil
}

// due is when somebody has to look at it: the earlier of the lease's end and the
// run's deadline.
func (l *lease) due(now int64) int64 {
	if l.leaseMS == 0 {
		return l.deadline
	}
	end := now + l.leaseMS
	if l.deadline > 0 && l.deadline < end {
		return l.deadline
	}
	return end
}

// failed remembers a failure.
func (l *lease) failed(f failure) {
	l.failures = append(l.failures, f)
	if extra := len(l.failures) - maxFailures; extra > 0 {
		l.failures = l.failures[extra:]
	}
}

// lastError is the message of the last failure, or what stands for it.
func (l *lease) lastError() string {
	if len(l.failures) == 0 {
		return ""
	}
	f := l.failures[len(l.failures)-1]
	if f.Message == "" {
		return string(f.Cause)
	}
	return f.Message
}

// idle: there is nothing to remember.
func (l *lease) idle() bool {
	return l.host == 0 && l.attempts == 0 && l.losses == 0 && l.notBefore == 0 && len(l.failures) == 0
}

// leaseNumbers and leaseTexts are the table's columns.
var (
	leaseNumbers = []string{
		"id", "fence", "attempts", "losses", "not_before", "claim_max", "backoff_ms", "backoff_max_ms",
		"token_host", "token_number", "owner", "lease_ms", "deadline", "due_at", "claimed_at", "changed_at",
	}
	leaseTexts = []string{"queue", "item", "worker", "shown", "failures"}
)

// leaseColumns is what a query for leases answers with.
func leaseColumns(g backends.Dialect) string {
	var all []string
	for _, c := range slices.Concat(leaseNumbers, leaseTexts) {
		all = append(all, g.ToText("l."+c))
	}
	return outputs(append(all, g.ToText(g.NowMillis()))...)
}

// recall is a query that locks the leases which the conditions find by a key. past: where a
// HintDialect can say so, it reads past those that others have locked.
func recall(g backends.Dialect, where, order string, past bool) string {
	if h, ok := g.(backends.HintDialect); ok {
		return h.SelectByKey(leaseColumns(g), g.SidecarTable(leasesTable)+" l", where, order, past)
	}
	return g.SelectLocked(leaseColumns(g), g.SidecarTable(leasesTable)+" l", where, order, 0, false)
}

// outputs are what a query selects, under names of their own: an ORDER BY means the
// table's columns, and not texts of them.
func outputs(columns ...string) string {
	named := make([]string, len(columns))
	for i, c := range columns {
		named[i] = fmt.Sprintf("%s AS qsidecar_%d", c, i+1)
	}
	return strings.Join(named, ", ")
}

// readLease reads a row of such a query.
func readLease(cells [][]byte) (*lease, error) {
	l := &lease{stored: true}
	var limit, attempts, losses int64
	for i, to := range []*int64{
		&l.id, &l.fence, &attempts, &losses, &l.notBefore, &limit, &l.backoff, &l.backoffMax,
		&l.host, &l.number, &l.owner, &l.leaseMS, &l.deadline, &l.dueAt, &l.claimedAt, &l.changed,
	} {
		if err := number(cells[i], to); err != nil {
			return nil, fmt.Errorf("%s, column %s: %w", leasesTable, leaseNumbers[i], err)
		}
	}
	cells = cells[len(leaseNumbers):]
	l.attempts, l.losses, l.limit = int(attempts), int(losses), int(limit)
	l.queue, l.item, l.worker = string(cells[0]), string(cells[1]), string(cells[2])
	for i, to := range map[int]any{3: &l.shown, 4: &l.failures} {
		if cells[i] == nil {
			continue
		}
		if err := json.Unmarshal(cells[i], to); err != nil {
			return nil, fmt.Errorf("%s, column %s of row %d: %w", leasesTable, leaseTexts[i], l.id, err)
		}
	}
	return l, number(cells[5], &l.now)
}

// number reads one; NULL is 0.
func number(cell []byte, to *int64) (err error) {
	*to = 0
	if cell != nil {
		*to, err = strconv.ParseInt(string(cell), 10, 64)
	}
	return err
}

// counted reads a number of the owner's, whose column may hold more than whole numbers: a
// fraction is cut, and what is no number (NaN; on SQLite, anything) is 0. One row must not
// keep others from being claimed.
func counted(cell []byte, to *int64) {
	if number(cell, to) == nil {
		return
	}
	f, err := strconv.ParseFloat(string(cell), 64)
	if math.IsNaN(f) || err != nil && !errors.Is(err, strconv.ErrRange) {
		f = 0
	}
	*to = int64(max(-1<<53, min(f, 1<<53)))
}

// values are the row's, in the order of its columns.
func (l *lease) values() ([]any, error) {
	var shown, failures, worker any
	if len(l.shown) > 0 {
		text, err := json.Marshal(l.shown)
		if err != nil {
			return nil, err
		}
		shown = string(text)
	}
	if len(l.failures) > 0 {
		text, err := json.Marshal(l.failures)
		if err != nil {
			return nil, err
		}
		failures = string(text)
	}
	if l.worker != "" {
		worker = l.worker
	}
	return []any{
		l.id, l.fence, int64(l.attempts), int64(l.losses), orNull(l.notBefore), int64(l.limit), l.backoff, l.backoffMax,
		orNull(l.host), orNull(l.number), orNull(l.owner), orNull(l.leaseMS), orNull(l.deadline), orNull(l.dueAt), orNull(l.claimedAt), l.now,
		l.queue, l.item, worker, shown, failures,
	}, nil
}

// together is how many claims one statement writes at most.
const together = 64

// sizes are how many new rows a statement stores: the texts of statements are few.
var sizes = []int{together, 16, 4, 1}

// save writes the rows as they are now, and removes those that are of no use any
// more.
func save(g backends.Dialect, leases []*lease) (all []*backends.Statement, err error) {
	var fresh []*lease
	for _, l := range leases {
		if l.idle() {
			all = append(all, l.remove(g))
			continue
		}
		if !l.stored {
			fresh = append(fresh, l)
			continue
		}
		args, err := l.values()
		if err != nil {
			return nil, err
		}
		all = append(all, &backends.Statement{Text: updateText(g), Args: args})
	}
	for len(fresh) > 0 {
		n := sizes[slices.IndexFunc(sizes, func(n int) bool { return n <= len(fresh) })]
		st := &backends.Statement{Text: insertText(g, n)}
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

// places are the arguments of a row, the first of which is n.
func places(g backends.Dialect, n int) (all []string) {
	for range leaseNumbers {
		all = append(all, g.IntArg(n+len(all)))
	}
	for range leaseTexts {
		all = append(all, g.TextArg(n+len(all)))
	}
	return all
}

// updateText updates the row of an id.
func updateText(g backends.Dialect) string {
	var sets []string
	values := places(g, 1)
	for i, c := range slices.Concat(leaseNumbers, leaseTexts) {
		sets = append(sets, c+" = "+values[i])
	}
	return "UPDATE " + g.SidecarTable(leasesTable) + " SET " + strings.Join(sets[1:], ", ") + " WHERE " + sets[0]
}

// insertText stores n rows.
func insertText(g backends.Dialect, n int) string {
	columns := slices.Concat(leaseNumbers, leaseTexts)
	var rows []string
	for i := range n {
		rows = append(rows, "("+strings.Join(places(g, i*len(columns)+1), ", ")+")")
	}
	return "INSERT INTO " + g.SidecarTable(leasesTable) + " (" + strings.Join(columns, ", ") + ") VALUES " + strings.Join(rows, ", ")
}

func (l *lease) remove(g backends.Dialect) *backends.Statement {
	return &backends.Statement{Text: "DELETE FROM " + g.SidecarTable(leasesTable) + " WHERE id = " + g.IntArg(1), Args: []any{l.id}}
}

func orNull(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}
