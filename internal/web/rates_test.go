package web

import (
	"net/http"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestPlots checks the plots of the last hour: a sidecar that began in it, gaps, and a minute that isn't over.
func TestPlots(t *testing.T) {
	now := time.Unix(1_000_000*60+30, 0)
	at := func(ago int) int64 {
		return now.Add(-time.Duration(ago) * time.Minute).Truncate(time.Minute).UnixMilli()
	}
	n := protocol.Some[int64]
	h := &protocol.QueueHistory{Since: at(10) + 5000, Minutes: []protocol.HistoryPoint{
		{At: at(10), Enqueued: 10, Ready: n(5)}, {At: at(9), Enqueued: 21, Acked: 5, Runs: 5, RunP95MS: n(250)},
		{At: at(5), Acked: 10, Failed: 2, Ready: n(7), Runs: 1, RunP95MS: n(1000)}, {At: at(0), Enqueued: 100, Ready: n(1)}, {At: at(200), Enqueued: 1000},
	}}
	p := lastHour(h, now)
	for i, want := range map[int][5]int32{48: {-1, -1, -1, -1, -1}, 49: {10, 0, 0, 5, -1}, 50: {21, 5, 0, -1, 250}, 51: {0, 0, 0, -1, -1}, 54: {0, 10, 2, 7, 1000}, 58: {0, 0, 0, -1, -1}, 59: {-1, -1, -1, 1, -1}} {
		if got := [5]int32{p.Rates.In[i], p.Rates.Out[i], p.Rates.Failed[i], p.Ready[i], p.Run[i]}; got != want {
			t.Errorf("minute %d has %d, want %d", i, got, want)
		}
	}
	if p.ReadyLabel() != "ready jobs in the last hour: 1 to 7" || p.Rates.Label() != "jobs per minute of this sidecar: up to 21 in, up to 10 out, up to 2 failed attempts" ||
		p.RunLabel() != "run time of 95% of the runs in the last hour: ≤\u202f1s now, ≤\u202f1s at worst" {
		t.Errorf("the labels are %q, %q and %q", p.ReadyLabel(), p.Rates.Label(), p.RunLabel())
	}
	if p.Ready.Path() != "M49 6.14h0L54 1L59 16.4" || p.Rates.Last().In != 0 || p.Rates.PathFailed() == "" {
		t.Errorf("the plot of ready jobs is %q, the last rates are %+v", p.Ready.Path(), p.Rates.Last())
	}
	if p := lastHour(&protocol.QueueHistory{Since: at(1)}, now); p.Known() {
		t.Errorf("a single minute is a plot: %+v", p)
	}
	if p := lastHour(&protocol.QueueHistory{Since: at(120)}, now); p.Rates.PathIn() != "M0 19h0L58 19" || p.Rates.PathFailed() != "" {
		t.Errorf("an idle hour is %q", p.Rates.PathIn())
	}
}

// TestFourteenDays shows that the pages have the hours that other sidecars wrote.
func TestFourteenDays(t *testing.T) {
	s := newSite(t)
	s.enqueue("mail", "1")
	now := time.Now()
	var rows []backends.HourTotals
	for ago := range int64(200) {
		rows = append(rows, backends.HourTotals{Hour: backends.HourOf(now) - ago - 1, Queue: "mail", Totals: backends.Totals{Ready: ago, Enqueued: 1000 + ago, Acked: 900, Failed: 3}})
	}
	if err := s.store.AddHistory(t.Context(), now, rows); err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"/queue?name=mail&state=ready", "/"} {
		s.contains(page, s.get(page, http.StatusOK).source, "14 days by hour, all hosts", "jobs per hour: up to 1199 in, up to 900 out, up to 3 failed attempts", "ready jobs in the last 14 days: 0 to 199")
	}
}

// TestCountersOfThisSidecar checks the counters that the rates come from.
func TestCountersOfThisSidecar(t *testing.T) {
	s := newSite(t)
	s.enqueue("q", "1", "2", "3")
	ctx := testwait.Context(t)
	jobs, err := s.client.Claim(ctx, qsidecar.Claim{Queues: []string{"q"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.client.Ack(ctx, jobs[0].Lease); err != nil {
		t.Fatal(err)
	}
	rep, err := s.client.Call(ctx, &protocol.Request{Op: protocol.OpStats, Queue: "q"})
	if err != nil {
		t.Fatal(err)
	}
	if q := rep.Queues[0]; q.Enqueued != protocol.Some[int64](3) || q.Acked != protocol.Some[int64](1) {
		t.Errorf("the counters are %+v and %+v, want 3 and 1", q.Enqueued, q.Acked)
	}
}
