package e2e

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// numbers begins a query for the rows (a, b) of two digits in base 100: servers count
// no further than 1,000 by themselves.
const numbers = `WITH RECURSIVE d (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM d WHERE n < 99) `

// systemA is the table of system A, whose consumers take rows in no order and keep
// those that are done.
var systemA = adoption{
	name: "a",
	ddl: `CREATE TABLE things (id int AUTO_INCREMENT PRIMARY KEY, status tinyint NOT NULL DEFAULT 1, pid int NULL,
		created_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), thing varchar(100) NULL, KEY (status, created_at), KEY (pid));
		INSERT INTO things (thing) ` + numbers + `SELECT 100 * a.n + b.n FROM d a, d b ORDER BY 100 * a.n + b.n LIMIT %d;`,
	config: `
    table: things
    columns: {id: id, payload: thing, state: status, created_at: created_at}
    states: {ready: 1, claimed: 2, done: 3}
    token: {column: pid, value: 900001}
`,
	open: `SELECT CAST(count(*) AS CHAR) FROM things WHERE status <> 3`,
	rows: `SELECT CONCAT_WS(' ', id, status, pid, IF(status = 3, 't', 'f')) FROM things`,
	by: func(who string) string {
		if n, own := strings.CutPrefix(who, modeOwn+"-"); own {
			return n
		}
		return "900001"
	},
}

// byPid are the consumers of system A: each has a number of its own, that of its name.
func byPid(order, done string) ownConsumer {
	return ownConsumer{
		take: func(ctx context.Context, c *sql.Conn, name string, _ int) ([]string, error) {
			pid := systemA.by(name)
			if _, err := c.ExecContext(ctx, "UPDATE things SET status=2, pid=? WHERE status=1"+order+" LIMIT 1", pid); err != nil {
				return nil, err
			}
			return column(ctx, c, "SELECT id FROM things WHERE status=2 AND pid=?", pid)
		},
		finish: func(ctx context.Context, c *sql.Conn, item, _ string) error {
			_, err := c.ExecContext(ctx, done, item)
			return err
		},
	}
}

func init() {
	ownConsumers["a"] = byPid("", "UPDATE things SET status=3 WHERE id=?")
}

// column is the first one of a query's rows.
func column(ctx context.Context, c *sql.Conn, query string, args ...any) (all []string, err error) {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, rows.Err()
}

// TestAdoptedBesideItsOwnOnMySQL: the systems that are on MySQL and MariaDB, with
// workers of both kinds.
func TestAdoptedBesideItsOwnOnMySQL(t *testing.T) {
	for kind, systems := range map[testserver.Kind][]adoption{
		testserver.MySQL97: {systemA},
	} {
		t.Run(string(kind), func(t *testing.T) {
			_, p, err := newMySQLSite(t, kind)
			if errors.Is(err, testserver.ErrNotHad) {
				figure(t, "NOT TESTED on MySQL, which could not be had")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			onTables(t, tableServer{func(t testing.TB) string { return p.URL(p.Database(t)) }, "qsidecar_leases"}, systems...)
		})
	}
}
