package adopted

import (
	"context"
	"database/sql"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
)

// numbered is a table j of the numbers n from 0 to %d - 1. The LIMIT of the query must be known,
// because servers stop recursion after 1,000 steps.
const numbered = `(WITH RECURSIVE d (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM d WHERE n < 99)
		SELECT 100 * a.n + b.n AS n FROM d a, d b ORDER BY 1 LIMIT %d) j`

// systemA is the table of system A. Its consumers claim rows in no order and keep done rows.
var systemA = adopt.Table{
	Name: "a", SidecarTimeout: 30 * time.Second,
	DDL: `CREATE TABLE things (id int AUTO_INCREMENT PRIMARY KEY, status tinyint NOT NULL DEFAULT 1, pid int NULL,
		created_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), thing varchar(100) NULL, KEY (status, created_at), KEY (pid));
		INSERT INTO things (thing) SELECT n FROM ` + numbered + `;`,
	Config: `
    table: things
    columns: {id: id, payload: thing, state: status, created_at: created_at}
    states: {ready: 1, claimed: 2, done: 3}
    token: {column: pid, value: 900001}
`,
	CountOpen: `SELECT CAST(count(*) AS CHAR) FROM things WHERE status <> 3`,
	Rows:      `SELECT CONCAT_WS(' ', id, status, COALESCE(pid, '-'), IF(status = 3, 't', 'f')) FROM things`,
	WorkerLabel: func(who string) string {
		if n, own := strings.CutPrefix(who, adopt.Own+"-"); own {
			return n
		}
		return "900001"
	},
}

// oldestA and newestA are system A with the published orders. One deletes done rows.
var oldestA, newestA = as(systemA, "a_oldest", "created_at: created_at}", "created_at: created_at}\n    order: [created_at]"),
	deletes(as(systemA, "a_newest", "created_at: created_at}", "created_at: created_at}\n    order: [created_at desc]\n    on_ack: delete"))

// as returns the system under another name, with one part of its config replaced.
func as(a adopt.Table, name, before, after string) adopt.Table {
	a.Name, a.Config = name, strings.Replace(a.Config, before, after, 1)
	return a
}

// deletes makes the system delete done rows.
func deletes(a adopt.Table) adopt.Table {
	a.DeletesDone = true
	return a
}

// systemC is the table of system C. Its consumers claim several rows at once under a random number,
// and delete accepted rows. The sidecar uses the last numbers with 24 bits.
var systemC = adopt.Table{
	Name: "c", SidecarTimeout: 30 * time.Second,
	DDL: `CREATE TABLE queue_test (id int unsigned AUTO_INCREMENT PRIMARY KEY, transaction_unique mediumint unsigned NULL, payload text NOT NULL, KEY (transaction_unique));
		INSERT INTO queue_test (payload) SELECT JSON_OBJECT('n', n) FROM ` + numbered + `;`,
	Config: `
    table: queue_test
    columns: {id: id, payload: payload}
    token: {column: transaction_unique, range: [16000000, 16777215]}
    on_ack: delete
`,
	CountOpen: `SELECT CAST(count(*) AS CHAR) FROM queue_test`,
	Rows:      `SELECT CONCAT_WS(' ', id, 'there', CASE WHEN transaction_unique >= 16000000 THEN 'sidecar' WHEN transaction_unique IS NULL THEN '-' ELSE 'own' END, 'f') FROM queue_test`,
	WorkerLabel: func(who string) string {
		if strings.HasPrefix(who, adopt.Own) {
			return "own"
		}
		return "sidecar"
	},
	DeletesDone: true,
	MaxClaim:    5,
}

// archivingC is system C with consumers that archive accepted rows.
var archivingC = adopt.Table{
	Name: "c_archive",
	DDL: systemC.DDL + `CREATE TABLE queue_test_archive (id int unsigned PRIMARY KEY, transaction_unique mediumint unsigned NULL, payload text NOT NULL,
		accepted timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP);`,
	Config:    strings.Replace(systemC.Config, "on_ack: delete", "on_ack: {archive: queue_test_archive}", 1),
	CountOpen: systemC.CountOpen,
	Rows: systemC.Rows + ` UNION ALL ` + strings.NewReplacer("'there'", "'accepted'", "'f'", "IF(accepted IS NULL, 'f', 't')", "queue_test", "queue_test_archive").
		Replace(systemC.Rows),
	WorkerLabel: systemC.WorkerLabel,
	MaxClaim:    5,
}

var systemDOnMySQL = adopt.Table{
	Name: "d_mysql", SidecarTimeout: 30 * time.Second,
	DDL: `CREATE TABLE MsgQueue (MsgId int AUTO_INCREMENT PRIMARY KEY, MsgTypeCode char(3) NOT NULL, SourceCode varchar(10) NULL,
		State char(1) NOT NULL DEFAULT 'N', CreateTime datetime(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), Msg text NULL,
		ReaderCode varchar(20) NULL, TakenTime datetime(3) NULL, DoneTime datetime(3) NULL, KEY (MsgTypeCode, State, CreateTime));
		INSERT INTO MsgQueue (MsgTypeCode, Msg) SELECT x, n FROM ` + numbered + `, (SELECT 'ORD' AS x UNION ALL SELECT 'INV') x;`,
	Config: `
    table: MsgQueue
    columns: {id: MsgId, payload: Msg, state: State, created_at: CreateTime, worker: ReaderCode, claimed_at: TakenTime, finished_at: DoneTime}
    states: {ready: N, claimed: A, done: C, dead: E}
    where: {MsgTypeCode: ORD}
    order: [CreateTime]
    stuck_after: 20s
`,
	CountOpen: `SELECT CAST(count(*) AS CHAR) FROM MsgQueue WHERE MsgTypeCode = 'ORD' AND State <> 'C' OR MsgTypeCode = 'INV' AND State <> 'N'`,
	Rows: `SELECT CONCAT_WS(' ', MsgId, State, COALESCE(ReaderCode, '-'), IF(TakenTime <= DoneTime AND TakenTime >= CreateTime, 't', 'f'))
		FROM MsgQueue WHERE MsgTypeCode = 'ORD'`,
	KeepsClaims: true,
}

// ownOnMySQL are the own consumers of those systems, by the name of the queue.
var ownOnMySQL = map[string]adopt.OwnConsumer{
	"a":        byPid("", "UPDATE things SET status=3 WHERE id=?"),
	"a_oldest": byPid(" ORDER BY created_at ASC", "UPDATE things SET status=3 WHERE id=?"),
	"a_newest": byPid(" ORDER BY created_at DESC", "DELETE FROM things WHERE id=?"),
	"c":        byRandomNumber("DELETE FROM queue_test WHERE id=?"),
	"c_archive": byRandomNumber(
		"INSERT INTO queue_test_archive (id, transaction_unique, payload) SELECT id, transaction_unique, payload FROM queue_test WHERE id=?",
		"DELETE FROM queue_test WHERE id=?"),
	"d_mysql": adopt.TwoTransactions(
		`SELECT MsgId FROM MsgQueue WHERE MsgTypeCode = 'ORD' AND State = 'N' ORDER BY CreateTime LIMIT 1 FOR UPDATE`,
		`UPDATE MsgQueue SET State = 'A', ReaderCode = ?, TakenTime = NOW(3) WHERE MsgId = ?`,
		`UPDATE MsgQueue SET State = 'C', ReaderCode = ?, DoneTime = NOW(3) WHERE MsgId = ?`),
}

func init() { maps.Copy(adopt.OwnConsumers, ownOnMySQL) }

// byPid returns the consumers of system A. Each has its own number, from its name.
func byPid(order, done string) adopt.OwnConsumer {
	return adopt.OwnConsumer{
		Take: func(ctx context.Context, c *sql.Conn, name string, _ int) ([]string, error) {
			pid := systemA.WorkerLabel(name)
			if _, err := c.ExecContext(ctx, "UPDATE things SET status=2, pid=? WHERE status=1"+order+" LIMIT 1", pid); err != nil {
				return nil, err
			}
			return column(ctx, c, "SELECT id FROM things WHERE status=2 AND pid=?", pid)
		},
		Finish: func(ctx context.Context, c *sql.Conn, item, _ string) error {
			_, err := c.ExecContext(ctx, done, item)
			return err
		},
	}
}

// byRandomNumber returns the consumers of system C. Their numbers have 24 bits and differ from the
// sidecar's.
func byRandomNumber(accept ...string) adopt.OwnConsumer {
	return byNumber(func() int { return 1 + rand.IntN(16_000_000-1) }, accept...)
}

// byNumber claims rows under a number. accept are the statements that finish a row, in one
// transaction.
func byNumber(next func() int, accept ...string) adopt.OwnConsumer {
	return adopt.OwnConsumer{
		Take: func(ctx context.Context, c *sql.Conn, _ string, most int) ([]string, error) {
			number := next()
			if _, err := c.ExecContext(ctx, "UPDATE queue_test SET transaction_unique=? WHERE transaction_unique IS NULL ORDER BY id LIMIT ?", number, most); err != nil {
				return nil, err
			}
			return column(ctx, c, "SELECT id FROM queue_test WHERE transaction_unique=?", number)
		},
		Finish: func(ctx context.Context, c *sql.Conn, item, _ string) error {
			tx, err := c.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback() // does nothing after the commit
			for _, statement := range accept {
				if _, err := tx.ExecContext(ctx, statement, item); err != nil {
					return err
				}
			}
			return tx.Commit()
		},
	}
}

// column returns the first column of a query's rows.
func column(ctx context.Context, c *sql.Conn, query string, args ...any) (all []string, err error) {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, rows.Err()
}
