package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/sqlserver/internal/dialect"
)

var _ backends.Adopter = (*Store)(nil)

// Dialect implements backends.Adopter.
func (s *Store) Dialect() backends.Dialect {
	s.hintless.Store(false)
	return dialect.Dialect{Schema: s.o.Schema, UTF8: s.server.updated() || s.server.major >= 15, Hintless: &s.hintless}
}

// hintNumbers are the errors for hints that the server cannot follow: the index does not
// exist, or no plan satisfies them.
var hintNumbers = []int32{307, 308, 315, 8622}

// withoutHints turns hints off in the statements of adopted tables, if the server refused
// one. A reload describes the tables again and turns hints on.
func (s *Store) withoutHints(queries preparedAll, err error) error {
	hinted := slices.ContainsFunc(queries, func(q *prepared) bool {
		return strings.Contains(q.text, "FORCESEEK") || strings.Contains(q.text, "WITH (INDEX ")
	})
	if !hinted || !slices.ContainsFunc(numbers(err), func(n int32) bool { return slices.Contains(hintNumbers, n) }) {
		return err
	}
	if !s.hintless.Swap(true) {
		s.log.Warn("index of an adopted table missing", "event", "adopted_index_missing", "address", s.place, "error", err)
	}
	return &againError{err.Error()}
}

// lockedOut adds the kind to the error of a transaction that waited for another program's row or key.
func lockedOut(err error) error {
	if slices.Contains(numbers(err), 1222) {
		return &backends.LockedError{Err: errors.New("the lock was not released in time")}
	}
	return err
}

// Do implements backends.SQL.
func (t *tx) Do(ctx context.Context, statements ...*backends.Statement) error {
	queries, err := prepareAll(statements)
	if err != nil {
		return err
	}
	if t.o.Sidecar != 0 && !t.asked && len(t.o.Queues) == 0 {
		t.ask()
	}
	for _, q := range queries {
		t.calls = append(t.calls, q.call)
	}
	if err := t.send(ctx); err != nil {
		return t.s.withoutHints(queries, err)
	}
	if err := t.evicted(); err != nil {
		return err
	}
	return queries.report()
}

// Query implements backends.Adopter. If the database has row versions for readers
// (READ_COMMITTED_SNAPSHOT), each statement sees one state of the database. Otherwise it sees
// what a transaction at READ COMMITTED does.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	queries, err := prepareAll(statements)
	if err != nil {
		return err
	}
	var calls []call
	for _, q := range queries {
		calls = append(calls, q.call)
	}
	for len(calls) > 0 {
		n := together(calls)
		if err := s.readBriefly(ctx, s.sql.knowing(calls[:n])); err != nil {
			return err
		}
		some := queries[:n]
		if err := some.report(); err != nil {
			return err
		}
		calls, queries = calls[n:], queries[n:]
	}
	return nil
}

// readBriefly is read, but it does not wait long for rows that others have locked: without
// row versions that wait has no bound.
func (s *Store) readBriefly(ctx context.Context, calls []call) error {
	brief := append([]call{{piece: s.sql.brief}}, calls...)
	return s.Again(ctx, func(ctx context.Context) error { return lockedOut(s.once(ctx, brief...)) })
}

// prepared is a statement of package adopted in the form in which it is sent, and its result.
type prepared struct {
	call
	st      *backends.Statement
	matched int64
	rows    [][][]byte
}

type preparedAll []*prepared

// report passes the results on after all have arrived: if the batch is retried, the statements still get them only
// once.
func (p preparedAll) report() error {
	for _, q := range p {
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

func prepareAll(statements []*backends.Statement) (all preparedAll, err error) {
	for i, st := range statements {
		q, err := prepare(i+1, st)
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return all, nil
}

// `say` compiles the n-th statement of a batch to a piece.
func prepare(n int, st *backends.Statement) (*prepared, error) {
	p := &piece{name: "a" + strconv.Itoa(n), sets: 1, adopted: true}
	q := &prepared{call: call{piece: p}, st: st}
	c, err := dialect.Compile(p.name, st)
	if err != nil {
		return nil, err
	}
	for _, x := range c.Params {
		p.params, q.args = append(p.params, param{x.Name, x.Kind}), append(q.args, x.Value)
	}
	collect := each(func(rows *sql.Rows) error { return q.collect(rows) })
	if c.Query {
		p.text = c.Text + ";"
		q.read = []reader{func(rows *sql.Rows) error {
			q.rows = nil
			err := collect(rows)
			q.matched = int64(len(q.rows))
			return err
		}}
		return q, nil
	}
	p.text = "SET @wrote = @wrote + 1;\n" + c.Text + ";\nSELECT @@ROWCOUNT AS matched;"
	q.read = []reader{func(rows *sql.Rows) error {
		q.rows = nil
		return one(&q.matched)(rows)
	}}
	if c.Key {
		p.sets = 2
		p.text = "DECLARE @" + p.name + "_key TABLE (id nvarchar(max) NULL);\n" + p.text + "\nSELECT k.id FROM @" + p.name + "_key AS k;"
		q.read = append(q.read, collect)
	}
	return q, nil
}

// collect reads a row, each cell as a text or bytes. NULL is nil.
func (p *prepared) collect(rows *sql.Rows) error {
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
	p.rows = append(p.rows, cells)
	return nil
}

// knowing adds the pieces that declare the names that the texts of calls refer to.
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
	return core.QueuesOfJobs(ctx, s, "bigint", leases)
}
