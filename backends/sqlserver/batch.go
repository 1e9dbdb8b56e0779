package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"
)

// call is a piece with its arguments, in the order of its parameters, and the readers of its
// result sets. A set without a reader is skipped.
type call struct {
	*piece
	args []any
	read []reader
}

// reader goes through one result set, to its end.
type reader func(rows *sql.Rows) error

// querier is a pool or one connection of it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// batch is the text of the calls as it is sent, and the declarations of their parameters. A
// batch that does not need the clock does not use this package's own tables.
func (s *statements) batch(calls []call) (text, declarations string) {
	var b, d strings.Builder
	if slices.ContainsFunc(calls, func(c call) bool { return !c.adopted || strings.Contains(c.text, "@now") }) {
		b.WriteString(s.head)
	} else {
		b.WriteString(s.settings)
	}
	for _, c := range calls {
		b.WriteString("\n")
		b.WriteString(c.text)
		for _, p := range c.params {
			if d.Len() > 0 {
				d.WriteString(", ")
			}
			d.WriteString("@" + p.name + " " + p.kind)
		}
	}
	return b.String(), d.String()
}

// carryOut sends a batch and reads its results. It calls sp_executesql with its own declarations: the driver would
// declare parameters by the lengths of their values, and the server would then create a plan for nearly every batch.
// An error of a reader counts only if all results arrived. Otherwise the error is the server's, or the broken
// connection.
func (s *statements) carryOut(ctx context.Context, on querier, calls []call) (err error) {
	text, declarations := s.batch(calls)
	args := []any{mssql.NVarCharMax(text)}
	if declarations != "" {
		args = append(args, mssql.NVarCharMax(declarations))
	}
	for _, c := range calls {
		if len(c.args) != len(c.params) || len(c.read) > c.sets {
			return fmt.Errorf("sqlserver: %s has %d parameters and %d sets, and got %d and %d", c.name, len(c.params), c.sets, len(c.args), len(c.read))
		}
		for i, p := range c.params {
			args = append(args, sql.Named(p.name, c.args[i]))
		}
	}
	rows, err := on.QueryContext(ctx, "sp_executesql", args...)
	if err != nil {
		return err
	}
	defer func() {
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	wrong := readAll(rows, calls)
	if err := rows.Err(); err != nil {
		return err
	}
	return wrong
}

// readAll reads all result sets, to the end of the last.
func readAll(rows *sql.Rows, calls []call) (wrong error) {
	note := func(err error) {
		if wrong == nil {
			wrong = err
		}
	}
	first := true
	for _, c := range calls {
		for n := range c.sets {
			if !first && !rows.NextResultSet() {
				note(fmt.Errorf("sqlserver: %s gave %d result sets, not %d", c.name, n, c.sets))
				return wrong
			}
			first = false
			if n < len(c.read) && c.read[n] != nil {
				note(c.read[n](rows))
			}
			for rows.Next() { // the remaining rows, and errors that the server sends after them
			}
		}
	}
	for rows.NextResultSet() {
		note(fmt.Errorf("sqlserver: %s gave more result sets than %d", calls[len(calls)-1].name, calls[len(calls)-1].sets))
		for rows.Next() {
		}
	}
	return wrong
}

// each returns a reader that calls f for each row.
func each(f func(rows *sql.Rows) error) reader {
	return func(rows *sql.Rows) error {
		for rows.Next() {
			if err := f(rows); err != nil {
				return err
			}
		}
		return nil
	}
}

// one returns a reader of the only row of a set.
func one(to ...any) reader {
	return func(rows *sql.Rows) error {
		if !rows.Next() {
			return errors.New("sqlserver: a result set of one row has none")
		}
		return rows.Scan(to...)
	}
}

// item returns the n-th element of all. It returns an error if the server names an element that was not sent.
func item[T any](all []T, n int) (x T, err error) {
	if n < 0 || n >= len(all) {
		return x, noItem(n, len(all))
	}
	return all[n], nil
}

func noItem(n, of int) error { return fmt.Errorf("sqlserver: the answer names item %d of %d", n, of) }

// numbered returns a reader that calls f with the numbers of the items in a result set.
func numbered(items int, f func(n int)) reader {
	return each(func(rows *sql.Rows) error {
		var n int
		if err := rows.Scan(&n); err != nil {
			return err
		}
		if n < 0 || n >= items {
			return noItem(n, items)
		}
		f(n)
		return nil
	})
}

// returnsInto returns a reader of how often jobs were returned, by a queue's index in the list.
func returnsInto(returns []int64) reader {
	return each(func(rows *sql.Rows) error {
		var n int
		var returned int64
		if err := rows.Scan(&n, &returned); err != nil {
			return err
		}
		_, err := item(returns, n)
		if err == nil {
			returns[n] = returned
		}
		return err
	})
}

// total returns a reader that adds a number to *to.
func total(to *int64) reader {
	return func(rows *sql.Rows) error {
		var n int64
		err := one(&n)(rows)
		*to += n
		return err
	}
}
