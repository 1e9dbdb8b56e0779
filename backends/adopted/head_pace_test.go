package adopted_test

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestFastScans shows that if a scan from the beginning takes as long as others, nearly all claims scan from there.
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

// TestSlowScans shows that scans from the beginning that take 0.1 s are at least 2 s apart. If a queue has too few jobs, each claim is
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
	if whole != 6 { // the first pause is a second, because one slow scan is chance
		t.Errorf("%d scans from the beginning in 10 s, want 6", whole)
	}
	k.claim("q", 500)
	if jobs := k.claim("q", 5); len(jobs) > 0 || len(e.scans) != 1 {
		t.Errorf("claimed %d jobs of an empty queue with %d scans", len(jobs), len(e.scans))
	}
}

// TestOneSlowScan shows that one scan from the beginning that is slow by chance doesn't delay the next ones.
func TestOneSlowScan(t *testing.T) {
	t.Parallel()
	k := newSQLiteKit(t, headDDL(sqliteProduct, "q", headOrders[0], 200, "NOT NULL"), map[string]mapping.Table{"q": headTable("q", headOrders[0])})
	at, step := time.Now(), 5*time.Second
	k.SetClock(func() time.Time { at = at.Add(step); return at })
	k.one("q")
	step = 10 * time.Millisecond
	k.sql("INSERT INTO q (id, state, urgency, made_at) VALUES ('early', 'new', 0, '2026-01-01 00:00:00')")
	for began := at; k.one("q").ID != "early"; {
		if late := at.Sub(began); late > 2*time.Second {
			t.Fatalf("a job that another program stored wasn't claimed for %v", late)
		}
	}
}
