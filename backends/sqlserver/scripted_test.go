package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

// scripted is a driver with a test's answers, for errors that no server returns on demand and for
// settings that the emulator does not have.
type scripted struct {
	answer func(query string) ([]*answer, error)
	opened atomic.Int64
	close  error // of each connection

	mu   sync.Mutex
	sent []string
}

func (s *scripted) Connect(context.Context) (driver.Conn, error) {
	s.opened.Add(1)
	return &session{s: s}, nil
}

func (s *scripted) Driver() driver.Driver { return nil }

func (s *scripted) connector(*mssql.Connector) driver.Connector { return s }

type session struct{ s *scripted }

func (s *session) Prepare(string) (driver.Stmt, error)      { return nil, errors.New("not needed") }
func (s *session) Begin() (driver.Tx, error)                { return nil, errors.New("not needed") }
func (s *session) Close() error                             { return s.s.close }
func (s *session) CheckNamedValue(*driver.NamedValue) error { return nil }

func (s *session) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if query == "sp_executesql" {
		query = string(args[0].Value.(mssql.NVarCharMax))
	}
	s.s.mu.Lock()
	s.s.sent = append(s.s.sent, query)
	s.s.mu.Unlock()
	sets, err := s.s.answer(query)
	if err != nil {
		return nil, err
	}
	if len(sets) == 0 {
		sets = []*answer{{}}
	}
	return &answers{sets: sets}, nil
}

func (s *session) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	_, err := s.QueryContext(ctx, query, args)
	return driver.ResultNoRows, err
}

// rowOf is a result set of one row.
func rowOf(values ...driver.Value) *answer {
	return &answer{make([]string, len(values)), [][]driver.Value{values}}
}

// greeted answers the queries of a Store that is being opened, and passes the others to f.
func greeted(f func(query string) ([]*answer, error)) func(query string) ([]*answer, error) {
	return func(query string) ([]*answer, error) {
		switch {
		case strings.Contains(query, "SERVERPROPERTY('ProductVersion')"):
			return []*answer{rowOf("16.0.4135.4", "Developer Edition", int64(3), int64(160), int64(0), "app", int64(0))}, nil
		case strings.Contains(query, "CASE WHEN OBJECT_ID"):
			return []*answer{rowOf(int64(1))}, nil
		case strings.Contains(query, "FROM [qsidecar].qsidecar_meta"):
			return []*answer{rowOf(int64(migrate.Latest), int64(1), "ABCDEFGHIJK")}, nil
		}
		return f(query)
	}
}

func scriptedStore(t *testing.T, f func(query string) ([]*answer, error)) (*Store, *scripted) {
	s := &scripted{answer: greeted(f)}
	return open(t, Options{URL: "sqlserver://app:secret@db.example:1433?database=app",
		driver: s.connector}), s
}

// WithoutTables answers that there are no tables, and perhaps no schema.
func (s *scripted) WithoutTables(hasSchema bool) {
	usual := s.answer
	s.answer = func(query string) ([]*answer, error) {
		switch {
		case strings.Contains(query, "CASE WHEN OBJECT_ID"):
			return []*answer{rowOf(int64(0))}, nil
		case strings.Contains(query, "CASE WHEN SCHEMA_ID"):
			return []*answer{rowOf(flag01(hasSchema))}, nil
		}
		return usual(query)
	}
}

// serverError returns an error as the driver creates it from the server's messages.
func serverError(number int32, message string, more ...mssql.Error) mssql.Error {
	e := mssql.Error{Number: number, Class: 16, State: 1, Message: message, ServerName: "db", LineNo: 1}
	e.All = append(append([]mssql.Error{}, more...), e)
	return e
}
