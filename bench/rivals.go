package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// rivals are what a worker does without a sidecar, on a table of their own in the
// same server: design.md §9 has the same statements.
type rivals struct {
	url     string
	workers int
}

const rivalTable = `DROP TABLE IF EXISTS rival;
CREATE TABLE rival (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, state smallint NOT NULL DEFAULT 0,
	payload bytea NOT NULL, token bigint);
CREATE INDEX rival_ready ON rival (queue, id) WHERE state = 0;`

func (r *rivals) fill(ctx context.Context, jobs int) error {
	c, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, rivalTable); err != nil {
		return err
	}
	if _, err = c.Exec(ctx, `INSERT INTO rival (queue, payload) SELECT 'q', decode(repeat('61', 100), 'hex') FROM generate_series(1, $1)`, jobs); err != nil {
		return err
	}
	_, err = c.Exec(ctx, `VACUUM ANALYZE rival`)
	return err
}

// each runs f on as many connections as there are workers until the table is empty, and
// returns jobs per second. f returns how many jobs it worked.
func (r *rivals) each(ctx context.Context, workers int, f func(c *pgx.Conn) (int, error)) (float64, error) {
	conns := make([]*pgx.Conn, workers)
	for i := range conns {
		c, err := pgx.Connect(ctx, r.url)
		if err != nil {
			return 0, err
		}
		defer c.Close(ctx)
		conns[i] = c
	}
	var done atomic.Int64
	errs := make(chan error, workers)
	var wg sync.WaitGroup
	began := time.Now()
	for _, c := range conns {
		wg.Go(func() {
			for {
				n, err := f(c)
				if err != nil {
					errs <- err
					return
				}
				if n == 0 {
					return
				}
				done.Add(int64(n))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	select {
	case err := <-errs:
		return 0, err
	default:
		return float64(done.Load()) / took.Seconds(), nil
	}
}

// twoTransactions is the classic: lock and mark in one, mark done in another.
func twoTransactions(ctx context.Context) func(c *pgx.Conn) (int, error) {
	return func(c *pgx.Conn) (int, error) {
		tx, err := c.Begin(ctx)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback(ctx) //nolint:errcheck // after a commit it does nothing
		var id int64
		err = tx.QueryRow(ctx, `SELECT id FROM rival WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED`).Scan(&id)
		if err == pgx.ErrNoRows {
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

// oneJob is the best SQL for one job at a time.
func oneJob(ctx context.Context) func(c *pgx.Conn) (int, error) {
	return func(c *pgx.Conn) (int, error) {
		var id int64
		var payload []byte
		err := c.QueryRow(ctx, `UPDATE rival SET state = 1 WHERE id = (SELECT id FROM rival WHERE queue = 'q' AND state = 0
			ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, payload`).Scan(&id, &payload)
		if err == pgx.ErrNoRows {
			return 0, nil
		}
		if err == nil {
			_, err = c.Exec(ctx, `DELETE FROM rival WHERE id = $1`, id)
		}
		return 1, err
	}
}

// rawLimit is claim n and delete n in one pipelined transaction on one connection:
// as fast as this server takes it.
func rawLimit(ctx context.Context, n int) func(c *pgx.Conn) (int, error) {
	var last int64
	return func(c *pgx.Conn) (int, error) {
		var b pgx.Batch
		b.Queue(`WITH n AS MATERIALIZED (SELECT id FROM rival WHERE queue = 'q' AND state = 0 AND id > $2 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
			UPDATE rival r SET state = 1, token = 7 FROM n WHERE r.id = n.id RETURNING r.id, r.payload`, n, last)
		b.Queue(`DELETE FROM rival WHERE token = 7 AND state = 1 AND id > $1 AND id <= $1 + $2`, last, n)
		res := c.SendBatch(ctx, &b)
		rows, err := res.Query()
		if err != nil {
			return 0, err
		}
		got := 0
		for rows.Next() {
			var id int64
			var payload []byte
			if err := rows.Scan(&id, &payload); err != nil {
				return 0, err
			}
			last = max(last, id)
			got++
		}
		tag, err := res.Exec()
		if err != nil {
			return 0, err
		}
		if tag.RowsAffected() != int64(got) {
			return 0, fmt.Errorf("raw limit: claimed %d, deleted %d", got, tag.RowsAffected())
		}
		return got, res.Close()
	}
}

func ratio(a, b float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.2f", a/b), ".00") + "×"
}
