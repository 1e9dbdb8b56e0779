package adopted_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	backend "github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/backends/mysql/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// product is what tests need of a server that they run on, besides its SQL.
type product struct {
	name    string
	own     string // the prefix of the sidecar's tables
	systemE string // the DDL of system E of the README
	rowsE   string // its rows in short

	zoneless string // the type of a time without a zone
	systemB  string
	newKit   func(t *testing.T, ddl string, tables map[string]mapping.Table) *kit
}

// onEach runs a test on each product. In a short run with both, MariaDB stands for MySQL.
func onEach(t *testing.T, f func(t *testing.T, on *product)) {
	t.Parallel()
	for _, on := range products {
		if testing.Short() && len(products) == 3 && on.name == string(testserver.MySQL97) {
			continue
		}
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			f(t, on)
		})
	}
}

// products are PostgreSQL, and those that startMySQL adds.
var products = []*product{{
	name: "PostgreSQL", own: "qsidecar.", newKit: newKit, systemB: fmt.Sprintf(systemB, "bigint GENERATED ALWAYS AS IDENTITY"), zoneless: "timestamp",
	systemE: `CREATE TABLE my_queue (
  queue_item_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'processing', 'done', 'error')),
  parameters jsonb NOT NULL, request_id uuid UNIQUE, user_id bigint,
  created_dt timestamptz NOT NULL DEFAULT now(), finished_dt timestamptz,
  error_message text, worker_name varchar(8), result jsonb, user_context jsonb);
CREATE INDEX ON my_queue (state, created_dt, queue_item_id);
INSERT INTO my_queue (parameters) VALUES ('{"n": 1}'), ('{"n": 2}'), ('{"n": 3}')`,
	rowsE: `SELECT concat_ws('|', queue_item_id, state, worker_name, error_message, result, CASE WHEN finished_dt IS NULL THEN 'f' ELSE 't' END) FROM my_queue ORDER BY queue_item_id`,
}}

const mysqlSystemE = `CREATE TABLE my_queue (
  queue_item_id bigint AUTO_INCREMENT PRIMARY KEY,
  state varchar(20) CHARACTER SET latin1 NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'processing', 'done', 'error')),
  parameters json NOT NULL, request_id char(36) UNIQUE, user_id bigint,
  created_dt datetime NOT NULL DEFAULT CURRENT_TIMESTAMP, finished_dt datetime,
  error_message text, worker_name varchar(8) CHARACTER SET latin1, result json, user_context json, KEY (state, created_dt, queue_item_id));
INSERT INTO my_queue (parameters) VALUES ('{"n": 1}'), ('{"n": 2}'), ('{"n": 3}')`

// startMySQL starts the servers that skip locked rows, and adds them to products.
func startMySQL() (stop func(), err error) {
	kinds := map[testserver.Kind]bool{}
	for _, kind := range testserver.MySQLKinds() {
		kinds[kind] = kind != testserver.MariaDB105
	}
	var mu sync.Mutex
	var started []*testserver.MySQL
	var wg sync.WaitGroup
	for kind, wanted := range kinds {
		if !wanted {
			continue
		}
		wg.Go(func() {
			m, failed := testserver.StartMySQL(context.Background(), kind, testserver.Options{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(failed, testserver.ErrUnavailable): // it is reported elsewhere
			case failed != nil:
				err = errors.Join(err, failed)
			default:
				started = append(started, m)
				products = append(products, &product{
					name: string(kind), systemE: mysqlSystemE, newKit: kitOn(m), systemB: fmt.Sprintf(systemB, "bigint AUTO_INCREMENT"), zoneless: "datetime",
					rowsE: `SELECT concat_ws('|', queue_item_id, state, worker_name, error_message, result, CASE WHEN finished_dt IS NULL THEN 'f' ELSE 't' END) FROM my_queue ORDER BY queue_item_id`,
				})
			}
		})
	}
	wg.Wait()
	slices.SortFunc(products[1:], func(a, b *product) int { return strings.Compare(a.name, b.name) })
	return func() {
		for _, m := range started {
			if err := m.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}, err
}

// kitOn creates kits on a MySQL or MariaDB server. The owner's connection has another time zone than
// the sidecar's.
func kitOn(m *testserver.MySQL) func(t *testing.T, ddl string, tables map[string]mapping.Table) *kit {
	databases := onMySQL(m)
	return func(t *testing.T, ddl string, tables map[string]mapping.Table) *kit {
		t.Helper()
		name := databases.get(t)
		k := &kit{T: t, url: m.URL(name)}
		config := m.Config(name)
		config.MultiStatements = true
		connector, err := mysql.NewConnector(config)
		if err != nil {
			t.Fatal(err)
		}
		k.db = sql.OpenDB(connector)
		closed(t, k.db)
		if k.conn, err = k.db.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
		closed(t, k.conn)
		k.sql(ddl)
		k.reopen = func() backends.Engine {
			engine, err := backend.Open(t.Context(), backend.Options{URL: k.url})
			if err != nil {
				t.Fatal(err)
			}
			return diagnose.New(engine)
		}
		k.Store = k.reopened(tables)
		k.heartbeat(me, backends.HeartbeatJoin, sidecarTimeout)
		return k
	}
}

func closed(t *testing.T, c interface{ Close() error }) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// texts are the rows of a query, a text each.
func texts(ctx context.Context, c *sql.Conn, query string) (got []string, err error) {
	rows, err := c.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		got = append(got, text)
	}
	return got, rows.Err()
}
