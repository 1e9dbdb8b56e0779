package engines

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
)

const pgRivalTable = `DROP TABLE IF EXISTS rival;
CREATE TABLE rival (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, state smallint NOT NULL DEFAULT 0,
	payload bytea NOT NULL, token bigint);
CREATE INDEX rival_ready ON rival (queue, id) WHERE state = 0;
INSERT INTO rival (queue, payload) SELECT 'q', decode(repeat('61', %d), 'hex') FROM generate_series(1, %d)`

// Fill implements database. It doesn't ANALYZE: the statistics of a table whose jobs are all ready make PostgreSQL search along the
// primary key, over all jobs that are done, which halves the rate of the rivals.
func (p *pgDatabase) Fill(ctx context.Context, jobs int) error {
	for _, sql := range []string{fmt.Sprintf(pgRivalTable, measure.PayloadSize, jobs), `VACUUM rival`} {
		if _, err := p.c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}

// Rivals implements database.
func (p *pgDatabase) Rivals() []measure.Rival {
	session := func(work func(ctx context.Context, c *pgx.Conn) func() (int, error)) func(context.Context) (func() (int, error), func() error, error) {
		return func(ctx context.Context) (func() (int, error), func() error, error) {
			c, err := pgx.Connect(ctx, p.url)
			if err != nil {
				return nil, nil, err
			}
			return work(ctx, c), func() error { return c.Close(context.Background()) }, nil
		}
	}
	rivals := []measure.Rival{
		{Key: measure.KeyTwo, Name: "two short transactions", Workers: 32, Part: 0.125, Session: session(pgTwo)},
		{Key: measure.KeyBest, Name: "best one-job SQL", Workers: 32, Part: 0.5, Session: session(pgOne)},
	}
	for _, x := range []struct {
		key  string
		n    int
		part float64
	}{{"raw-32", 32, 1}, {"raw-100", 100, 2}, {measure.KeyRaw, 1000, 4}} {
		rivals = append(rivals,
			measure.Rival{Key: x.key, Name: fmt.Sprintf("raw limit, n = %d", x.n), Workers: 1, Part: x.part, Session: session(pgRaw(x.n, true))},
			measure.Rival{Key: x.key + "-apart", Name: fmt.Sprintf("the same as two transactions, n = %d", x.n), Workers: 1, Part: x.part, Session: session(pgRaw(x.n, false))})
	}
	return rivals
}

// pgTwo locks and marks a job in one transaction and marks it done in another.
func pgTwo(ctx context.Context, c *pgx.Conn) func() (int, error) {
	return func() (int, error) {
		tx, err := c.Begin(ctx)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback(ctx) //nolint:errcheck // does nothing after a commit
		var id int64
		err = tx.QueryRow(ctx, `SELECT id FROM rival WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED`).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return 0, nil
		}
		if err == nil {
			_, err = tx.Exec(ctx, `UPDATE rival SET state = 1 WHERE id = $1`, id)
		}
		if err == nil {
			err = tx.Commit(ctx)
		}
		if err == nil {
			_, err = c.Exec(ctx, `UPDATE rival SET state = 2 WHERE id = $1`, id)
		}
		return 1, err
	}
}

// pgOne is the best SQL for one job at a time.
func pgOne(ctx context.Context, c *pgx.Conn) func() (int, error) {
	return func() (int, error) {
		var id int64
		var payload []byte
		err := c.QueryRow(ctx, `UPDATE rival SET state = 1 WHERE id = (SELECT id FROM rival WHERE queue = 'q' AND state = 0
			ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, payload`).Scan(&id, &payload)
		if errors.Is(err, pgx.ErrNoRows) {
			return 0, nil
		}
		if err == nil {
			_, err = c.Exec(ctx, `DELETE FROM rival WHERE id = $1`, id)
		}
		return 1, err
	}
}

// pgRaw claims n jobs and deletes them, in one pipelined transaction or in two, the fastest way on
// this server. It starts after the last claim.
func pgRaw(n int, together bool) func(ctx context.Context, c *pgx.Conn) func() (int, error) {
	const claim = `WITH n AS MATERIALIZED (SELECT id FROM rival WHERE queue = 'q' AND state = 0 AND id > $2 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
		UPDATE rival r SET state = 1, token = 7 FROM n WHERE r.id = n.id RETURNING r.id, r.payload`
	const remove = `DELETE FROM rival WHERE token = 7 AND state = 1 AND id > $1 AND id <= $1 + $2`
	return func(ctx context.Context, c *pgx.Conn) func() (int, error) {
		last := int64(0)
		return func() (int, error) {
			from, got := last, int64(0)
			count := func(rows pgx.Rows) error {
				var id int64
				var payload []byte
				_, err := pgx.ForEachRow(rows, []any{&id, &payload}, func() error {
					last = max(last, id)
					got++
					return nil
				})
				return err
			}
			deleted := int64(0)
			var err error
			if together {
				b := &pgx.Batch{}
				b.Queue(claim, n, from).Query(count)
				b.Queue(remove, from, n).Exec(func(tag pgconn.CommandTag) error {
					deleted = tag.RowsAffected()
					return nil
				})
				err = c.SendBatch(ctx, b).Close()
			} else {
				var rows pgx.Rows
				if rows, err = c.Query(ctx, claim, n, from); err == nil {
					err = count(rows)
				}
				if err == nil {
					var tag pgconn.CommandTag
					tag, err = c.Exec(ctx, remove, from, n)
					deleted = tag.RowsAffected()
				}
			}
			if err == nil && deleted != got {
				err = fmt.Errorf("raw limit: claimed %d, deleted %d", got, deleted)
			}
			return int(got), err
		}
	}
}
