package engines

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/bench/internal/proc"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

var postgresEngine = measure.Engine{
	Name:  "postgres",
	Start: startPostgres,
	Aims:  []measure.Aim{{Of: measure.KeyOne, To: measure.KeyTwo, Least: 12}, {Of: measure.KeyOne, To: measure.KeyBest, Least: 5}, {Of: measure.KeyMany, To: measure.KeyRaw, Least: 0.85}},
	Rows:  10_000_000, Held: 1_000_000,
	Holds:   []measure.Hold{measure.SnapshotOnly, {Name: "a long writing transaction", SQL: `INSERT INTO qsidecar.qsidecar_jobs (queue, payload) VALUES ('other', '')`}},
	Drivers: true,
}

// pgServer is a PostgreSQL of the newest version.
type pgServer struct{ *testserver.Postgres }

func startPostgres(ctx context.Context, fast bool) (measure.Server, error) {
	versions := testserver.Versions()
	p, err := testserver.StartPostgres(ctx, versions[len(versions)-1], testserver.Options{
		Durable: !fast,
		Settings: map[string]string{
			"shared_preload_libraries": "pg_stat_statements", "max_wal_size": "4GB", // no checkpoint during a measurement
			"max_connections": "400", // of 256 workers without a sidecar
		},
	})
	if err != nil {
		return nil, err
	}
	return pgServer{p}, nil
}

func (p pgServer) Version() string             { return "PostgreSQL " + p.Postgres.Version }
func (p pgServer) CPU() (time.Duration, error) { return proc.CPU(p.PID()) }

func (p pgServer) Database(ctx context.Context, name string) (measure.Database, error) {
	name = `"` + name + `"`
	if err := p.Exec(ctx, `DROP DATABASE IF EXISTS `+name, `CREATE DATABASE `+name+` TEMPLATE template0`); err != nil {
		return nil, err
	}
	u, err := url.Parse(p.Admin())
	if err != nil {
		return nil, err
	}
	u.Path = "/" + name[1:len(name)-1]
	c, err := pgx.Connect(ctx, u.String())
	if err != nil {
		return nil, err
	}
	look, err := pgx.Connect(ctx, p.Admin())
	if err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	d := &pgDatabase{name: u.Path[1:], url: u.String(), c: c, look: look}
	// An existing server can lack it. Then nothing is counted.
	_, err = look.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
	if err == nil {
		_, err = d.statements(ctx)
	}
	d.counts = err == nil
	return d, nil
}

type pgDatabase struct {
	name, url string
	c         *pgx.Conn
	look      *pgx.Conn // to another database, so that it is not counted
	counts    bool
}

func (p *pgDatabase) URL() string { return p.url }

func (p *pgDatabase) Close() error {
	return errors.Join(p.c.Close(context.Background()), p.look.Close(context.Background()))
}

func (p *pgDatabase) Open(ctx context.Context) (backends.Backend, error) {
	return postgres.Open(ctx, postgres.Options{URL: p.url, Notify: true})
}

func (p *pgDatabase) statements(ctx context.Context) (n int64, err error) {
	err = p.look.QueryRow(ctx, `SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
		WHERE dbid = (SELECT oid FROM pg_database WHERE datname = $1)`, p.name).Scan(&n)
	return n, err
}

// Count reads the number of writing transactions from the next transaction id, because the server's
// counter of commits is seconds late.
func (p *pgDatabase) Count(ctx context.Context) (c measure.Counts, err error) {
	if !p.counts {
		return c, nil
	}
	if c.Statements, err = p.statements(ctx); err != nil {
		return c, err
	}
	c.Known = true
	err = p.look.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
		(SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend' AND pid <> $2)`, p.name, p.c.PgConn().PID()).Scan(&c.Transactions, &c.Connections)
	return c, err
}

func (p *pgDatabase) Backlog(ctx context.Context, queue string, rows int) error {
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO qsidecar.qsidecar_jobs (queue, state, payload, run_at, finished_at)
			SELECT '%s', s, decode(repeat('00', %d), 'hex'),
				CASE s WHEN 'scheduled' THEN now() + interval '1 day' END, CASE s WHEN 'dead' THEN now() END
			FROM generate_series(1, %d) n CROSS JOIN unnest('{ready,scheduled,dead}'::text[]) s`, queue, measure.PayloadSize, rows),
		`VACUUM ANALYZE qsidecar.qsidecar_jobs`, `CHECKPOINT`,
	} {
		if _, err := p.c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}

func (p *pgDatabase) Finished(ctx context.Context, queue string, rows int, first, span time.Duration) error {
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO qsidecar.qsidecar_jobs (queue, state, payload, attempts, last_error, finished_at, prune_at)
			SELECT '%s', s, decode(repeat('00', %d), 'hex'), 1, CASE s WHEN 'dead' THEN 'why' END, now() - interval '31 days',
				now() + (%d + %d * n / %d) * interval '1 ms'
			FROM generate_series(1, %[5]d) n CROSS JOIN unnest('{done,dead}'::text[]) s`, queue, measure.PayloadSize, first.Milliseconds(), span.Milliseconds(), rows),
		`INSERT INTO qsidecar.qsidecar_failures (job, fence, attempt, cause, message, at)
			SELECT id, 1, 1, 'nacked', 'why', finished_at FROM qsidecar.qsidecar_jobs WHERE state = 'dead'`,
		`VACUUM ANALYZE qsidecar.qsidecar_jobs, qsidecar.qsidecar_failures`, `CHECKPOINT`,
	} {
		if _, err := p.c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}

func (p *pgDatabase) Hold(ctx context.Context, sql string) (func() error, error) {
	c, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return nil, err
	}
	_, err = c.Exec(ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM qsidecar.qsidecar_jobs; `+sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return func() error {
		_, err := c.Exec(context.Background(), "COMMIT")
		return errors.Join(err, c.Close(context.Background()))
	}, nil
}
