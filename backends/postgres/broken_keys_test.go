package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestKeysOutOfOrder checks that jobs become ready although maintenance can't read the keys that it has to delete.
func TestKeysOutOfOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		s := open(t, Options{URL: url})
		if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Delay: time.Hour}}}}}); err != nil {
			t.Fatal(err)
		}
		must(t, url, `UPDATE qsidecar.qsidecar_jobs SET run_at = now() - interval '1 s' WHERE state = 'scheduled'; ALTER TABLE qsidecar.qsidecar_keys RENAME TO away`)
		r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 100, Prune: true})
		if r.Promoted != 1 || err == nil || !strings.Contains(err.Error(), "qsidecar_keys") {
			t.Errorf("%d jobs became ready, want 1; error %v", r.Promoted, err)
		}
	})
}
