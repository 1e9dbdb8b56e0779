package postgres

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// vanish closes the clients' ends without a message to the server. It accepts no further
// connection, because one could cancel a statement.
func (w *wire) vanish() {
	w.listener.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 0; i < len(w.open); i += 2 {
		w.open[i].Close()
	}
}

// endLockHolder ends the session that has the lock on the migration.
func endLockHolder(t *testing.T, url string) {
	t.Helper()
	must(t, url, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// TestBuiltByTheDead: the server still builds an index for a sidecar that is gone. The next
// sidecar waits for the build, and does not build the index again.
func TestBuiltByTheDead(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		first(t, url, "qsidecar")
		writer := begun(t, url, `INSERT INTO qsidecar.qsidecar_failures VALUES (1, 2, 1, 'nacked', '', now())`)
		w, through := newWire(t, url)
		dead := opening(t, Options{URL: through, later: nextVersion(t)})
		sees(t, url, "the index is being built", waitsFor("CREATE INDEX"))
		w.vanish()
		endLockHolder(t, url) // the server does so after lockIdle
		if err := <-dead; err == nil {
			t.Fatal("the killed one opened it")
		}
		o := Options{URL: url, later: nextVersion(t)}
		o.migrating = func(_ *pgx.Conn, sql string) error {
			if strings.Contains(sql, "INDEX CONCURRENTLY") {
				return fmt.Errorf("it was built already: %s", sql)
			}
			return nil
		}
		next := opening(t, o)
		sees(t, url, "the next one waits for it", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND pid <> pg_backend_pid() AND query LIKE '%ShareUpdateExclusiveLock%')`)
		if err := writer.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-next; err != nil {
			t.Error(err)
		}
	})
}

// TestMigrationLockLost: a sidecar that loses the lock stops, takes it again and continues.
func TestMigrationLockLost(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		first(t, url, "qsidecar")
		writer := begun(t, url, `INSERT INTO qsidecar.qsidecar_failures VALUES (1, 2, 1, 'nacked', '', now())`)
		var locks atomic.Int64
		done := opening(t, Options{URL: url, later: nextVersion(t), migrating: func(_ *pgx.Conn, sql string) error {
			if strings.HasPrefix(sql, "BEGIN ISOLATION LEVEL READ COMMITTED") {
				locks.Add(1)
			}
			return nil
		}})
		sees(t, url, "the index is being built", waitsFor("CREATE INDEX"))
		had := locks.Load()
		endLockHolder(t, url)
		sees(t, url, "it begins again", waitsFor("DROP INDEX"))
		if err := writer.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if locks.Load() == had {
			t.Error("it went on without the lock")
		}
	})
}
