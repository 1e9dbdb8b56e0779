package testserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// drop ends the connections to a database, which can hold locks, and drops it.
func (m *MySQL) drop(name string) error {
	return testwait.Poll(context.Background(), func(ctx context.Context) error {
		ids, err := m.Connections(ctx, name)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := m.Kill(ctx, id); err != nil {
				return err
			}
		}
		return m.Exec(ctx, "DROP DATABASE IF EXISTS "+name)
	})
}

// MySQLSessions is the table of sessions, with id, db and command. MySQL's table in
// information_schema fails if a running statement contains bytes that are not text.
const MySQLSessions = "/*M! information_schema.processlist */ /*!80022 performance_schema.processlist */"

// Connections returns the ids of the sessions that use a database.
func (m *MySQL) Connections(ctx context.Context, database string) (ids []int64, err error) {
	db, err := m.Open("")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, "SELECT id FROM "+MySQLSessions+" WHERE db = ? ORDER BY id", database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// Kill ends a connection. One that has ended by itself isn't an error.
//
// MySQL closes the killed session's socket in the thread that runs KILL. If the session is
// about to write an answer, that answer goes to the next connection that gets the same file
// descriptor, which can be another test's. So on MySQL Kill interrupts the session's
// statements until it idles, and only then kills it.
func (m *MySQL) Kill(ctx context.Context, id int64) error {
	db, err := m.Open("")
	if err != nil {
		return err
	}
	defer db.Close()
	for command := ""; !origins[m.Kind].maria; {
		err := db.QueryRowContext(ctx, "SELECT command FROM "+MySQLSessions+" WHERE id = ?", id).Scan(&command)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if command == "Sleep" {
			break
		}
		if err := endOf(ctx, db, "QUERY", id); err != nil {
			return err
		}
	}
	return endOf(ctx, db, "CONNECTION", id)
}

func endOf(ctx context.Context, db *sql.DB, what string, id int64) error {
	const noSuchThread = 1094
	_, err := db.ExecContext(ctx, fmt.Sprintf("KILL %s %d", what, id))
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && e.Number == noSuchThread {
		return nil
	}
	return err
}
