package mysql

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// Small pages make tests with few jobs count queues by pages.
func init() { core.PageRows = 7 }

// connect opens a connection of an application.
func connect(t testing.TB, m *testserver.MySQL, database string) *sql.Conn {
	t.Helper()
	db, err := m.Open(database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// runSQL runs statements on a connection of an application.
func runSQL(t testing.TB, c *sql.Conn, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := c.ExecContext(context.WithoutCancel(t.Context()), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// numberOf returns the number that a query returns.
func numberOf(t testing.TB, m *testserver.MySQL, database, query string) (n int64) {
	t.Helper()
	db, err := m.Open(database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func join(t testing.TB, s *Store, sidecar backends.Identity) {
	t.Helper()
	if p, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: sidecar, Timeout: time.Hour, Name: "test"}); err != nil || !p.Alive {
		t.Fatalf("join: %+v, %v", p, err)
	}
}

func claimOf(sidecar backends.Identity, n int, from uint64) backends.CommitContent {
	c := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 3, Backoff: time.Second, BackoffMax: time.Minute}}, MaxBytes: 1 << 22, MaxPayload: 1 << 22}
	for i := range n {
		c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: sidecar, Number: from + uint64(i)}, Worker: "w"})
	}
	return backends.CommitContent{Sidecar: sidecar, Claims: []backends.Claim{c}}
}

// claimJobs claims up to n jobs of "q".
func claimJobs(t testing.TB, s *Store, sidecar backends.Identity, n int, from uint64) []backends.Job {
	t.Helper()
	r, err := s.Commit(t.Context(), claimOf(sidecar, n, from))
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return r.Claims[0].Jobs
}

func leasesOf(jobs []backends.Job) (l []backends.Lease) {
	for _, j := range jobs {
		l = append(l, backends.Lease{Job: j.ID, Token: j.Token})
	}
	return l
}

func write(t testing.TB, s *Store, w backends.Write) backends.WriteResult {
	t.Helper()
	r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{w}})
	if err != nil {
		t.Fatalf("%T: %v", w, err)
	}
	return r.Writes[0]
}

// serverTime returns the server's present time in µs since 1970.
func serverTime(t testing.TB, m *testserver.MySQL) int64 {
	t.Helper()
	return numberOf(t, m, "", "SELECT FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000000)")
}
