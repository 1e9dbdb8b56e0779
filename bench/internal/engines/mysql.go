package engines

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/bench/internal/proc"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

var (
	mysqlEngine = measure.Engine{
		Name: "mysql", Start: startMySQL(testserver.MySQL97), Aims: []measure.Aim{{Of: measure.KeyOne, To: measure.KeyTwo, Least: 8}}, Rows: 200_000, Held: 300_000, Holds: []measure.Hold{measure.SnapshotOnly},
	}
	mariadbEngine = measure.Engine{
		Name: "mariadb", Start: startMySQL(testserver.MariaDB1011), Aims: []measure.Aim{{Of: measure.KeyOne, To: measure.KeyTwo, Least: 10}}, Rows: 200_000, Held: 300_000, Holds: []measure.Hold{measure.SnapshotOnly},
	}
)

// myServer is a MySQL or MariaDB server.
type myServer struct {
	*testserver.MySQL
	name string
}

// startMySQL starts a server with default settings, except enough memory for the large tables.
func startMySQL(kind testserver.Kind) func(ctx context.Context, fast bool) (measure.Server, error) {
	return func(ctx context.Context, fast bool) (measure.Server, error) {
		m, err := testserver.StartMySQL(ctx, kind, testserver.Options{
			Durable: !fast, Settings: map[string]string{"innodb-buffer-pool-size": "1G"},
		})
		if errors.Is(err, testserver.ErrUnavailable) {
			return nil, fmt.Errorf("%w: %w", measure.ErrUnavailable, err)
		}
		if err != nil {
			return nil, err
		}
		return myServer{m, string(kind)}, nil
	}
}

func (m myServer) Version() string             { return fmt.Sprintf("%s (%s)", m.name, m.MySQL.Version) }
func (m myServer) CPU() (time.Duration, error) { return proc.CPU(m.PID()) }

func (m myServer) Database(ctx context.Context, name string) (measure.Database, error) {
	if err := m.Exec(ctx, "DROP DATABASE IF EXISTS "+name, "CREATE DATABASE "+name,
		"SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'"); err != nil {
		return nil, err
	}
	d := &myDatabase{url: m.SocketURL(name), config: m.Config(name)}
	if d.url == "" {
		d.url = m.URL(name)
	}
	d.config.InterpolateParams, d.config.MultiStatements = true, true // one round trip for each statement
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

func (m *myConn) Close() error { return errors.Join(m.Conn.Close(), m.pool.Close()) }

func (m *myDatabase) connect(ctx context.Context) (*myConn, error) {
	connector, err := driver.NewConnector(m.config)
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

func (m *myDatabase) URL() string  { return m.url }
func (m *myDatabase) Close() error { return m.c.Close() }

func (m *myDatabase) Open(ctx context.Context) (backends.Backend, error) {
	return mysql.Open(ctx, mysql.Options{URL: m.url})
}

// Count returns the counters of the whole server, because nothing else uses it.
func (m *myDatabase) Count(ctx context.Context) (c measure.Counts, err error) {
	var name string
	m.asked++
	if err = m.c.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &c.Statements); err != nil {
		return c, err
	}
	c.Statements -= m.asked
	m.asked++
	c.Known = true
	err = m.c.QueryRowContext(ctx, `SELECT count, (SELECT count(*) FROM information_schema.processlist WHERE db = database() AND id <> connection_id())
		FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'`).Scan(&c.Transactions, &c.Connections)
	return c, err
}

// insertBatch is how many rows one INSERT creates.
const insertBatch = 10_000

// insert creates n rows. sql inserts from a table numbers (n), one batch at a time.
func (m *myDatabase) insert(ctx context.Context, n int, sql string, args ...any) error {
	for ; n > 0; n -= insertBatch {
		if _, err := m.c.ExecContext(ctx, fmt.Sprintf("%s LIMIT %d", sql, min(n, insertBatch)), args...); err != nil {
			return err
		}
	}
	return nil
}

// makeNumbers creates the table numbers.
func (m *myDatabase) makeNumbers(ctx context.Context) error {
	if _, err := m.c.ExecContext(ctx, "CREATE TEMPORARY TABLE IF NOT EXISTS numbers (n INT NOT NULL PRIMARY KEY) ENGINE=InnoDB"); err != nil {
		return err
	}
	_, err := m.c.ExecContext(ctx, `INSERT IGNORE INTO numbers
		WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 1000)
		SELECT a.n + 1000 * (b.n - 1) FROM s AS a JOIN s AS b WHERE b.n <= ?`, insertBatch/1000)
	return err
}

func (m *myDatabase) Backlog(ctx context.Context, queue string, rows int) error {
	if err := m.makeNumbers(ctx); err != nil {
		return err
	}
	for _, columns := range []string{"'ready', NULL, NULL", "'scheduled', UTC_TIMESTAMP(6) + INTERVAL 1 DAY, NULL", "'dead', NULL, UTC_TIMESTAMP(6)"} {
		err := m.insert(ctx, rows, "INSERT INTO qsidecar_jobs (queue, payload, state, run_at, finished_at) SELECT ?, REPEAT('a', ?), "+columns+" FROM numbers",
			queue, measure.PayloadSize)
		if err != nil {
			return err
		}
	}
	_, err := m.c.ExecContext(ctx, "ANALYZE TABLE qsidecar_jobs")
	return err
}

func (m *myDatabase) Finished(ctx context.Context, queue string, rows int, first, span time.Duration) error {
	if err := m.makeNumbers(ctx); err != nil {
		return err
	}
	for from := 0; from < rows; from += insertBatch {
		for state, why := range map[string]any{"done": nil, "dead": "why"} {
			if _, err := m.c.ExecContext(ctx, `INSERT INTO qsidecar_jobs (queue, payload, state, attempts, last_error, finished_at, prune_at)
				SELECT ?, REPEAT('a', ?), ?, 1, ?, UTC_TIMESTAMP(6) - INTERVAL 31 DAY, UTC_TIMESTAMP(6) + INTERVAL (? + ? * (n + ?) DIV ?) MICROSECOND
				FROM numbers WHERE n <= ?`, queue, measure.PayloadSize, state, why,
				first.Microseconds(), span.Microseconds(), from, rows, min(insertBatch, rows-from)); err != nil {
				return err
			}
		}
	}
	var last int64
	if err := m.c.QueryRowContext(ctx, "SELECT MAX(id) FROM qsidecar_jobs").Scan(&last); err != nil {
		return err
	}
	for id := int64(0); id < last; id += insertBatch {
		for _, sql := range []string{
			"INSERT INTO qsidecar_prunable (prune_at, job) SELECT prune_at, id FROM qsidecar_jobs WHERE id > ? AND id <= ? AND prune_at IS NOT NULL",
			"INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at) SELECT id, 1, 1, 'nacked', 'why', finished_at FROM qsidecar_jobs WHERE id > ? AND id <= ? AND state = 'dead'",
		} {
			if _, err := m.c.ExecContext(ctx, sql, id, id+insertBatch); err != nil {
				return err
			}
		}
	}
	_, err := m.c.ExecContext(ctx, "ANALYZE TABLE qsidecar_jobs, qsidecar_prunable, qsidecar_failures")
	return err
}

func (m *myDatabase) Hold(ctx context.Context, sql string) (func() error, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return nil, err
	}
	_, err = c.ExecContext(ctx, `SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT`)
	if err == nil { // a SELECT alone locks nothing, but one inside of DO would
		var n int64
		err = c.QueryRowContext(ctx, "SELECT count(*) FROM qsidecar_jobs").Scan(&n)
	}
	if err == nil {
		_, err = c.ExecContext(ctx, sql)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c.Close, nil // closing ends the transaction
}
