package e2e

import "testing"

// lockedByOthers: a program that keeps a row locked in an open transaction holds up its
// own queue at most. At REPEATABLE READ it locks the gap beside the row as well, where
// rows of the same index go when they are claimed; and some servers cannot pass over
// locked rows.
func lockedByOthers(t *testing.T, h tableServer, d adoption) {
	d.config += "  mail: {}\n"
	b := d.besideOwn(t, h, 5)
	tx, err := b.c.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() // a second time does nothing
	var item string
	if err := tx.QueryRowContext(t.Context(), "SELECT MsgId FROM MsgQueue WHERE MsgTypeCode = 'ORD' AND State = 'N' ORDER BY CreateTime, MsgId LIMIT 1 FOR UPDATE").Scan(&item); err != nil {
		t.Fatal(err)
	}
	waiting := b.sc.dial()
	waiting.post(msg{"op": "claim", "queue": d.name, "wait_ms": 3 * patience.Milliseconds()})
	for _, queues := range [][]string{{"mail"}, {d.name, "mail"}} {
		b.w.must(msg{"op": "enqueue", "queue": "mail", "payload": "x"})
		jobs := b.w.must(msg{"op": "claim", "queues": queues, "wait_ms": patience.Milliseconds()}).Jobs
		if len(jobs) != 1 || jobs[0].Queue != "mail" {
			t.Fatalf("of %v: %+v", queues, jobs)
		}
		b.w.must(msg{"op": "ack", "lease": jobs[0].Lease})
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if r := waiting.next(); len(r.Jobs) != 1 {
		t.Errorf("after the lock: %+v, %v", r.Jobs, r.Error)
	}
}
