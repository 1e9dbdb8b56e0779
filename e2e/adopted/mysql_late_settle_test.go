package adopted

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
)

// staleOnMySQL returns the tables on MySQL and MariaDB for late settles. In systems A and C only a
// small number identifies the owner of a row.
func staleOnMySQL() []staleCase {
	a := staleCase{
		Table: systemA, worker: "w", own: adopt.Own,
		cleaner: "UPDATE things SET status=1, pid=NULL WHERE id=? AND status=2",
		row:     "SELECT CONCAT_WS(' ', id, status, COALESCE(pid, '-'), created_at, thing) FROM things WHERE id=?",
	}
	c := staleCase{
		Table: systemC, worker: "w", own: adopt.Own,
		cleaner: "UPDATE queue_test SET transaction_unique=NULL WHERE id=? AND transaction_unique IS NOT NULL",
		row:     "SELECT COALESCE((SELECT CONCAT_WS(' ', id, COALESCE(transaction_unique, '-'), payload) FROM queue_test WHERE id=?), 'deleted')",
	}
	d := staleCase{
		Table: systemDOnMySQL, worker: "w", own: adopt.Own,
		cleaner: "UPDATE MsgQueue SET State = 'N', ReaderCode = NULL, TakenTime = NULL WHERE MsgId = ? AND State = 'A'",
		row:     "SELECT CONCAT_WS(' ', MsgId, State, COALESCE(ReaderCode, '-'), CreateTime, COALESCE(TakenTime, '-'), COALESCE(DoneTime, '-')) FROM MsgQueue WHERE MsgId = ?",
	}
	d.Config = strings.ReplaceAll(d.Config, "stuck_after: 20s", "")
	// Own consumers that use the sidecar's number: their rows look like the sidecar's until they
	// are finished.
	sameA, sameC := a, c
	sameA.Name, sameA.queue, sameA.alike = "a-same-number", "a-same-number", true
	sameC.Name, sameC.queue, sameC.alike = "c-same-number", "c-same-number", true
	sameC.Config = strings.Replace(sameC.Config, "[16000000, 16777215]", "[16777215, 16777215]", 1)
	return []staleCase{a, sameA, c, sameC, d}
}

func init() {
	staleOwn["a"] = underOtherNames(ownOnMySQL["a"])
	staleOwn["a-same-number"] = adopt.OwnConsumer{
		Take: func(ctx context.Context, c *sql.Conn, _ string, most int) ([]string, error) {
			return ownOnMySQL["a"].Take(ctx, c, adopt.Through, most)
		},
		Finish: ownOnMySQL["a"].Finish,
	}
	staleOwn["c"] = ownOnMySQL["c"]
	staleOwn["c-same-number"] = byNumber(func() int { return 16_777_215 }, "DELETE FROM queue_test WHERE id=?")
	staleOwn["d_mysql"] = ownOnMySQL["d_mysql"]
}

// underOtherNames makes each claim of an own consumer use another name.
func underOtherNames(own adopt.OwnConsumer) adopt.OwnConsumer {
	var n atomic.Int64
	return adopt.OwnConsumer{
		Take: func(ctx context.Context, c *sql.Conn, name string, most int) ([]string, error) {
			return own.Take(ctx, c, fmt.Sprintf("%s-%d", name, n.Add(1)), most)
		},
		Finish: own.Finish,
	}
}
