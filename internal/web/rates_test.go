package web

import (
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestRates checks the rates of the last hour: gaps, a restart of the sidecar, and a queue without counters.
func TestRates(t *testing.T) {
	h, now := history{}, time.Unix(1_000_000*60, 0)
	add := func(minute, enqueued, acked int64) {
		h.add([]protocol.QueueStat{{Queue: "q", Enqueued: protocol.Some(enqueued), Acked: protocol.Some(acked)}, {Queue: "other"}}, now.Add(time.Duration(minute)*time.Minute))
	}
	add(0, 1000, 500)
	add(0, 1010, 500)
	add(1, 1030, 505)
	add(1, 1031, 505) // in the same minute
	add(5, 1071, 545) // four minutes later
	add(6, 3, 2)      // the sidecar was restarted
	p := h.of("q", now.Add(6*time.Minute)).Rates
	for i, want := range map[int][2]int32{53: {10, 0}, 54: {21, 5}, 55: {10, 10}, 58: {10, 10}, 59: {-1, -1}, 52: {-1, -1}} {
		if got := [2]int32{p.In[i], p.Out[i]}; got != want {
			t.Errorf("minute %d has the rates %d, want %d", i, got, want)
		}
	}
	if last := h.of("q", now.Add(7*time.Minute)).Rates.Last(); last.In != 3 || last.Out != 2 {
		t.Errorf("after a restart the rates are %+v", last)
	}
	if p.PathIn() != "M53 10.4h0L54 1L55 10.4L58 10.4" || p.Label() != "jobs a minute of this sidecar in the last hour: up to 21 in, up to 10 out" {
		t.Errorf("the plot is %q: %s", p.PathIn(), p.Label())
	}
	if h.of("other", now.Add(6*time.Minute)).Rates.Known() {
		t.Error("a queue without counters has rates")
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
