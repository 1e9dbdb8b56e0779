package crash

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestBatchWithoutItsResolver kills a sidecar that answered the ack of a batch's last job, and waits for the lock of the batch's row.
// Another sidecar stores the callback, once.
func TestBatchWithoutItsResolver(t *testing.T) {
	t.Parallel()
	s, p := kit.NewPostgresSite(t)
	a := s.Start("a")
	c := a.Dial()
	id := c.Must(kit.Msg{"op": "open_batch", "queue": "callbacks", "on": "success", "payload": "the end"}).Batch.ID
	for range 2 {
		c.Must(kit.Msg{"op": "enqueue", "queue": "q", "batch": id})
	}
	c.Must(kit.Msg{"op": "close_batch", "queue": "callbacks", "batch": id})
	jobs := []kit.Job{c.ClaimOne("q"), c.ClaimOne("q")}
	c.Must(kit.Msg{"op": "ack", "lease": jobs[0].Lease})

	ctx := testwait.Context(t)
	other, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(ctx)
	tx, err := other.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "SELECT FROM qsidecar.qsidecar_batches FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	c.Must(kit.Msg{"op": "ack", "lease": jobs[1].Lease})
	testwait.Until(t, "the sidecar waits for the batch", func() bool {
		return len(p.Query(p.URL, "SELECT pid::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%qsidecar_batches%'")) > 0
	})
	a.Kill()
	b := s.Start("b").Dial()
	if n := b.Stats("callbacks"); n.Total() != 0 {
		t.Errorf("callbacks before the end of the lock: %+v", n)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	j := b.ClaimOne("callbacks")
	if j.Payload != "the end" || j.Headers["qsidecar-callback-of"] != id || j.Headers["qsidecar-batch-done"] != "2" {
		t.Errorf("the callback is %+v", j)
	}
	testwait.Until(t, "no note and no member is left", func() bool {
		return p.Query(p.URL, "SELECT ((SELECT count(*) FROM qsidecar.qsidecar_batch_notes) + (SELECT count(*) FROM qsidecar.qsidecar_batch_members))::text")[0] == "0"
	})
	a.Start()
	a.Dial().Must(kit.Msg{"op": "close_batch", "queue": "callbacks", "batch": id}) // resolves it again
	if n := b.Stats("callbacks"); n.Total() != 1 {
		t.Errorf("callbacks at the end: %+v", n)
	}
}
