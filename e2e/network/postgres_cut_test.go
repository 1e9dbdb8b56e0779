package network

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/proxy"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestPostgresCutOff disconnects a sidecar from the server while its workers continue. Its jobs go
// to another one after the timeout.
func TestPostgresCutOff(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	s.SidecarTimeout = 20 * time.Second // longer than a busy machine delays a heartbeat
	wire, through := p.Proxy()
	b := s.Start("b")
	s.URL = through
	a := s.Start("a")
	producer := b.Dial()
	const jobs = 5
	producer.Enqueue("mail", jobs)
	worker := a.Dial()
	worker.Must(kit.Msg{"op": "hello", "events": []string{"lost"}})
	var held []string
	for range jobs {
		job := worker.ClaimOne("mail")
		producer.WaitDelivered(job)
		held = append(held, job.Lease)
	}
	wire.AddToxics(proxy.Toxic("timeout", "upstream", "timeout", 0), proxy.Toxic("timeout", "downstream", "timeout", 0)) // drops all bytes
	began := kit.Monotonic()
	other := b.Dial()
	var again time.Duration
	for range jobs {
		job := other.ClaimOne("mail")
		if job.Attempt != 2 {
			t.Errorf("job %s: attempt %d, want 2: a lost sidecar is a failed attempt", job.ID, job.Attempt)
		}
		again = kit.Since(began)
		other.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	}
	late := a.Dial()
	late.Post(kit.Msg{"op": "ack", "lease": held[0]}) // while it is disconnected, so it must not succeed
	if r := late.Next(); r.Error == nil || !slices.Contains([]string{"unknown_outcome", "unavailable", "lease_lost"}, r.Error.Code) {
		t.Errorf("an ack under way through the cut: %+v", r)
	}
	wire.SetToxics()
	mended := kit.Monotonic()
	told := worker.Next()
	for _, lease := range held[1:] { // the first one's ack is in progress
		if told.Event != "lost" || !slices.Contains(told.Leases, lease) {
			t.Errorf("got %q with %d leases, want the event lost with all of them", told.Event, len(told.Leases))
		}
	}
	for _, lease := range held {
		late.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": lease})
	}
	producer.Enqueue("mail", 1)
	late.Must(kit.Msg{"op": "ack", "lease": late.ClaimOne("mail").Lease})
	kit.Figure(t, "a sidecar with a lease period of %v was cut off: its %d jobs were worked elsewhere after %v; it served again %v after the network was whole",
		s.SidecarTimeout, jobs, again.Round(time.Millisecond), kit.Since(mended).Round(time.Millisecond))
	joins := func() int { return strings.Count(a.Log(), "event=database_joined") }
	testwait.Until(t, "it logs that it joined again", func() bool { return joins() > 1 })
	if n := joins(); n != 2 {
		t.Errorf("a joined the database %d times, want twice: with a new identity after the cut", n)
	}
	if left := p.Jobs(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestPostgresCutCrashRun breaks the network between one of two sidecars and the server, at any
// point of any round trip, for any time.
func TestPostgresCutCrashRun(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	wire, through := p.Proxy()
	b := s.Start("b")
	s.URL = through
	a := s.Start("a")
	toggles := 0
	v := crash.Plan{
		Queue: "crash", Jobs: kit.Size(30_000), Workers: 32,
		Sidecars: []*kit.Sidecar{a, b},
		Killers: []crash.Killer{
			{Every: 500, Kill: crash.KillWorker},
			{Every: 101, Kill: func(r *crash.Run) { toggles++; toggle(wire, r, a.Name, s.SidecarTimeout) }},
		},
		OnTick: func(r *crash.Run) {
			if wire.CutAt != 0 && kit.Since(wire.CutAt) > s.SidecarTimeout/6 {
				toggle(wire, r, a.Name, s.SidecarTimeout)
			}
		},
		RepairAll: func(r *crash.Run) {
			if wire.CutAt != 0 {
				toggle(wire, r, a.Name, s.SidecarTimeout)
			}
		},
		Left: p.Jobs,
	}.Run(t)
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.Summary(20))
	}
	if events := a.Events(); events["commit_failed"]+events["commit_outcome_resolved"]+events["heartbeat_failed"] == 0 {
		t.Errorf("the cuts hit no worker with a job: %v", v)
	}
	kit.Figure(t, "the network was cut or mended %d times", toggles)
	if v.Cuts == 0 {
		t.Error("no cut was short: every second delivery may have been excused")
	}
}

// toggle disconnects, or connects again. A break that is shorter than a part of the timeout does
// not explain a second delivery.
func toggle(n *proxy.Proxy, r *crash.Run, who string, lease time.Duration) {
	n.T.Helper()
	if n.CutAt == 0 {
		n.CutAt = kit.Monotonic()
		stream := []string{"upstream", "downstream"}[r.Rand.IntN(2)]
		n.SetToxics([]string{
			proxy.Toxic("limit_data", stream, "bytes", 200+r.Rand.IntN(20_000)), // ends the connection after that many bytes
			proxy.Toxic("limit_data", stream, "bytes", 200+r.Rand.IntN(2_000)),
			proxy.Toxic("reset_peer", stream, "timeout", r.Rand.IntN(20)), // resets it that long after its first bytes
			proxy.Toxic("timeout", stream, "timeout", 0),                  // drops all bytes
		}[r.Rand.IntN(4)])
		return
	}
	rec := crash.Record{At: n.CutAt, Who: crash.Connections, What: crash.Killed}
	if kit.Since(n.CutAt) > lease/3 {
		rec.Who = who
	}
	n.SetToxics()
	n.CutAt, rec.Until = 0, kit.Monotonic()
	if err := r.Hist.Add(rec); err != nil {
		n.T.Fatal(err)
	}
}
