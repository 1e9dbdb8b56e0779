package backendref

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestReplace shows that a replaced Backend is no longer used when its last call has ended. After Retire the
// reference is unavailable.
func TestReplace(t *testing.T) {
	var done []string
	r := New(memory.New(), nil, func() { done = append(done, "first") })
	_, release := r.use()
	r.Replace(memory.New(), nil, func() { done = append(done, "second") })
	if len(done) > 0 {
		t.Errorf("%v are done with during a call", done)
	}
	release()
	r.Retire()
	if len(done) != 2 || done[0] != "first" || done[1] != "second" {
		t.Errorf("done with: %v", done)
	}
	if _, err := r.Commit(t.Context(), backends.CommitContent{}); !backends.Retryable(err) {
		t.Errorf("a commit after Retire: %v", err)
	}
	if r.Adopted("q") || r.ClaimsInTx("q") || r.InTx(backends.Lease{}) {
		t.Error("it has adopted tables after Retire")
	}
}
