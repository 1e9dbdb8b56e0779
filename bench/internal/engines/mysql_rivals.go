package engines

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"

	driver "github.com/go-sql-driver/mysql"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
)

const myRivalTable = `CREATE TABLE rival (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, queue VARCHAR(64) NOT NULL, state SMALLINT NOT NULL DEFAULT 0,
	payload VARBINARY(200) NOT NULL, token BIGINT, KEY rival_ready (queue, state, id), KEY rival_token (token)) ENGINE=InnoDB`

// Fill implements database.
func (m *myDatabase) Fill(ctx context.Context, jobs int) error {
	if err := m.makeNumbers(ctx); err != nil {
		return err
	}
	if _, err := m.c.ExecContext(ctx, "DROP TABLE IF EXISTS rival; "+myRivalTable); err != nil {
		return err
	}
	if err := m.insert(ctx, jobs, "INSERT INTO rival (queue, payload) SELECT 'q', REPEAT('a', ?) FROM numbers", measure.PayloadSize); err != nil {
		return err
	}
	_, err := m.c.ExecContext(ctx, "ANALYZE TABLE rival")
	return err
}

// Rivals implements database.
func (m *myDatabase) Rivals() []measure.Rival {
	session := func(work func(ctx context.Context, c *myConn) func() (int, error)) func(context.Context) (func() (int, error), func() error, error) {
		return func(ctx context.Context) (func() (int, error), func() error, error) {
			c, err := m.connect(ctx)
			if err != nil {
				return nil, nil, err
			}
			if _, err := c.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
				return nil, nil, errors.Join(err, c.Close())
			}
			return work(ctx, c), c.Close, nil
		}
	}
	rivals := []measure.Rival{
		{Key: measure.KeyTwo, Name: "two short transactions", Workers: 32, Part: 0.125, Session: session(myTwo)},
		{Key: "token", Name: "UPDATE … LIMIT 1 by a token", Workers: 32, Part: 0.0625, Session: session(myToken)},
	}
	for _, x := range []struct {
		key  string
		n    int
		part float64
	}{{"raw-32", 32, 1}, {"raw-100", 100, 1}, {measure.KeyRaw, 1000, 2}} {
		rivals = append(rivals, measure.Rival{Key: x.key, Name: fmt.Sprintf("raw limit, n = %d", x.n), Workers: 1, Part: x.part, Session: session(myRaw(x.n))})
	}
	return rivals
}

// again reports whether the server rolled the transaction back because of a deadlock.
func again(err error) bool {
	var said *driver.MySQLError
	return errors.As(err, &said) && (said.Number == 1213 || said.Number == 1205)
}

// myTwo locks and marks a job in one transaction and marks it done in another.
func myTwo(ctx context.Context, c *myConn) func() (int, error) {
	try := func() (int64, error) {
		tx, err := c.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback() // does nothing after a commit
		var id int64
		err = tx.QueryRowContext(ctx, "SELECT id FROM rival WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED").Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, nil
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE rival SET state = 1 WHERE id = ?", id)
		}
		if err == nil {
			err = tx.Commit()
		}
		return id, err
	}
	return func() (int, error) {
		for {
			id, err := try()
			if again(err) {
				continue
			}
			if err == nil && id != 0 {
				_, err = c.ExecContext(ctx, "UPDATE rival SET state = 2 WHERE id = ?", id)
			}
			return int(min(id, 1)), err
		}
	}
}

// myToken claims one job with an UPDATE, finds it by its token, and deletes it.
func myToken(ctx context.Context, c *myConn) func() (int, error) {
	return func() (int, error) {
		token := rand.Int64()
		r, err := c.ExecContext(ctx, "UPDATE rival SET state = 1, token = ? WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT 1", token)
		for again(err) {
			r, err = c.ExecContext(ctx, "UPDATE rival SET state = 1, token = ? WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT 1", token)
		}
		if err != nil {
			return 0, err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return 0, err
		}
		var id int64
		var payload []byte
		if err := c.QueryRowContext(ctx, "SELECT id, payload FROM rival WHERE token = ?", token).Scan(&id, &payload); err != nil {
			return 0, err
		}
		_, err = c.ExecContext(ctx, "DELETE FROM rival WHERE id = ?", id)
		return 1, err
	}
}

// myRaw claims n jobs and deletes them in one transaction of two round trips, the fastest way on
// this server. It starts after the last claim.
func myRaw(n int) func(ctx context.Context, c *myConn) func() (int, error) {
	return func(ctx context.Context, c *myConn) func() (int, error) {
		last := int64(0)
		return func() (int, error) {
			from, got := last, 0
			// The first result is that of BEGIN, which is empty.
			rows, err := c.QueryContext(ctx, `BEGIN; SELECT id, payload FROM rival WHERE queue = 'q' AND state = 0 AND id > ?
				ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED`, from, n)
			if err != nil {
				return 0, err
			}
			defer rows.Close()
			for more := true; more; more = rows.NextResultSet() {
				for rows.Next() {
					var payload []byte
					if err := rows.Scan(&last, &payload); err != nil {
						return 0, err
					}
					got++
				}
			}
			if err := rows.Err(); err != nil {
				return 0, err
			}
			// No other session uses the table, so the ids have no gaps.
			_, err = c.ExecContext(ctx, `UPDATE rival SET state = 1, token = 7 WHERE id > ? AND id <= ? AND state = 0;
				DELETE FROM rival WHERE id > ? AND id <= ? AND token = 7; COMMIT`, from, last, from, last)
			return got, err
		}
	}
}
