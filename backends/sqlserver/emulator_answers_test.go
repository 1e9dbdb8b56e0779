package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	mssql "github.com/microsoft/go-mssqldb"
)

// `told` returns an error as SQL Server and its driver would return it. Under XACT_ABORT the transaction is rolled
// back.
func (c *emulated) told(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var sqlErr *pgconn.PgError
	if !errors.As(err, &sqlErr) {
		if c.pg.IsClosed() {
			return io.EOF
		}
		return err
	}
	if c.pg.PgConn().TxStatus() != 'I' && !c.pg.IsClosed() {
		if _, e := c.pg.Exec(ctx, "ROLLBACK"); e != nil {
			return io.EOF
		}
	}
	number := map[string]int32{"40P01": 1205, "55P03": 1222, "23505": 2627, "23514": 547, "23502": 515, "22001": 2628, "22P02": 245, "P0001": 50000}[sqlErr.Code]
	if number == 0 {
		if strings.HasPrefix(sqlErr.Code, "57P") {
			return io.EOF
		}
		number = 102 // a fault of the translation, or of what is translated
	}
	e := mssql.Error{Number: number, Class: 16, State: 1, Message: fmt.Sprintf("%s (%s, %s)", sqlErr.Message, sqlErr.ConstraintName, err)}
	if number == 50000 {
		e.Message, e.ProcName = sqlErr.Message, "refuse"
	}
	e.All = []mssql.Error{e}
	return e
}

// answer is one result set.
type answer struct {
	Columns []string
	Rows    [][]driver.Value
}

// answers implements driver.RowsNextResultSet.
type answers struct {
	sets []*answer
	at   int
}

func (a *answers) Columns() []string      { return a.sets[0].Columns }
func (a *answers) Close() error           { return nil }
func (a *answers) HasNextResultSet() bool { return len(a.sets) > 1 }
func (a *answers) NextResultSet() error {
	if len(a.sets) < 2 {
		return io.EOF
	}
	a.sets, a.at = a.sets[1:], 0
	return nil
}

func (a *answers) Next(to []driver.Value) error {
	if a.at == len(a.sets[0].Rows) {
		return io.EOF
	}
	copy(to, a.sets[0].Rows[a.at])
	a.at++
	return nil
}
