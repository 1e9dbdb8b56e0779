package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestOldMarksGo: each run of a sidecar leaves the number of its last commit. Maintenance deletes
// the numbers of old runs, even if there is no key and no finished job to prune.
func TestOldMarksGo(t *testing.T) {
	now := time.Now()
	path := filepath.Join(t.TempDir(), "q.db")
	for range 20 {
		s, err := Open(t.Context(), Options{Path: path, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Prune: true}); err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		if err := s.reading(t.Context(), func(t *tx) error {
			return t.query(`SELECT count(*) FROM qsidecar_commits`, func(r row) error { n = r.int(0); return nil })
		}); err != nil {
			t.Fatal(err)
		}
		if n < 1 || n > 3 {
			t.Errorf("%d numbers of commits, want its own and those of a week", n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		now = now.Add(5 * 24 * time.Hour)
	}
}
