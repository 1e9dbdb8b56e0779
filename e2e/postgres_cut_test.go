package e2e

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// network is what lies between one sidecar and the server. Toxics are put into it
// before it starts, wherever that does: toxiproxy 2.5 may lock up when it has to
// take one out of connections that end at that moment.
type network struct {
	p     *server
	addr  string // where the sidecar connects to
	proxy *toxiproxy.Proxy
	since int64 // when it was cut, of monotonic; 0: it is whole
}

// network puts one before the server, on TCP, and returns the server's URL through it.
func (p *server) network() (*network, string) {
	p.t.Helper()
	n := &network{p: p, addr: "127.0.0.1:0"}
	n.start()
	n.addr = n.proxy.Listen
	p.t.Cleanup(func() { n.proxy.Stop() })
	at := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: n.addr, Path: "/" + p.database, RawQuery: "sslmode=disable"}
	return n, at.String()
}

// toxic is harm done to a stream: upstream is towards the server.
func toxic(kind, stream, attribute string, value int) string {
	return fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%q: %d}}`, kind, stream, attribute, value)
}

func (n *network) start(toxics ...string) {
	n.p.t.Helper()
	log := zerolog.Nop()
	n.proxy = toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), log), "db", n.addr, n.p.addr)
	n.poison(toxics...)
	if err := n.proxy.Start(); err != nil {
		n.p.t.Fatal(err)
	}
}

func (n *network) poison(toxics ...string) {
	n.p.t.Helper()
	for _, text := range toxics {
		if _, err := n.proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
			n.p.t.Fatalf("%s: %v", text, err)
		}
	}
}

// replace ends all connections, wherever they are, and does such harm to the next.
func (n *network) replace(toxics ...string) {
	n.p.t.Helper()
	n.proxy.Stop()
	n.start(toxics...)
}

// TestPostgresCutOff: a sidecar is cut off from the server for three lease
// periods while its workers go on.
func TestPostgresCutOff(t *testing.T) {
	s, p := newPostgresSite(t)
	s.hostLease = 2 * time.Second
	wire, through := p.network()
	b := s.started("b")
	s.url = through
	a := s.started("a")
	producer := b.dial()
	const jobs = 5
	producer.enqueueN("mail", jobs)
	worker := a.dial()
	worker.must(msg{"op": "hello", "events": []string{"lost"}})
	var held []string
	for range jobs {
		held = append(held, worker.claimOne("mail").Lease)
	}
	wire.poison(toxic("timeout", "upstream", "timeout", 0), toxic("timeout", "downstream", "timeout", 0)) // bytes vanish
	began := time.Now()
	other := b.dial()
	var again time.Duration
	for range jobs {
		job := other.claimOne("mail")
		if job.Attempt != 2 {
			t.Errorf("job %s: attempt %d, want 2: a lost sidecar is a failed attempt", job.ID, job.Attempt)
		}
		again = time.Since(began)
		other.must(msg{"op": "ack", "lease": job.Lease})
	}
	late := a.dial()
	late.post(msg{"op": "ack", "lease": held[0]}) // while it is cut off: nobody may say that it worked
	pass(3*s.hostLease - min(time.Since(began), 3*s.hostLease))
	wire.replace()
	mended := time.Now()
	if r := late.next(); r.Error == nil || !slices.Contains([]string{"unknown_outcome", "unavailable", "lease_lost"}, r.Error.Code) {
		t.Errorf("an ack under way through the cut: %+v", r)
	}
	told := worker.next()
	for _, lease := range held[1:] { // the first one's ack is under way
		if told.Event != "lost" || !slices.Contains(told.Leases, lease) {
			t.Errorf("told %q of %d leases, want the event lost with all of them", told.Event, len(told.Leases))
		}
	}
	for _, lease := range held {
		late.refused("lease_lost", msg{"op": "ack", "lease": lease})
	}
	producer.enqueueN("mail", 1)
	late.must(msg{"op": "ack", "lease": late.claimOne("mail").Lease})
	figure(t, "a sidecar cut off for 3 lease periods of %v: its %d jobs were worked elsewhere after %v; it served again %v after the network was whole",
		s.hostLease, jobs, again.Round(time.Millisecond), time.Since(mended).Round(time.Millisecond))
	joins := func() int { return strings.Count(a.readLog(), "joined the database") }
	eventually(t, patience, "it says that it joined again", func() bool { return joins() > 1 })
	if n := joins(); n != 2 {
		t.Errorf("a joined the database %d times, want twice: with a new identity after the cut", n)
	}
	if left := p.jobs(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestPostgresCutCrashRun: the network between one of two sidecars and the server
// breaks at any point of any round trip, for any time.
func TestPostgresCutCrashRun(t *testing.T) {
	s, p := newPostgresSite(t)
	s.hostLease = 3 * time.Second
	wire, through := p.network()
	b := s.started("b")
	s.url = through
	a := s.started("a")
	toggles := 0
	v := crashRun{
		Queue: "crash", Jobs: size(30_000), Workers: 32,
		Sidecars: []*sidecar{a, b},
		Killers: []killer{
			{Every: 500, Strike: killWorker},
			{Every: 101, Strike: func(r *crashRuntime) { toggles++; wire.toggle(r, a.name, s.hostLease) }},
		},
		Tend: func(r *crashRuntime) {
			if wire.since != 0 && since(wire.since) > 2*s.hostLease {
				wire.toggle(r, a.name, s.hostLease)
			}
		},
		Mend: func(r *crashRuntime) {
			if wire.since != 0 {
				wire.toggle(r, a.name, s.hostLease)
			}
		},
		Left: p.jobs,
	}.run(t)
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.summary(20))
	}
	if said := a.readLog(); !strings.Contains(said, "tried again") && !strings.Contains(said, "found out") && !strings.Contains(said, "did not reach") {
		t.Errorf("the cuts hit nobody: %v", v)
	}
	figure(t, "the network was cut or mended %d times", toggles)
	if v.Cuts == 0 {
		t.Error("no cut was short: every second delivery may have been excused")
	}
}

// toggle cuts, or mends what is cut. What is cut for less than a part of the
// lease period is no reason for a second delivery of anything.
func (n *network) toggle(r *crashRuntime, who string, lease time.Duration) {
	n.p.t.Helper()
	if n.since == 0 {
		n.since = monotonic()
		stream := []string{"upstream", "downstream"}[r.rand.IntN(2)]
		n.replace([]string{
			toxic("limit_data", stream, "bytes", 200+r.rand.IntN(20_000)), // the connection ends after so many
			toxic("limit_data", stream, "bytes", 200+r.rand.IntN(2_000)),
			toxic("reset_peer", stream, "timeout", r.rand.IntN(20)), // is reset so long after its first bytes
			toxic("timeout", stream, "timeout", 0),                  // bytes vanish
		}[r.rand.IntN(4)])
		return
	}
	rec := record{At: n.since, Who: connections, What: killed}
	if since(n.since) > lease/3 {
		rec.Who = who
	}
	n.replace()
	n.since, rec.Until = 0, monotonic()
	if err := r.hist.add(rec); err != nil {
		n.p.t.Fatal(err)
	}
}
