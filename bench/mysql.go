package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

var (
	mysqlEngine = engine{
		name: "mysql", start: startMySQL(testserver.MySQL97), aims: []aim{{keyOne, keyTwo, 5}}, rows: 200_000, held: 100_000,
	}
	mariadbEngine = engine{
		name: "mariadb", start: startMySQL(testserver.MariaDB1011), aims: []aim{{keyOne, keyTwo, 5}}, rows: 200_000, held: 100_000,
	}
)

// myServer is a MySQL or a MariaDB.
type myServer struct {
	*testserver.MySQL
	name string
}

// startMySQL starts a server with the defaults of its makers, but with room for the large tables.
func startMySQL(kind testserver.Kind) func(ctx context.Context, fast bool) (server, error) {
	return func(ctx context.Context, fast bool) (server, error) {
		m, err := testserver.StartMySQL(ctx, kind, testserver.Options{
			Durable: !fast, Settings: map[string]string{"innodb-buffer-pool-size": "1G"},
		})
		if errors.Is(err, testserver.ErrNotHad) {
			return nil, fmt.Errorf("%w: %w", errNotHad, err)
		}
		if err != nil {
			return nil, err
		}
		return myServer{m, string(kind)}, nil
	}
}

func (s myServer) Version() string { return fmt.Sprintf("%s (%s)", s.name, s.MySQL.Version) }

func (s myServer) Database(ctx context.Context, name string) (database, error) {
	if err := s.Exec(ctx, "DROP DATABASE IF EXISTS "+name, "CREATE DATABASE "+name,
		"SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'"); err != nil {
		return nil, err
	}
	d := &myDatabase{url: s.SocketURL(name), config: s.Config(name)}
	if d.url == "" {
		d.url = s.URL(name)
	}
	d.config.InterpolateParams, d.config.MultiStatements = true, true // one round trip each
	var err error
	if d.c, err = d.connect(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

type myDatabase struct {
	url    string
	config *driver.Config
	c      *myConn
	asked  int64 // statements of Count itself
}

// myConn is one connection.
type myConn struct {
	*sql.Conn
	pool *sql.DB
}

func (c *myConn) Close() error { return errors.Join(c.Conn.Close(), c.pool.Close()) }

func (d *myDatabase) connect(ctx context.Context) (*myConn, error) {
	connector, err := driver.NewConnector(d.config)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	c, err := pool.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &myConn{c, pool}, nil
}

func (d *myDatabase) URL() string  { return d.url }
func (d *myDatabase) Close() error { return d.c.Close() }

func (d *myDatabase) Open(ctx context.Context) (backends.Backend, error) {
	return mysql.Open(ctx, mysql.Options{URL: d.url})
}

// Count counts those of the whole server: nothing else goes on there.
func (d *myDatabase) Count(ctx context.Context) (c counts, err error) {
	var name string
	d.asked++
	if err = d.c.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &c.statements); err != nil {
		return c, err
	}
	c.statements -= d.asked
	d.asked++
	c.known = true
	err = d.c.QueryRowContext(ctx, "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'").Scan(&c.transactions)
	return c, err
}

// bite is how many rows one INSERT makes.
const bite = 10_000

// insert makes rows, n of them: sql inserts from a table numbers (n), a bite at a time.
func (d *myDatabase) insert(ctx context.Context, n int, sql string, args ...any) error {
	for ; n > 0; n -= bite {
		if _, err := d.c.ExecContext(ctx, fmt.Sprintf("%s LIMIT %d", sql, min(n, bite)), args...); err != nil {
			return err
		}
	}
	return nil
}

// makeNumbers makes the table numbers.
func (d *myDatabase) makeNumbers(ctx context.Context) error {
	if _, err := d.c.ExecContext(ctx, "CREATE TEMPORARY TABLE IF NOT EXISTS numbers (n INT NOT NULL PRIMARY KEY) ENGINE=InnoDB"); err != nil {
		return err
	}
	_, err := d.c.ExecContext(ctx, `INSERT IGNORE INTO numbers
		WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 1000)
		SELECT a.n + 1000 * (b.n - 1) FROM s AS a JOIN s AS b WHERE b.n <= ?`, bite/1000)
	return err
}

func (d *myDatabase) Backlog(ctx context.Context, queue string, rows int) error {
	if err := d.makeNumbers(ctx); err != nil {
		return err
	}
	for _, columns := range []string{"'ready', NULL, NULL", "'scheduled', UTC_TIMESTAMP(6) + INTERVAL 1 DAY, NULL", "'dead', NULL, UTC_TIMESTAMP(6)"} {
		err := d.insert(ctx, rows, "INSERT INTO qsidecar_jobs (queue, payload, state, run_at, finished_at) SELECT ?, REPEAT('a', ?), "+columns+" FROM numbers",
			queue, payloadSize)
		if err != nil {
			return err
		}
	}
	_, err := d.c.ExecContext(ctx, "ANALYZE TABLE qsidecar_jobs")
	return err
}

func (d *myDatabase) Finished(ctx context.Context, queue string, rows int, first, span time.Duration) error {
	if err := d.makeNumbers(ctx); err != nil {
		return err
	}
	for from := 0; from < rows; from += bite {
		for state, why := range map[string]any{"done": nil, "dead": "why"} {
			if _, err := d.c.ExecContext(ctx, `INSERT INTO qsidecar_jobs (queue, payload, state, attempts, last_error, finished_at, expires_at)
				SELECT ?, REPEAT('a', ?), ?, 1, ?, UTC_TIMESTAMP(6) - INTERVAL 31 DAY, UTC_TIMESTAMP(6) + INTERVAL (? + ? * (n + ?) DIV ?) MICROSECOND
				FROM numbers WHERE n <= ?`, queue, payloadSize, state, why,
				first.Microseconds(), span.Microseconds(), from, rows, min(bite, rows-from)); err != nil {
				return err
			}
		}
	}
	var last int64
	if err := d.c.QueryRowContext(ctx, "SELECT MAX(id) FROM qsidecar_jobs").Scan(&last); err != nil {
		return err
	}
	for id := int64(0); id < last; id += bite {
		for _, sql := range []string{
			"INSERT INTO qsidecar_expiring (expires_at, job) SELECT expires_at, id FROM qsidecar_jobs WHERE id > ? AND id <= ? AND expires_at IS NOT NULL",
			"INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at) SELECT id, 1, 1, 'nacked', 'why', finished_at FROM qsidecar_jobs WHERE id > ? AND id <= ? AND state = 'dead'",
		} {
			if _, err := d.c.ExecContext(ctx, sql, id, id+bite); err != nil {
				return err
			}
		}
	}
	_, err := d.c.ExecContext(ctx, "ANALYZE TABLE qsidecar_jobs, qsidecar_expiring, qsidecar_failures")
	return err
}

func (d *myDatabase) Hold(ctx context.Context) (func() error, error) {
	c, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	_, err = c.ExecContext(ctx, `SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT`)
	if err == nil { // a SELECT alone locks nothing: one inside of DO would
		var n int64
		err = c.QueryRowContext(ctx, "SELECT count(*) FROM qsidecar_jobs").Scan(&n)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c.Close, nil // which ends the transaction
}
