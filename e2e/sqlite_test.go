package e2e

import (
	"context"
	"database/sql"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver with which the tests look into the file
)

// sqlite opens the site's file beside the sidecars, as another program would.
func (s *site) sqlite(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+s.file()+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// exec runs a statement in the site's file.
func (s *site) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := s.sqlite(t).ExecContext(ctx, statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// jobsInFile lists the ids of all rows of the job table.
func (s *site) jobsInFile(t testing.TB) []string {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+s.file()+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rows, err := db.QueryContext(ctx, "SELECT CAST(id AS TEXT) FROM qsidecar_jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids
}
