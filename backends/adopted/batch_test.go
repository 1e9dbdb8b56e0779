package adopted_test

import (
	"errors"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestBatchesBesideAnAdoptedTable: jobs of managed queues can be in batches, also in a commit with jobs of an adopted table. A write about
// both kinds can't name a batch, and changes nothing.
func TestBatchesBesideAnAdoptedTable(t *testing.T) {
	t.Parallel()
	k := newKit(t, systemE, map[string]mapping.Table{"e": tableE()})
	id, _, err := k.OpenBatch(t.Context(), backends.NewBatch{On: backends.OnFinish, Callback: backends.NewJob{Queue: "callbacks"}, Expire: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	adopted, managed := backends.NewJob{Queue: "e", Payload: []byte(`{"n": 9}`)}, backends.NewJob{Queue: "mail", Batch: id}
	enqueue := func(jobs ...backends.NewJob) backends.Enqueue { return backends.Enqueue{Jobs: jobs} }
	var unsupported *backends.UnsupportedError
	wrong := adopted
	wrong.Batch = id
	for _, w := range []backends.Write{enqueue(wrong), enqueue(adopted, managed)} {
		if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{w}}); !errors.As(err, &unsupported) {
			t.Errorf("%+v: %v, want that it is unsupported", w, err)
		}
	}
	gone := managed
	gone.Batch = "17"
	r, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{enqueue(adopted), enqueue(managed), enqueue(gone)}})
	if err != nil {
		t.Fatal(err)
	}
	var refused *backends.BatchError
	if r.Writes[0].Err != nil || r.Writes[1].Err != nil || len(r.Writes[1].Stored) != 1 || !errors.As(r.Writes[2].Err, &refused) {
		t.Errorf("a commit with both kinds: %+v", r.Writes)
	}
	all, err := k.Batches(t.Context(), backends.BatchList{ID: id, Max: 1})
	if err != nil || len(all) != 1 || all[0].Left != 1 {
		t.Errorf("the batch: %+v, %v", all, err)
	}
}
