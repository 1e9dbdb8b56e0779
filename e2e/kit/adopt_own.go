package kit

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
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
func runOwnConsumer(task WorkerTask, stop <-chan struct{}) error {
	ctx := context.Background()
	sheet, err := openWorksheet(task, stop)
	if err != nil {
		return err
	}
	defer sheet.Close()
	db, err := openURL(task.Socket)
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
		case Deadlocked(err):
			continue
		case err != nil:
			return err
		case len(items) == 0:
			Pace()
		}
		for _, item := range items {
			if err := sheet.work(item); err != nil {
				return err
			}
			for err = own.Finish(ctx, c, item, task.Name); Deadlocked(err); {
				err = own.Finish(ctx, c, item, task.Name)
			}
			if err != nil {
				return err
			}
		}
	}
}

// Deadlocked reports whether the server ended the transaction because of a deadlock.
func Deadlocked(err error) bool {
	e := (*mysql.MySQLError)(nil)
	return errors.As(err, &e) && e.Number == 1213
}

// openURL opens a pool of connections to the database of a URL, as the table's own programs do.
func openURL(at string) (*sql.DB, error) {
	if file, is := strings.CutPrefix(at, "sqlite:"); is {
		return sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	}
	if !strings.HasPrefix(at, "mysql://") {
		return sql.Open("pgx", at)
	}
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	c := mysql.NewConfig()
	c.User, c.Net, c.Addr, c.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	c.Passwd, _ = u.User.Password()
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// OwnersDB is a database with an adopted table, from its owner's view.
type OwnersDB struct {
	T testing.TB
	*sql.DB
}

// Owners opens the database until the test ends.
func Owners(t testing.TB, at string) OwnersDB {
	t.Helper()
	db, err := openURL(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return OwnersDB{t, db}
}

// Script runs statements. Each must end with a semicolon.
func (db OwnersDB) Script(text string) {
	db.T.Helper()
	for _, statement := range strings.SplitAfter(text, ";") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := db.ExecContext(db.T.Context(), statement); err != nil {
			db.T.Fatalf("%s: %v", statement, err)
		}
	}
}

// Texts returns the first column of a query's rows.
func (db OwnersDB) Texts(query string, args ...any) (all []string) {
	db.T.Helper()
	ctx := context.Background()
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		db.T.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			db.T.Fatalf("%s: %v", query, err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		db.T.Fatalf("%s: %v", query, err)
	}
	return all
}
