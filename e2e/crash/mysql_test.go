package crash

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMySQLCountsDeadlocks checks that the counters of deadlocks and lock timeouts, which other
// tests use, count one of each.
func TestMySQLCountsDeadlocks(t *testing.T) {
	kit.OnMySQL(t, kit.SkipLockedKinds, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		ctx := testwait.Context(t)
		db := p.DB(t)
		for _, statement := range []string{"CREATE TABLE two (id int PRIMARY KEY, n int)", "INSERT INTO two VALUES (1, 0), (2, 0)"} {
			if _, err := db.ExecContext(ctx, statement); err != nil {
				t.Fatal(err)
			}
		}
		var ends [2]*sql.Tx
		for i := range ends {
			var err error
			if ends[i], err = db.BeginTx(ctx, nil); err != nil {
				t.Fatal(err)
			}
			defer ends[i].Rollback()
			if _, err := ends[i].ExecContext(ctx, "UPDATE two SET n = 1 WHERE id = ?", i+1); err != nil {
				t.Fatal(err)
			}
		}
		failed := make(chan error, 2)
		for i := range ends {
			go func() {
				_, err := ends[i].ExecContext(ctx, "UPDATE two SET n = 1 WHERE id = ?", 2-i)
				failed <- err
			}()
		}
		e := (*mysql.MySQLError)(nil)
		if err := errors.Join(<-failed, <-failed); !errors.As(err, &e) || e.Number != 1213 {
			t.Fatalf("there was no deadlock: %v", err)
		}
		if _, err := db.ExecContext(ctx, "SET GLOBAL innodb_lock_wait_timeout = 1"); err != nil {
			t.Fatal(err)
		}
		third, err := p.Open(p.Name) // a new session with the new setting
		if err != nil {
			t.Fatal(err)
		}
		defer third.Close()
		if _, err := third.ExecContext(ctx, "UPDATE two SET n = 2"); !errors.As(err, &e) || e.Number != 1205 {
			t.Fatalf("no wait timed out: %v", err)
		}
		if got := p.Contention(); got != (databases.Contention{Deadlocks: 1, Timeouts: 1}) {
			t.Errorf("counted %+v, want one of each", got)
		}
	})
}
