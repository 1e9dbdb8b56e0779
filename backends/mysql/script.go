package mysql

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// script collects statements that go to the server in one packet.
type script struct {
	sql   strings.Builder
	args  []any
	size  int64 // estimated size of the arguments in the packet
	reads []func(r *result) error
}

// add appends a statement that returns no rows.
func (p *script) add(sql string, args ...any) {
	if p.sql.Len() > 0 {
		p.sql.WriteString(";\n")
	}
	p.sql.WriteString(sql)
	for _, a := range args {
		p.arg(a)
	}
}

// query appends a statement with a result set, which can be empty.
func (p *script) query(read func(r *result) error, sql string, args ...any) {
	p.add(sql, args...)
	p.reads = append(p.reads, read)
}

// each appends a query and calls f for each row.
func (p *script) each(f func(r *result) error, sql string, args ...any) {
	p.query(func(r *result) error {
		for {
			ok, err := r.next()
			if err != nil || !ok {
				return err
			}
			if err := f(r); err != nil {
				return err
			}
		}
	}, sql, args...)
}

// text appends SQL to the last statement.
func (p *script) text(sql string, args ...any) {
	p.sql.WriteString(sql)
	for _, a := range args {
		p.arg(a)
	}
}

func (p *script) arg(a any) {
	switch v := a.(type) {
	case int:
		a = int64(v)
	case instant:
		a = v.sql()
	case []byte:
		p.size += 2 * int64(len(v))
	case string:
		p.size += 2 * int64(len(v))
	}
	p.args = append(p.args, a)
}

func (p *script) bytes() int64 { return int64(p.sql.Len()) + p.size + 24*int64(len(p.args)) }

// list joins numbers with commas, for IN (…) and for functions with many arguments.
func list[T int64 | uint64](numbers []T) string {
	b := make([]byte, 0, 21*len(numbers))
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		if n < 0 {
			b = strconv.AppendInt(b, int64(n), 10)
		} else {
			b = strconv.AppendUint(b, uint64(n), 10)
		}
	}
	return string(b)
}

// marks returns n question marks.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

// rowError is an error of the connection or server that occurred while rows were read.
type rowError struct{ err error }

func (e *rowError) Error() string { return e.err.Error() }

func (r *result) next() (bool, error) {
	if len(r.row) == 0 {
		return false, nil
	}
	err := r.rows.Next(r.row)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, &rowError{err}
	}
	return true, nil
}

func (r *result) null(i int) bool { return r.row[i] == nil }

// int returns a number; NULL is 0.
func (r *result) int(i int) int64 {
	switch v := r.row[i].(type) {
	case nil:
		return 0
	case int64:
		return v
	case uint64:
		return int64(v)
	case []byte:
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			panic(fmt.Sprintf("mysql: column %d should be a number and is %q", i, v)) // a statement of this package is wrong
		}
		return n
	}
	panic(fmt.Sprintf("mysql: column %d should be a number and is %T", i, r.row[i]))
}

// bytes returns a copy of a value; NULL is nil.
func (r *result) bytes(i int) []byte {
	switch v := r.row[i].(type) {
	case []byte:
		return append(make([]byte, 0, len(v)), v...)
	case string:
		return []byte(v)
	}
	return nil
}

// text returns a copy of a text; NULL is empty.
func (r *result) text(i int) string {
	switch v := r.row[i].(type) {
	case []byte:
		return string(v)
	case string:
		return v
	}
	return ""
}

// instant returns a time; NULL is 0.
func (r *result) instant(i int) instant {
	v, ok := r.row[i].([]byte)
	if !ok {
		return 0
	}
	return parseInstant(v)
}

// instant is a time as the tables store it: µs since 1970, UTC. 0 means none.
type instant int64

const instantForm = "2006-01-02 15:04:05.000000"

// sql returns the instant as a DATETIME(6), or NULL.
func (t instant) sql() any {
	if t == 0 {
		return driver.Value(nil)
	}
	return time.UnixMicro(int64(t)).UTC().Format(instantForm)
}

func (t instant) time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(t)).UTC()
}

// after returns the instant that is ms milliseconds later, or 0 if ms is 0 or less.
func (t instant) after(ms int64) instant {
	if ms <= 0 {
		return 0
	}
	return t + instant(ms)*1000
}

// earlier returns the earlier of two instants. 0 means none, so the other one is returned.
func earlier(x, y instant) instant {
	if x == 0 || y != 0 && y < x {
		return y
	}
	return x
}

// parseInstant parses a DATETIME(6) as the server writes it.
func parseInstant(v []byte) instant {
	if len(v) < len("2006-01-02 15:04:05") {
		panic(fmt.Sprintf("mysql: %q should be a time", v))
	}
	n := func(from, to int) (n int) {
		for _, c := range v[from:to] {
			n = 10*n + int(c-'0')
		}
		return n
	}
	micros := 0
	if len(v) > 20 {
		micros = n(20, len(v))
		for range len("2006-01-02 15:04:05.000000") - len(v) {
			micros *= 10
		}
	}
	return instant(time.Date(n(0, 4), time.Month(n(5, 7)), n(8, 10), n(11, 13), n(14, 16), n(17, 19), 1000*micros, time.UTC).UnixMicro())
}
