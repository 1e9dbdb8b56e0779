package adopted

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
)

// lockedByOthers checks that a program which keeps a row locked in an open transaction delays at
// most its own queue. At REPEATABLE READ the lock includes the gap beside the row, where claimed
// rows of the same index move, and some servers can't skip locked rows.
func lockedByOthers(t *testing.T, h adopt.Server, d adopt.Table) {
	d.Config += "  mail: {}\n"
	b := newSharedTable(d, t, h, 5)
	tx, err := b.c.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() // does nothing the second time
	var item string
	if err := tx.QueryRowContext(t.Context(), "SELECT MsgId FROM MsgQueue WHERE MsgTypeCode = 'ORD' AND State = 'N' ORDER BY CreateTime, MsgId LIMIT 1 FOR UPDATE").Scan(&item); err != nil {
		t.Fatal(err)
	}
	waiting := b.sc.Dial()
	waiting.Post(kit.Msg{"op": "claim", "queue": d.Name, "wait_ms": kit.WaitMS()})
	for _, queues := range [][]string{{"mail"}, {d.Name, "mail"}} {
		b.w.Must(kit.Msg{"op": "enqueue", "queue": "mail", "payload": "x"})
		jobs := b.w.Must(kit.Msg{"op": "claim", "queues": queues, "wait_ms": kit.WaitMS()}).Jobs
		if len(jobs) != 1 || jobs[0].Queue != "mail" {
			t.Fatalf("of %v: %+v", queues, jobs)
		}
		b.w.Must(kit.Msg{"op": "ack", "lease": jobs[0].Lease})
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if r := waiting.Next(); len(r.Jobs) != 1 {
		t.Errorf("after the lock: %+v, %v", r.Jobs, r.Error)
	}
}
