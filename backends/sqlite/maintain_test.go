package sqlite

import (
	"context"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// TestLiveOwnerHidesNoLostOne locks the claims of owners that a scan found to be lost. One of them
// is alive again: its claims stay, and those of the owners after it are reaped.
func TestLiveOwnerHidesNoLostOne(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	ctx := t.Context()
	const live, lost backends.Identity = 1, 2
	for _, sidecar := range []backends.Identity{live, lost} {
		if _, err := s.Commit(ctx, one); err != nil {
			t.Fatal(err)
		}
		if jobs := claim(t, s, sidecar, "q", 1); len(jobs) != 1 {
			t.Fatalf("%d claimed %d jobs", sidecar, len(jobs))
		}
	}
	if err := exec(t, s, `UPDATE qsidecar_sidecars SET dead = 1 WHERE sidecar = 2`); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(ctx, core.TxOptions{}, func(ctx context.Context, tx core.Tx) error {
		rows, seen, err := tx.LockLost(ctx, core.Due{Lost: []int64{int64(live), int64(lost)}}, 10)
		if len(rows) != 1 || seen != 1 || rows[0].Owner != lost {
			t.Errorf("%d rows of %d: %+v", len(rows), seen, rows)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
