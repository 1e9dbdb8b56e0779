package engines

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlite"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/bench/internal/proc"
)

// SQLite has no server. Its usage is that of the sidecar, of the processes of the rivals, or of the benchmark itself for the raw limit.
var sqliteEngine = measure.Engine{Name: "sqlite", Start: startSQLite, Aims: []measure.Aim{{Of: measure.KeyOne, To: measure.KeyTwo, Least: 15}}, Rows: 200_000, Held: 300_000, Holds: []measure.Hold{measure.SnapshotOnly}}

type liteServer struct {
	dir, version string
	cpu          atomic.Int64 // ns that the rivals' processes have used
}

func startSQLite(ctx context.Context, _ bool) (measure.Server, error) {
	dir, err := os.MkdirTemp("", "qsbench")
	if err != nil {
		return nil, err
	}
	s := &liteServer{dir: dir}
	db, err := openLite(s.path("version"), "")
	if err == nil {
		err = errors.Join(db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&s.version), db.Close())
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (l *liteServer) Version() string             { return "SQLite " + l.version }
func (l *liteServer) CPU() (time.Duration, error) { return time.Duration(l.cpu.Load()), nil }
func (l *liteServer) Stop() error                 { return os.RemoveAll(l.dir) }
func (l *liteServer) path(name string) string     { return filepath.Join(l.dir, name+".db") }

// openLite returns a pool of connections with the sidecar's durability.
func openLite(path, more string) (*sql.DB, error) {
	q := url.Values{"_pragma": {"busy_timeout(60000)", "journal_mode(wal)", "synchronous(full)"}}
	return sql.Open("sqlite", "file:"+path+"?"+q.Encode()+more)
}

func (l *liteServer) Database(ctx context.Context, name string) (measure.Database, error) {
	rivals, err := openLite(l.path(name+"-rivals"), "")
	if err != nil {
		return nil, err
	}
	return &liteDatabase{s: l, name: name, rivals: rivals}, nil
}

// liteDatabase keeps the rivals' table in its own file, as programs without a sidecar do.
type liteDatabase struct {
	s      *liteServer
	name   string
	rivals *sql.DB
}

func (l *liteDatabase) URL() string  { return "sqlite:" + l.s.path(l.name) }
func (l *liteDatabase) Close() error { return l.rivals.Close() }

func (l *liteDatabase) Open(ctx context.Context) (backends.Backend, error) {
	return sqlite.Open(ctx, sqlite.Options{Path: l.s.path(l.name)})
}

func (l *liteDatabase) Count(context.Context) (measure.Counts, error) { return measure.Counts{}, nil }

func (l *liteDatabase) Backlog(ctx context.Context, queue string, rows int) (err error) {
	db, err := openLite(l.s.path(l.name), "&_txlock=immediate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	now := time.Now().UnixMilli()
	const insertBatch = 50_000 // a large batch, because no other writes wait
	for from := 0; from < rows; from += insertBatch {
		for state, times := range map[string][2]any{"ready": {nil, nil}, "scheduled": {now + 24*time.Hour.Milliseconds(), nil}, "dead": {nil, now}} {
			if _, err := db.ExecContext(ctx, `WITH RECURSIVE s (n) AS (SELECT ? + 1 UNION ALL SELECT n + 1 FROM s WHERE n < ?)
				INSERT INTO qsidecar_jobs (queue, state, payload, position, ready_at, run_at, finished_at) SELECT ?, ?, zeroblob(?), n, ?, ?, ? FROM s`,
				from, min(rows, from+insertBatch), queue, state, measure.PayloadSize, now, times[0], times[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *liteDatabase) Finished(ctx context.Context, queue string, rows int, first, span time.Duration) (err error) {
	db, err := openLite(l.s.path(l.name), "&_txlock=immediate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	now := time.Now()
	const insertBatch = 50_000
	for from := 0; from < rows; from += insertBatch {
		for state, why := range map[string]any{"done": nil, "dead": "why"} {
			if _, err := db.ExecContext(ctx, `WITH RECURSIVE s (n) AS (SELECT ? + 1 UNION ALL SELECT n + 1 FROM s WHERE n < ?)
				INSERT INTO qsidecar_jobs (queue, state, payload, position, ready_at, attempts, last_error, finished_at, prune_at)
				SELECT ?, ?, zeroblob(?), n, ?, 1, ?, ?, ? + ? * n / ? FROM s`,
				from, min(rows, from+insertBatch), queue, state, measure.PayloadSize, now.UnixMilli(), why, now.Add(-31*24*time.Hour).UnixMilli(),
				now.Add(first).UnixMilli(), span.Milliseconds(), rows); err != nil {
				return err
			}
		}
	}
	_, err = db.ExecContext(ctx, `INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at)
		SELECT id, 1, 1, 'nacked', 'why', finished_at FROM qsidecar_jobs WHERE state = 'dead'`)
	return err
}

func (l *liteDatabase) Hold(ctx context.Context, sql string) (release func() error, err error) {
	db, err := openLite(l.s.path(l.name), "")
	if err != nil {
		return nil, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err == nil {
		var n int64
		err = tx.QueryRowContext(ctx, "SELECT count(*) FROM qsidecar_jobs").Scan(&n)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, sql)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return func() error { return errors.Join(tx.Rollback(), db.Close()) }, nil
}

// Fill implements database.
func (l *liteDatabase) Fill(ctx context.Context, jobs int) error {
	_, err := l.rivals.ExecContext(ctx, fmt.Sprintf(`DROP TABLE IF EXISTS rival;
		CREATE TABLE rival (id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, state INTEGER NOT NULL DEFAULT 0, payload BLOB NOT NULL);
		CREATE INDEX rival_ready ON rival (queue, id) WHERE state = 0;
		WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d)
		INSERT INTO rival (queue, payload) SELECT 'q', zeroblob(%d) FROM s;
		PRAGMA wal_checkpoint(truncate)`, jobs, measure.PayloadSize))
	return err
}

// Rivals implements database.
func (l *liteDatabase) Rivals() []measure.Rival {
	return []measure.Rival{
		{Key: measure.KeyTwo, Name: "two short transactions, a process each", Workers: 8, Part: 0.25, Session: l.process},
		{Key: measure.KeyRaw, Name: "raw limit, n = 1000", Workers: 1, Part: 2, Session: func(ctx context.Context) (func() (int, error), func() error, error) {
			c, err := l.rivals.Conn(ctx)
			if err != nil {
				return nil, nil, err
			}
			return liteRaw(ctx, c, 1000), c.Close, nil
		}},
	}
}

// process starts a process that works the table on its own connection.
func (l *liteDatabase) process(ctx context.Context) (work func() (int, error), end func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env, cmd.Stderr = append(os.Environ(), measure.RoleEnv+"=sqlite "+l.s.path(l.name+"-rivals")), os.Stderr
	in, failed := cmd.StdinPipe()
	out, err := cmd.StdoutPipe()
	if err := errors.Join(failed, err, cmd.Start()); err != nil {
		return nil, nil, err
	}
	answer := func() (n int, err error) {
		var cpu int64
		_, err = fmt.Fscanln(out, &n, &cpu)
		l.s.cpu.Add(cpu)
		return n, err
	}
	_, err = answer() // it is ready
	return func() (int, error) {
		if _, err := fmt.Fprintln(in); err != nil {
			return 0, err
		}
		return answer()
	}, func() error { return errors.Join(in.Close(), cmd.Wait()) }, err
}

// WorkLite is the main function of that process. It prints that it is ready, and then for each line that it reads that it
// has worked the whole table: the number of jobs and the CPU time.
func WorkLite(path string) error {
	db, err := openLite(path, "")
	if err == nil {
		err = db.Ping() // opens the connection
	}
	if err != nil {
		return err
	}
	work := liteTwo(context.Background(), db)
	for in, n, before := bufio.NewScanner(os.Stdin), 0, time.Duration(0); ; {
		now, err := proc.CPUOfSelf()
		if err != nil {
			return err
		}
		fmt.Println(n, int64(now-before))
		if before, n = now, 0; !in.Scan() {
			return in.Err()
		}
		for got := 1; got > 0; n += got {
			if got, err = work(); err != nil {
				return err
			}
		}
	}
}

// liteTwo claims a job in one transaction and deletes it in another.
func liteTwo(ctx context.Context, db *sql.DB) func() (int, error) {
	return func() (int, error) {
		var id int64
		var payload []byte
		err := db.QueryRowContext(ctx, `UPDATE rival SET state = 1 WHERE id = (SELECT id FROM rival WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT 1)
			RETURNING id, payload`).Scan(&id, &payload)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, nil
		}
		if err == nil {
			_, err = db.ExecContext(ctx, "DELETE FROM rival WHERE id = ?", id)
		}
		return 1, err
	}
}

// liteRaw claims n jobs and deletes them in one transaction.
func liteRaw(ctx context.Context, c *sql.Conn, n int) func() (int, error) {
	return func() (got int, err error) {
		if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			return 0, err
		}
		rows, err := c.QueryContext(ctx, `UPDATE rival SET state = 1 WHERE id IN (SELECT id FROM rival WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT ?)
				RETURNING id, payload`, n)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		first, last := int64(0), int64(0)
		for rows.Next() {
			var payload []byte
			var id int64
			if err := rows.Scan(&id, &payload); err != nil {
				return 0, err
			}
			if got++; got == 1 {
				first = id
			}
			last = max(last, id)
		}
		if err := rows.Err(); err != nil {
			return 0, err
		}
		if _, err = c.ExecContext(ctx, "DELETE FROM rival WHERE id BETWEEN ? AND ? AND state = 1", first, last); err == nil {
			_, err = c.ExecContext(ctx, "COMMIT")
		}
		return got, err
	}
}
