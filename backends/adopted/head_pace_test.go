package adopted_test

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestFastScans: if a scan from the beginning takes as long as others, nearly all claims scan from there.
func TestFastScans(t *testing.T) {
	t.Parallel()
	tables := map[string]mapping.Table{"q": headTable("q", headOrders[0])}
	k := newSQLiteKit(t, headDDL(sqliteProduct, "q", headOrders[0], 60, "NOT NULL"), tables)
	e := k.onCounted(sqliteProduct, tables)
	at := time.Now()
	k.SetClock(func() time.Time { at = at.Add(10 * time.Millisecond); return at })
	k.LetScansPay()
	whole := 0
	for range 60 {
		if k.one("q"); len(e.scans[0].Args) == 2 {
			whole++
		}
	}
	if whole < 48 || whole == 60 {
		t.Errorf("%d of 60 claims scanned from the beginning, want some more than 48", whole)
	}
}

// TestSlowScans: scans from the beginning that take 0.1 s are at least 2 s apart. If a queue has too few jobs, each claim is
// one scan, as without a head.
func TestSlowScans(t *testing.T) {
	t.Parallel()
	tables := map[string]mapping.Table{"q": headTable("q", headOrders[0])}
	k := newSQLiteKit(t, headDDL(sqliteProduct, "q", headOrders[0], 200, "NOT NULL"), tables)
	e := k.onCounted(sqliteProduct, tables)
	at := time.Now()
	k.SetClock(func() time.Time { at = at.Add(100 * time.Millisecond); return at })
	whole := 0
	for began := at; at.Sub(began) < 10*time.Second; {
		if k.one("q"); len(e.scans[0].Args) == 2 {
			whole++
		}
	}
	if whole != 5 {
		t.Errorf("%d scans from the beginning in 10 s, want 5", whole)
	}
	k.claim("q", 500)
	if jobs := k.claim("q", 5); len(jobs) > 0 || len(e.scans) != 1 {
		t.Errorf("claimed %d jobs of an empty queue with %d scans", len(jobs), len(e.scans))
	}
}
