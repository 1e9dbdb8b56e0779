package operator

import (
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// totals returns totals in which each number differs.
func totals(n int64) backends.Totals {
	t := backends.Totals{Ready: n, Enqueued: n + 1, Acked: n + 2, Failed: n + 3}
	for i := range t.Runs {
		t.Runs[i] = n + 4 + int64(i)
	}
	return t
}

func historian(k *Kit, b backends.Backend) backends.Historian {
	k.Helper()
	h, ok := b.(backends.Historian)
	if !ok {
		k.Fatalf("%T isn't a Historian", b)
	}
	return h
}

// add adds totals of a queue to the hours that a clock shows. It differs from the clock of the database.
func (k *Kit) add(now time.Time, rows ...backends.HourTotals) {
	k.Helper()
	if err := historian(k, k.Backend).AddHistory(k.Context(), now, rows); err != nil {
		k.Fatalf("add history: %v", err)
	}
}

// history returns the rows of a queue.
func (k *Kit) history(queue string) []backends.HourTotals {
	k.Helper()
	rows, err := historian(k, k.Backend).History(k.Context(), queue)
	if err != nil {
		k.Fatalf("history: %v", err)
	}
	return rows
}

// historyAddsUp adds totals of the same hour twice, from clocks that differ by years.
func historyAddsUp(k *Kit) {
	if rows := k.history(""); len(rows) != 0 {
		k.Fatalf("a new database has %+v", rows)
	}
	mine := time.Date(2001, 5, 3, 10, 30, 0, 0, time.UTC)
	other := mine.AddDate(20, 0, 0)
	at := func(clock time.Time, ago int64, queue string, t backends.Totals) backends.HourTotals {
		return backends.HourTotals{Hour: backends.HourOf(clock) - ago, Queue: queue, Totals: t}
	}
	k.add(mine, at(mine, 0, "q", totals(10)), at(mine, 1, "q", totals(20)), at(mine, 0, "_other", backends.NoTotals()))
	k.add(other, at(other, 0, "q", totals(5)), at(other, 0, "p", totals(1)))
	k.add(other, at(other, 0, "q", backends.NoTotals()))
	rows := k.history("q")
	if len(rows) != 2 || rows[0].Hour != rows[1].Hour-1 {
		k.Fatalf("q has the rows %+v", rows)
	}
	sum := totals(10)
	five := totals(5)
	sum.Add(&five)
	if rows[0].Totals != totals(20) || rows[1].Totals != sum || rows[1].Ready != 10 || rows[1].Runs[15] != 29+24 {
		k.Errorf("q has the rows %+v", rows)
	}
	var queues []string
	for _, r := range k.history("") {
		queues = append(queues, r.Queue)
	}
	if want := []string{"q", "_other", "p", "q"}; !slices.Equal(queues, want) {
		k.Errorf("the rows of all queues by hour are %q, want %q", queues, want)
	}
	if n := k.history("_other")[0].Ready; n != -1 {
		k.Errorf("an unknown number of ready jobs is stored as %d", n)
	}
}

// historyEnds shows that rows older than 14 days go with the next ones, and no others.
func historyEnds(k *Kit) {
	now := time.Date(2001, 5, 3, 10, 30, 0, 0, time.UTC)
	k.add(now, backends.HourTotals{Hour: backends.HourOf(now), Queue: "old", Totals: totals(1)})
	k.Advance(time.Hour)
	k.add(now, backends.HourTotals{Hour: backends.HourOf(now), Queue: "later", Totals: totals(1)})
	k.Advance((backends.HistoryHours - 1) * time.Hour)
	k.add(now, backends.HourTotals{Hour: backends.HourOf(now), Queue: "new", Totals: totals(1)})
	var queues []string
	for _, r := range k.history("") {
		queues = append(queues, r.Queue)
	}
	if want := []string{"later", "new"}; !slices.Equal(queues, want) {
		k.Errorf("after 14 days there are rows of %q, want %q", queues, want)
	}
}

// historyAtOnce adds from several sidecars at once to the same rows. Nothing is lost.
func historyAtOnce(k *Kit) {
	const sidecars, rounds, queues = 4, 5, 8
	now := time.Date(2001, 5, 3, 10, 30, 0, 0, time.UTC)
	var wg sync.WaitGroup
	for n := range sidecars {
		h := historian(k, k.OpenAnother())
		wg.Go(func() {
			for range rounds {
				var rows []backends.HourTotals
				for i := range queues {
					q := string(rune('a' + (i+n)%queues)) // each sidecar has its own order
					rows = append(rows, backends.HourTotals{Hour: backends.HourOf(now), Queue: q, Totals: totals(1)})
				}
				if err := h.AddHistory(k.Context(), now, rows); err != nil {
					k.Errorf("sidecar %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	for _, r := range k.history("") {
		if r.Enqueued != 2*sidecars*rounds || r.Ready != 1 || r.Runs[0] != 5*sidecars*rounds {
			k.Errorf("the queue %s has %+v", r.Queue, r.Totals)
		}
	}
	if n := len(k.history("")); n != queues {
		k.Errorf("there are %d rows, want %d", n, queues)
	}
}
