package clients

import (
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestGoBatch opens a batch by the Go client, adds jobs, and gets its callback.
func TestGoBatch(t *testing.T) {
	t.Parallel()
	c, err := qsidecar.Dial(t.Context(), qsidecar.Options{Socket: kit.NewSite(t).Start("a").Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	opened := qsidecar.NewBatch{On: protocol.OnSuccess, Callback: protocol.NewJob{Queue: "reports", Payload: []byte(`{"day":7}`)}, Key: "day-7"}
	b, err := c.OpenBatch(t.Context(), opened)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.OpenBatch(t.Context(), opened); err != nil || again.ID != b.ID || !again.Duplicate {
		t.Errorf("a second batch with the key: %+v, %v", again, err)
	}
	if _, err := b.Enqueue(t.Context(), protocol.NewJob{Queue: "thumbnails"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.EnqueueMany(t.Context(), []protocol.NewJob{{Queue: "thumbnails"}, {Queue: "others"}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if view, err := b.Wait(t.Context(), 0); err != nil || view.State != "closed" {
		t.Errorf("before its jobs ended: %+v, %v", view, err)
	}
	for range 3 {
		jobs, err := c.Claim(t.Context(), qsidecar.Claim{Queues: []string{"thumbnails", "others"}, Wait: time.Minute})
		if err != nil || len(jobs) != 1 || jobs[0].Headers["qsidecar-batch"] != b.ID {
			t.Fatalf("a job of the batch: %+v, %v", jobs, err)
		}
		if err := c.Ack(t.Context(), jobs[0].Lease); err != nil {
			t.Fatal(err)
		}
	}
	view, err := b.Wait(t.Context(), time.Minute)
	if err != nil || view.State != "ended" || view.Done.Value != 3 || view.Callback == "" {
		t.Fatalf("the batch: %+v, %v", view, err)
	}
	jobs, err := c.Claim(t.Context(), qsidecar.Claim{Queues: []string{"reports"}, Wait: time.Minute})
	if err != nil || len(jobs) != 1 || jobs[0].ID != view.Callback || string(jobs[0].Payload) != `{"day":7}` {
		t.Errorf("the callback: %+v, %v", jobs, err)
	}
	other, err := c.OpenBatch(t.Context(), qsidecar.NewBatch{On: protocol.OnFinish, Callback: protocol.NewJob{Queue: "reports"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Enqueue(t.Context(), protocol.NewJob{Queue: "thumbnails"}); err != nil {
		t.Fatal(err)
	}
	if n, err := other.Cancel(t.Context()); err != nil || n != 1 {
		t.Errorf("cancel: %d, %v", n, err)
	}
	if _, err := b.Enqueue(t.Context(), protocol.NewJob{Queue: "thumbnails"}); !qsidecar.IsCode(err, protocol.CodeBadRequest) {
		t.Errorf("a job for a batch that has ended: %v", err)
	}
}
