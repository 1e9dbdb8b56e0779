package session

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
)

// Result holds the rows of one statement. The values are in the driver's buffer, and valid until the next
// row.
type Result struct {
	rows driver.Rows
	row  []driver.Value
}

// rowError is an error of the connection or server that occurred while rows were read.
type rowError struct{ err error }

func (e *rowError) Error() string { return e.err.Error() }

// Next reads the next row. It returns false after the last one.
func (r *Result) Next() (bool, error) {
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

// Null reports whether a value is NULL.
func (r *Result) Null(i int) bool { return r.row[i] == nil }

// Int returns a number; NULL is 0.
func (r *Result) Int(i int) int64 {
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

// Bytes returns a copy of a value; NULL is nil.
func (r *Result) Bytes(i int) []byte {
	switch v := r.row[i].(type) {
	case []byte:
		return append(make([]byte, 0, len(v)), v...)
	case string:
		return []byte(v)
	}
	return nil
}

// Text returns a copy of a text; NULL is empty.
func (r *Result) Text(i int) string {
	switch v := r.row[i].(type) {
	case []byte:
		return string(v)
	case string:
		return v
	}
	return ""
}

// Instant returns a time; NULL is 0.
func (r *Result) Instant(i int) Instant {
	v, ok := r.row[i].([]byte)
	if !ok {
		return 0
	}
	return parseInstant(v)
}

// Optional returns a number; NULL is nil.
func (r *Result) Optional(i int) *int64 {
	if r.Null(i) {
		return nil
	}
	n := r.Int(i)
	return &n
}

// Width returns the number of columns.
func (r *Result) Width() int { return len(r.row) }

// ReadInto passes rows to st.Row, without their first columns. It calls seen for each row.
func (r *Result) ReadInto(first int, st *backends.Statement, seen func()) error {
	var wrong error
	for {
		ok, err := r.Next()
		if err != nil || !ok {
			return errors.Join(err, wrong)
		}
		seen()
		if wrong != nil || st.Row == nil || len(r.row) == first {
			continue // the remaining rows must be read too
		}
		cells := make([][]byte, len(r.row)-first)
		for i := range cells {
			cells[i] = r.Cell(first + i)
		}
		wrong = st.Row(cells)
	}
}

// Cell returns a value as text; NULL is nil.
func (r *Result) Cell(i int) []byte {
	switch v := r.row[i].(type) {
	case nil:
		return nil
	case []byte:
		return v
	default:
		return fmt.Append(nil, v)
	}
}
