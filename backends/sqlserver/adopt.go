package sqlserver

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

var _ backends.Adopter = (*Store)(nil)

// lockedOut gives the error of a transaction that waited for another program's row its kind.
func lockedOut(err error) error {
	if slices.Contains(numbers(err), 1222) {
		return &backends.LockedError{Err: errors.New("it was not had within half a second")}
	}
	return err
}

// Do implements backends.SQL.
func (t *tx) Do(ctx context.Context, statements ...*backends.Statement) error {
	said, err := sayAll(statements)
	if err != nil {
		return err
	}
	if t.o.Sidecar != 0 && !t.asked && len(t.o.Queues) == 0 {
		t.ask()
	}
	for _, q := range said {
		t.calls = append(t.calls, q.call)
	}
	if err := t.send(ctx); err != nil {
		return t.s.withoutHints(said, err)
	}
	if err := t.evicted(); err != nil {
		return err
	}
	return said.tell()
}

// Query implements backends.Adopter. If the database has row versions for readers
// (READ_COMMITTED_SNAPSHOT), each statement sees one state of the database. Otherwise it sees
// what a transaction at READ COMMITTED does.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	said, err := sayAll(statements)
	if err != nil {
		return err
	}
	var calls []call
	for _, q := range said {
		calls = append(calls, q.call)
	}
	for len(calls) > 0 {
		n := together(calls)
		if err := s.readBriefly(ctx, s.sql.knowing(calls[:n])); err != nil {
			return err
		}
		some := said[:n]
		if err := some.tell(); err != nil {
			return err
		}
		calls, said = calls[n:], said[n:]
	}
	return nil
}

// readBriefly is read, but it does not wait long for rows that others have locked: without
// row versions that wait has no bound.
func (s *Store) readBriefly(ctx context.Context, calls []call) error {
	brief := append([]call{{piece: s.sql.brief}}, calls...)
	return s.Again(ctx, func(ctx context.Context) error { return lockedOut(s.once(ctx, brief...)) })
}

// saying is a statement of package adopted in the form in which it is sent, and its answer.
type saying struct {
	call
	st      *backends.Statement
	matched int64
	rows    [][][]byte
}

type sayings []*saying

// tell passes the answers on, after all have come: if the batch is retried, the statements
// get them once.
func (all sayings) tell() error {
	for _, q := range all {
		q.st.Matched = q.matched
		if q.st.Row == nil {
			continue
		}
		for _, row := range q.rows {
			if err := q.st.Row(row); err != nil {
				return err
			}
		}
	}
	return nil
}

func sayAll(statements []*backends.Statement) (all sayings, err error) {
	for i, st := range statements {
		q, err := say(i+1, st)
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return all, nil
}

// say makes a piece of a statement, the n-th of a batch.
func say(n int, st *backends.Statement) (*saying, error) {
	p := &piece{name: "a" + strconv.Itoa(n), sets: 1, adopted: true}
	q := &saying{call: call{piece: p}, st: st}
	text, key, err := q.marked(st)
	if err != nil {
		return nil, err
	}
	collect := each(func(rows *sql.Rows) error { return q.collect(rows) })
	if strings.HasPrefix(text, "SELECT ") {
		p.text = text + ";"
		q.read = []reader{func(rows *sql.Rows) error {
			q.rows = nil
			err := collect(rows)
			q.matched = int64(len(q.rows))
			return err
		}}
		return q, nil
	}
	p.text = "SET @wrote = @wrote + 1;\n" + text + ";\nSELECT @@ROWCOUNT AS matched;"
	q.read = []reader{func(rows *sql.Rows) error {
		q.rows = nil
		return one(&q.matched)(rows)
	}}
	if key {
		p.sets = 2
		p.text = "DECLARE @" + p.name + "_key TABLE (id nvarchar(max) NULL);\n" + p.text + "\nSELECT k.id FROM @" + p.name + "_key AS k;"
		q.read = append(q.read, collect)
	}
	return q, nil
}

// marked replaces the marks in a Dialect's text by parameters. key: the statement answers
// with a key.
func (q *saying) marked(st *backends.Statement) (text string, key bool, err error) {
	var b strings.Builder
	for i, part := range strings.Split(st.Text, "\x00") {
		if i%2 == 0 {
			b.WriteString(part)
			continue
		}
		letter, rest := part[:1], part[1:]
		if letter == markKey {
			fmt.Fprintf(&b, "OUTPUT %s INTO @%s_key", rest, q.name)
			key = true
			continue
		}
		rest, around, list := strings.Cut(rest, "\x02")
		n, err := strconv.Atoi(rest)
		if err != nil || n < 1 || n > len(st.Args) {
			return "", false, fmt.Errorf("sqlserver: a statement has %d arguments, and names number %s", len(st.Args), rest)
		}
		if list {
			if err := q.list(&b, n, st.Args[n-1], around); err != nil {
				return "", false, err
			}
			continue
		}
		name := q.name + "_" + rest
		if !slices.ContainsFunc(q.params, func(p param) bool { return p.name == name }) {
			kind, value, err := argument(letter, st.Args[n-1])
			if err != nil {
				return "", false, err
			}
			q.params, q.args = append(q.params, param{name, kind}), append(q.args, value)
		}
		b.WriteString("@" + name)
	}
	return b.String(), key, nil
}

// few is how many values of a list have a parameter each. The server then finds each row by
// its key, and meets no row that others have locked. For the values of a document it can
// choose to scan.
const few = 64

// list writes a list's values. It repeats the last value up to a power of two, so that few
// texts of statements exist.
func (q *saying) list(b *strings.Builder, n int, a any, around string) error {
	before, after, _ := strings.Cut(around, "\x02")
	all, ok := a.([]string)
	if !ok {
		return fmt.Errorf("sqlserver: argument %d of a statement is a %T, and no list", n, a)
	}
	name := fmt.Sprintf("%s_%d", q.name, n)
	known := slices.ContainsFunc(q.params, func(p param) bool { return p.name == name || p.name == name+"_1" })
	switch {
	case len(all) == 0:
		b.WriteString("NULL")
		return nil
	case len(all) > few:
		if !known {
			document, err := json.Marshal(all)
			if err != nil {
				return err
			}
			q.params, q.args = append(q.params, param{name, "nvarchar(max)"}), append(q.args, mssql.NVarCharMax(document))
		}
		b.WriteString("SELECT " + before + "v.value" + after + " FROM OPENJSON(@" + name + ") AS v")
		return nil
	}
	size := 1
	for size < len(all) {
		size *= 2
	}
	for i := range size {
		one := fmt.Sprintf("%s_%d", name, i+1)
		if !known {
			kind, value, err := argument(markText, all[min(i, len(all)-1)])
			if err != nil {
				return err
			}
			q.params, q.args = append(q.params, param{one, kind}), append(q.args, value)
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(before + "@" + one + after)
	}
	return nil
}

// argument is an argument's type and value. A text that fits is nvarchar(4000): for
// nvarchar(max) the server seeks in no index.
func argument(letter string, a any) (kind string, value any, err error) {
	switch v := a.(type) {
	case nil:
		switch letter { // Babelfish refuses a NULL without a type
		case markNumber:
			return "bigint", sql.NullInt64{}, nil
		case markBytes:
			return "varbinary(max)", []byte(nil), nil
		case markText:
			return "nvarchar(4000)", sql.NullString{}, nil
		}
	case int64:
		if letter == markNumber {
			return "bigint", v, nil
		}
	case []byte:
		if letter == markBytes {
			return "varbinary(max)", blob(v).bytes(), nil
		}
	case string:
		switch {
		case letter == markBytes:
			return "varbinary(max)", blob(v).bytes(), nil
		case letter != markText:
		case !utf8.ValidString(v): // the driver would change it without an error
			return "", nil, backends.Refused(errors.New("a text for a column of texts is no valid UTF-8"))
		case len(v) <= 4000:
			return "nvarchar(4000)", mssql.NVarCharMax(v), nil
		default:
			return "nvarchar(max)", mssql.NVarCharMax(v), nil
		}
	}
	return "", nil, fmt.Errorf("sqlserver: an argument is a %T, where a statement has the mark %q", a, letter)
}

// collect reads a row, each cell as a text or bytes. NULL is nil.
func (q *saying) collect(rows *sql.Rows) error {
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	cells, raw, to := make([][]byte, len(columns)), make([]any, len(columns)), make([]any, len(columns))
	for i := range raw {
		to[i] = &raw[i]
	}
	if err := rows.Scan(to...); err != nil {
		return err
	}
	for i, v := range raw {
		switch v := v.(type) {
		case nil:
		case []byte:
			cells[i] = append([]byte{}, v...)
		case string:
			cells[i] = []byte(v)
		default:
			cells[i] = fmt.Append(nil, v)
		}
	}
	q.rows = append(q.rows, cells)
	return nil
}

// knowing adds the pieces that declare what the texts of calls refer to.
func (s *statements) knowing(calls []call) []call {
	names := func(word string) bool {
		return slices.ContainsFunc(calls, func(c call) bool { return c.adopted && strings.Contains(c.text, word) })
	}
	var before []call
	if names("@adopt_zone") || names("@adopt_here") {
		before = append(before, call{piece: s.zone})
	}
	if names("@adopt_line") {
		before = append(before, call{piece: s.line})
	}
	return append(before, calls...)
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return batch.QueuesOfJobs(ctx, s, "bigint", leases)
}
