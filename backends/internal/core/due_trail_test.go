package core

import (
	"testing"
	"time"
)

// TestDueTrail: if queries from the beginning are slow for long, the ones between them begin where the last one ended.
func TestDueTrail(t *testing.T) {
	t.Parallel()
	var x dueTrail
	now, database := time.Unix(1_000_000, 0), time.Unix(2_000_000, 0)
	look := func(after, took time.Duration, watched bool, want time.Time, first *time.Time) {
		t.Helper()
		now, database = now.Add(after), database.Add(after)
		from := x.From(now, watched)
		if !from.Equal(want) {
			t.Fatalf("from %v, want %v", from, want)
		}
		x.Looked(from, now, took, Due{At: database, RunAt: first})
	}
	begin := time.Time{}
	recent := func(after time.Duration) time.Time { return database.Add(after - dueOverlap) } // from the query `after` ago on
	const slow = 100 * time.Millisecond
	look(0, slow, true, begin, nil) // there is no better start yet
	look(time.Second, slow, true, recent(0), nil)
	for range slowDues - 1 {
		look(time.Second, slow, false, begin, nil)
	}
	look(time.Second, slow, false, recent(0), nil)
	look(dueShare*slow, slow, false, begin, nil)
	stays := database.Add(-time.Hour)
	look(time.Second, slow, false, recent(0), &stays)
	look(time.Second, slow, false, stays.Add(-dueOverlap), nil)
	look(time.Hour, 0, false, begin, nil) // quick again
	look(time.Second, slow, false, begin, nil)
	look(-time.Hour, slow, true, database.Add(-dueOverlap), nil) // set back: the next query is complete
	look(time.Second, slow, false, begin, nil)
}
