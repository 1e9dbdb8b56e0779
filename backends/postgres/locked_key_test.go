package postgres

import (
	"errors"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestKeyInAnOpenTransaction: an application has stored a key in a transaction that is still open. A
// commit with that key doesn't wait for the transaction to end, and writes nothing.
func TestKeyInAnOpenTransaction(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		tx := begun(t, s.o.URL, "INSERT INTO qsidecar.qsidecar_keys (queue, key, job, expires_at) VALUES ('q', 'k', 7, now() + interval '1 hour')")
		b := backends.CommitContent{Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: "k"}}},
		}}
		ctx := testwait.Context(t)
		for _, b.WaitForLocks = range []bool{false, true} {
			var locked *backends.LockedError
			if _, err := s.Commit(ctx, b); !errors.As(err, &locked) {
				t.Errorf("waiting alone %v: %v, want a LockedError", b.WaitForLocks, err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Commit(ctx, b); err != nil || r.Writes[0].Stored[0].Duplicate || !r.Writes[1].Stored[0].Duplicate {
			t.Errorf("%+v, %v", r, err)
		}
		if n := len(peek(t, s, 9)); n != 1 {
			t.Errorf("%d jobs are stored, want 1", n)
		}
	})
}
