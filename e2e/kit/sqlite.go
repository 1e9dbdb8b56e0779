package kit

import (
	"context"
	"database/sql"
	"testing"

	_ "modernc.org/sqlite" // the driver for the tests' own access to the file
)

// SQLite opens the site's file beside the sidecars, as another program would.
func (s *Site) SQLite(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+s.File()+"?_pragma=busy_timeout(10000)")
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

// Exec runs a statement in the site's file.
func (s *Site) Exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	ctx := context.Background()
	if _, err := s.SQLite(t).ExecContext(ctx, statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Rows returns the first column of a query in the site's file.
func (s *Site) Rows(query string, args ...any) []string {
	s.T.Helper()
	return OwnersDB{s.T, s.reader()}.Texts(query, args...)
}

// JobsInFile returns the ids of all rows of the job table.
func (s *Site) JobsInFile(testing.TB) []string {
	s.T.Helper()
	return s.Rows("SELECT CAST(id AS TEXT) FROM qsidecar_jobs")
}

// reader returns a pool for Rows, opened once.
func (s *Site) reader() *sql.DB {
	s.T.Helper()
	if s.readers[s.URL] == nil {
		db, err := sql.Open("sqlite", "file:"+s.File()+"?mode=ro&_pragma=busy_timeout(60000)")
		if err != nil {
			s.T.Fatal(err)
		}
		s.T.Cleanup(func() { db.Close() })
		s.readers[s.URL] = db
	}
	return s.readers[s.URL]
}
