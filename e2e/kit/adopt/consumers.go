package adopt

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
)

// OwnConsumer is a table's own consumer, with the SQL of its own application.
type OwnConsumer struct {
	// Take claims at most that many rows for this consumer. It returns none if there are none.
	Take func(ctx context.Context, c *sql.Conn, name string, most int) (items []string, err error)
	// Finish finishes one of the rows.
	Finish func(ctx context.Context, c *sql.Conn, item, name string) error
}

// OwnConsumers are the own consumers of each table, by the name of its queue.
var OwnConsumers = map[string]OwnConsumer{
	"e": TwoTransactions(
		`SELECT queue_item_id::text FROM my_queue WHERE state = 'waiting' ORDER BY created_dt, queue_item_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
		`UPDATE my_queue SET state = 'processing', worker_name = $2 WHERE queue_item_id = $1::text::bigint`,
		`UPDATE my_queue SET state = 'done', finished_dt = now(), worker_name = $2 WHERE queue_item_id = $1::text::bigint`),
	// The same in one long transaction. The row does not show that it is claimed.
	"e-long": OneTransaction(
		`SELECT queue_item_id::text FROM my_queue WHERE state = 'waiting' ORDER BY created_dt, queue_item_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
		`UPDATE my_queue SET state = 'done', finished_dt = clock_timestamp(), worker_name = $2 WHERE queue_item_id = $1::text::bigint`),
	// The published SQL reads without a lock, so its own consumers can claim a row twice. With a
	// lock they can't.
	"d": TwoTransactions(
		`SELECT MsgId::text FROM MsgQueue WHERE MsgTypeCode = 'ORD' AND State = 'N' ORDER BY CreateTime LIMIT 1 FOR UPDATE`,
		`UPDATE MsgQueue SET State = 'A', ReaderCode = $2, TakenTime = localtimestamp WHERE MsgId = $1::text::int`,
		`UPDATE MsgQueue SET State = 'C', ReaderCode = $2, DoneTime = localtimestamp WHERE MsgId = $1::text::int`),
}

// TwoTransactions is a consumer that locks and marks a row in one transaction and finishes it in
// another. claim and finish get the row's id and the consumer's name. On MySQL, whose arguments
// have no numbers, the name comes first.
func TwoTransactions(take, claim, finish string) OwnConsumer {
	return OwnConsumer{
		Take: func(ctx context.Context, c *sql.Conn, name string, _ int) (items []string, err error) {
			tx, err := c.BeginTx(ctx, nil)
			if err != nil {
				return nil, err
			}
			defer tx.Rollback() // does nothing after the commit
			var item string
			if err := tx.QueryRowContext(ctx, take).Scan(&item); errors.Is(err, sql.ErrNoRows) {
				return nil, nil
			} else if err != nil {
				return nil, err
			}
			if _, err := tx.ExecContext(ctx, claim, itemAndName(claim, item, name)...); err != nil {
				return nil, err
			}
			return []string{item}, tx.Commit()
		},
		Finish: func(ctx context.Context, c *sql.Conn, item, name string) error {
			_, err := c.ExecContext(ctx, finish, itemAndName(finish, item, name)...)
			return err
		},
	}
}

// OneTransaction is a consumer that keeps a row locked until it has finished it.
func OneTransaction(take, finish string) OwnConsumer {
	return OwnConsumer{
		Take: func(ctx context.Context, c *sql.Conn, _ string, _ int) (items []string, err error) {
			if _, err := c.ExecContext(ctx, "BEGIN"); err != nil {
				return nil, err
			}
			var item string
			if err = c.QueryRowContext(ctx, take).Scan(&item); err == nil {
				return []string{item}, nil
			}
			if errors.Is(err, sql.ErrNoRows) {
				err = nil
			}
			_, ended := c.ExecContext(ctx, "ROLLBACK")
			return nil, errors.Join(err, ended)
		},
		Finish: func(ctx context.Context, c *sql.Conn, item, name string) error {
			if _, err := c.ExecContext(ctx, finish, item, name); err != nil {
				return err
			}
			_, err := c.ExecContext(ctx, "COMMIT")
			return err
		},
	}
}

func itemAndName(statement, item, name string) []any {
	if strings.Contains(statement, "?") {
		return []any{name, item}
	}
	return []any{item, name}
}

// runOwnConsumer works until stop is closed. If the server ends its transaction because of a
// deadlock, it repeats the transaction.
func runOwnConsumer(task worker, stop <-chan struct{}) error {
	ctx := context.Background()
	sheet, err := openWorksheet(task, stop)
	if err != nil {
		return err
	}
	defer sheet.Close()
	db, err := databases.Open(task.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	own, most := OwnConsumers[task.Queue], task.Most
	if sheet.holds != nil {
		most = 1 // when it is killed, it holds only the job that the sheet names
	}
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		items, err := own.Take(ctx, c, task.Name, most)
		switch {
		case databases.Deadlocked(err):
			continue
		case err != nil:
			return err
		case len(items) == 0:
			kit.Pace()
		}
		for _, item := range items {
			if err := sheet.work(item); err != nil {
				return err
			}
			for err = own.Finish(ctx, c, item, task.Name); databases.Deadlocked(err); {
				err = own.Finish(ctx, c, item, task.Name)
			}
			if err != nil {
				return err
			}
		}
	}
}
