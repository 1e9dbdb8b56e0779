package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
)

// staleOnMySQL are the tables of MySQL and MariaDB in which settles come too late. In A
// and C nothing but a small number tells who has a row.
func staleOnMySQL() []staleCase {
	a := staleCase{
		adoption: systemA, worker: "w", own: modeOwn,
		cleaner: "UPDATE things SET status=1, pid=NULL WHERE id=? AND status=2",
		row:     "SELECT CONCAT_WS(' ', id, status, COALESCE(pid, '-'), created_at, thing) FROM things WHERE id=?",
	}
	c := staleCase{
		adoption: systemC, worker: "w", own: modeOwn,
		cleaner: "UPDATE queue_test SET transaction_unique=NULL WHERE id=? AND transaction_unique IS NOT NULL",
		row:     "SELECT COALESCE((SELECT CONCAT_WS(' ', id, COALESCE(transaction_unique, '-'), payload) FROM queue_test WHERE id=?), 'deleted')",
	}
	d := staleCase{
		adoption: systemDOnMySQL, worker: "w", own: modeOwn,
		cleaner: "UPDATE MsgQueue SET State = 'N', ReaderCode = NULL, TakenTime = NULL WHERE MsgId = ? AND State = 'A'",
		row:     "SELECT CONCAT_WS(' ', MsgId, State, COALESCE(ReaderCode, '-'), CreateTime, COALESCE(TakenTime, '-'), COALESCE(DoneTime, '-')) FROM MsgQueue WHERE MsgId = ?",
	}
	d.config = strings.ReplaceAll(d.config, "stuck_after: 4s", "")
	// Own consumers that use the sidecar's number: their rows look like its own until
	// they are finished.
	sameA, sameC := a, c
	sameA.name, sameA.queue, sameA.alike = "a-same-number", "a-same-number", true
	sameC.name, sameC.queue, sameC.alike = "c-same-number", "c-same-number", true
	sameC.config = strings.Replace(sameC.config, "[16000000, 16777215]", "[16777215, 16777215]", 1)
	return []staleCase{a, sameA, c, sameC, d}
}

func init() {
	staleOwn["a"] = underOtherNames(ownOnMySQL["a"])
	staleOwn["a-same-number"] = ownConsumer{
		take: func(ctx context.Context, c *sql.Conn, _ string, most int) ([]string, error) {
			return ownOnMySQL["a"].take(ctx, c, modeThrough, most)
		},
		finish: ownOnMySQL["a"].finish,
	}
	staleOwn["c"] = ownOnMySQL["c"]
	staleOwn["c-same-number"] = byNumber(func() int { return 16_777_215 }, "DELETE FROM queue_test WHERE id=?")
	staleOwn["d_mysql"] = ownOnMySQL["d_mysql"]
}

// underOtherNames is a consumer each of whose takes is that of another one.
func underOtherNames(own ownConsumer) ownConsumer {
	var n atomic.Int64
	return ownConsumer{
		take: func(ctx context.Context, c *sql.Conn, name string, most int) ([]string, error) {
			return own.take(ctx, c, fmt.Sprintf("%s-%d", name, n.Add(1)), most)
		},
		finish: own.finish,
	}
}
