package mysql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

var _ backends.Adopter = (*Store)(nil)

// rowWait is how long a commit waits for locks of other programs: on rows, and on keys that an open
// transaction has stored. A write in a batch of its own waits for lockWait: see
// backends.Batch.WaitForLocks. The server counts in whole seconds.
const rowWait = time.Second

// requireAlive makes the transaction fail with backends.ErrEvicted if the sidecar is not alive.
func (t *tx) requireAlive(host backends.Identity) {
	t.query(func(r *result) error {
		ok, err := r.next()
		if err == nil && !ok {
			err = backends.ErrEvicted
		}
		return err
	}, "SELECT 1 FROM qsidecar_hosts WHERE host = ? AND NOT dead AND NOT has_left", int64(host))
}

// lockedOut converts the error of a transaction that waited for another program's lock on a row or key to
// a backends.LockedError.
func lockedOut(o core.TxOptions, err error) error {
	if o.LimitsLockWaits() && isCode(err, codeLockWait, codeNoWait) {
		return &backends.LockedError{Err: errors.New("the lock was not free in time")}
	}
	return err
}

// Do implements backends.SQL.
func (t *tx) Do(ctx context.Context, statements ...*backends.Statement) error {
	for _, st := range statements {
		t.makeRoom(sizeOf(st))
		if err := t.say(st); err != nil {
			return err
		}
	}
	return t.Flush(ctx)
}

// sizeOf estimates how many bytes a statement takes in a packet.
func sizeOf(st *backends.Statement) int64 {
	n := 2 * len(st.Text)
	for _, a := range st.Args {
		switch a := a.(type) {
		case string:
			n += 2 * len(a)
		case []byte:
			n += 2 * len(a)
		case []string:
			for _, text := range a {
				n += 4*len(text) + 100
			}
		}
	}
	return int64(n)
}

// Query implements backends.Adopter.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	return s.read(ctx, func(ctx context.Context, t *tx) error {
		t.add("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
		t.add(begin)
		for _, st := range statements {
			if err := t.say(st); err != nil {
				return err
			}
		}
		t.add("COMMIT")
		err := t.send(ctx)
		if err != nil {
			t.rollback(ctx)
		}
		return err
	})
}

// Marks stand for arguments in the SQL of a backends.Dialect. Each is between two NULs: a letter, and the
// number of the argument. The mark of a list also has the text before and after each value.
const (
	markValue   = "v"
	markNumber  = "n" // whole numbers, which are passed as texts
	markList    = "l"
	markNumbers = "m"
	markAnswer  = "\x00a\x00" // before the expression whose value an INSERT returns

	// hidden stands for a question mark that is not a placeholder; see script.plain. Names and texts of a
	// backends.Dialect contain no NUL.
	hidden = "\x00\x01"
)

func mark(letter string, n int, around ...string) string {
	return "\x00" + letter + strings.Join(append([]string{strconv.Itoa(n)}, around...), "\x02") + "\x00"
}

// `say` queues one statement of a package that uses backends.Dialect: it replaces the marks, and passes rows to st.Row.
func (t *tx) say(st *backends.Statement) error {
	text, answer, _ := strings.Cut(st.Text, markAnswer)
	rows := strings.HasPrefix(text, "SELECT ")
	st.Matched = 0
	t.add("")
	if err := t.put(text, st.Args); err != nil {
		return err
	}
	if rows {
		t.reads = append(t.reads, func(r *result) error { return r.texts(0, st, func() { st.Matched++ }) })
		return nil
	}
	t.wrote = true
	t.add("SELECT ROW_COUNT()")
	if answer != "" {
		t.text(", ")
		if err := t.put(answer, st.Args); err != nil {
			return err
		}
	}
	t.reads = append(t.reads, func(r *result) error { return r.texts(1, st, func() { st.Matched = max(r.int(0), 0) }) })
	return nil
}

// texts passes rows to st.Row, without their first columns. It calls seen for each row.
func (r *result) texts(first int, st *backends.Statement, seen func()) error {
	var wrong error
	for {
		ok, err := r.next()
		if err != nil || !ok {
			return errors.Join(err, wrong)
		}
		seen()
		if wrong != nil || st.Row == nil || len(r.row) == first {
			continue // the remaining rows must be read too
		}
		cells := make([][]byte, len(r.row)-first)
		for i := range cells {
			cells[i] = r.cell(first + i)
		}
		wrong = st.Row(cells)
	}
}

// cell returns a value as text; NULL is nil.
func (r *result) cell(i int) []byte {
	switch v := r.row[i].(type) {
	case nil:
		return nil
	case []byte:
		return v
	default:
		return fmt.Append(nil, v)
	}
}

// put appends SQL of a backends.Dialect to the last statement, with arguments in place of marks.
func (t *tx) put(text string, args []any) error {
	for i, part := range strings.Split(text, "\x00") {
		if i%2 == 0 {
			t.text(strings.ReplaceAll(part, "?", hidden))
			continue
		}
		fields := strings.Split(part[1:], "\x02")
		n, err := strconv.Atoi(fields[0])
		if err != nil || n < 1 || n > len(args) {
			return fmt.Errorf("%w: a statement has %d arguments, and names number %s", errOwn, len(args), fields[0])
		}
		letter := part[:1]
		all, list := args[n-1].([]string)
		if list != (letter == markList || letter == markNumbers) {
			return fmt.Errorf("%w: argument %d of a statement is a %T", errOwn, n, args[n-1])
		}
		if list {
			t.list(letter, all, fields[1:])
		} else {
			t.value(letter, args[n-1])
		}
	}
	return nil
}

func (t *tx) value(letter string, a any) {
	if text, ok := a.(string); ok && letter == markNumber && digits.MatchString(text) {
		t.text(text)
		return
	}
	t.text("?", a)
}

// list appends values. It leaves out values of a list of numbers that are not numbers.
func (t *tx) list(letter string, all, around []string) {
	before, after := "", ""
	if len(around) == 2 {
		before, after = around[0], around[1]
	}
	comma := ""
	for _, text := range all {
		switch {
		case letter == markList:
			t.text(comma+before+"?"+after, text)
		case digits.MatchString(text):
			t.text(comma + text)
		default:
			continue
		}
		comma = ", "
	}
	if comma == "" {
		t.text("NULL")
	}
}

// plain returns the SQL and arguments for the driver. If the SQL contains hidden question marks, plain
// writes the arguments into the text, because the driver would take each question mark for an argument.
func (p *script) plain() (sql string, args []any) {
	sql = p.sql.String()
	if !strings.Contains(sql, hidden) {
		return sql, p.args
	}
	var b strings.Builder
	for _, a := range p.args {
		before, after, _ := strings.Cut(sql, "?")
		b.WriteString(strings.ReplaceAll(before, hidden, "?"))
		switch v := a.(type) {
		case nil:
			b.WriteString("NULL")
		case []byte:
			if v == nil {
				b.WriteString("NULL")
			} else {
				fmt.Fprintf(&b, "x'%x'", v)
			}
		case string:
			b.WriteString(quoteText(v))
		default: // numbers
			fmt.Fprint(&b, v)
		}
		sql = after
	}
	b.WriteString(strings.ReplaceAll(sql, hidden, "?"))
	return b.String(), nil
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return core.QueuesOfJobs(ctx, s, "bigint", leases)
}
