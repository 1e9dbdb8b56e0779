package cluster

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/e2e/kit/proxy"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestPostgresSynchronousStandby: a failover to a synchronous standby loses nothing.
func TestPostgresSynchronousStandby(t *testing.T) { postgresRuns(t, true) }

// TestPostgresAsynchronousStandby: a failover to an asynchronous standby loses the last commits, and nothing else.
func TestPostgresAsynchronousStandby(t *testing.T) { postgresRuns(t, false) }

func postgresRuns(t *testing.T, synchronous bool) {
	t.Setenv(testserver.EnvURL, "") // servers that can be damaged
	versions := testserver.Versions()
	if len(versions) == 2 && !kit.Soak { // each version has one of the two, and the promotions are the same
		if synchronous {
			versions = versions[1:]
		} else {
			versions = versions[:1]
		}
	}
	for _, version := range versions {
		t.Run("PostgreSQL"+version, func(t *testing.T) { postgresRun(t, version, synchronous) })
	}
}

func postgresRun(t *testing.T, version string, synchronous bool) {
	c := newPair(t, version, synchronous)
	s := kit.NewSite(t)
	s.SidecarTimeout = 2 * time.Minute // longer than a failover takes on a busy machine
	var hosts []string
	for _, n := range c.nodes {
		proxy, through := n.Proxy()
		u, err := url.Parse(through)
		if err != nil {
			t.Fatal(err)
		}
		c.proxies, hosts = append(c.proxies, proxy), append(hosts, u.Host)
	}
	s.URL = "postgres://postgres@" + strings.Join(hosts, ",") + "/e2e?sslmode=disable"
	e := &events{all: c.events()}
	e.steps.check, e.steps.short, e.steps.soak = 18, 8, 120 // each event once in make check
	c.sidecars = []*kit.Sidecar{s.Start("a"), s.Start("b")}
	v := e.run(t, c.sidecars, !synchronous, func(t testing.TB) []string { return c.primary().Jobs(t) })
	if synchronous && v.LostJobs+v.LostAcks > 0 {
		t.Errorf("a synchronous standby lost commits: %v", v.Failovers)
	}
}

// pair is a primary and its standby, which change their roles.
type pair struct {
	t           *testing.T
	nodes       []*databases.Postgres
	proxies     []*proxy.Proxy // between the sidecars and each node
	first       int            // the primary
	synchronous bool
	began       int64 // when the current failover can lose commits
	sidecars    []*kit.Sidecar
	moves       []int // how often each sidecar had changed the host before the current failover
}

func newPair(t *testing.T, version string, synchronous bool) *pair {
	t.Helper()
	c := &pair{t: t, synchronous: synchronous}
	for range 2 {
		_, p := kit.NewPostgresSiteOf(t, version)
		c.nodes = append(c.nodes, p)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			_ = n.Thaw() // a frozen server can't end; an error means that it has ended
		}
	})
	c.must(c.standby().Halt())
	c.follow()
	return c
}

func (p *pair) primary() *databases.Postgres { return p.nodes[p.first] }
func (p *pair) standby() *databases.Postgres { return p.nodes[1-p.first] }

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// follow makes the server that has ended the standby.
func (p *pair) follow() {
	p.t.Helper()
	ctx := p.t.Context()
	p.must(p.standby().Follow(ctx, p.primary().Postgres))
	if p.synchronous {
		p.must(p.primary().SyncStandby(ctx, true))
	}
}

// events returns all kinds of failovers.
func (p *pair) events() []event {
	lag := func(*crash.Run) { p.lag() }
	failover := func(name string, lossless bool, before, after func(context.Context) error) step {
		return func(r *crash.Run) { p.failover(r, name, lossless, before, after) }
	}
	nothing := func(context.Context) error { return nil }
	kill9 := func(context.Context) error { return p.primary().Kill9() }
	freeze := func(context.Context) error { return p.primary().Freeze() }
	halt := func(context.Context) error { return p.primary().Halt() }
	cut := func(context.Context) error {
		p.proxies[p.first].Cut()
		return nil
	}
	thaw := func(r *crash.Run) { p.moved(r); p.must(p.standby().Thaw()) }
	mend := func(r *crash.Run) { p.moved(r); p.proxies[1-p.first].SetToxics() }
	rejoin := func(*crash.Run) { p.must(p.standby().Kill9()); p.follow() }
	follow := func(*crash.Run) { p.follow() }
	return []event{
		{"crash", lag, failover("crash", false, kill9, nothing), []step{follow}},
		{"freeze", lag, failover("freeze", false, freeze, nothing), []step{thaw, rejoin}},
		{"cut", lag, failover("cut", false, cut, nothing), []step{mend, rejoin}},
		{"promote", lag, failover("promote", false, nothing, halt), []step{follow}},
		{"switchover", nil, failover("switchover", true, halt, nothing), []step{follow}},
	}
}

// lag begins to lose commits if the standby is asynchronous: it receives no more of them.
func (p *pair) lag() {
	p.began = kit.Monotonic()
	if p.synchronous {
		return
	}
	ctx := p.t.Context()
	p.must(p.standby().CaughtUp(ctx, p.primary().Postgres))
	p.must(p.standby().Detach(ctx))
}

// changes returns how often each sidecar has changed the host.
func (p *pair) changes() (all []int) {
	for _, sc := range p.sidecars {
		all = append(all, sc.Events()["database_host_changed"])
	}
	return all
}

// moved waits until all sidecars have left the old primary, which doesn't answer. What they sent to it until then can be lost when it
// continues without a fence. Nothing can be lost after that.
func (p *pair) moved(r *crash.Run) {
	testwait.Until(p.t, "all sidecars have left the old primary", func() bool {
		for i, n := range p.changes() {
			if n == p.moves[i] {
				return false
			}
		}
		return true
	})
	p.record(r, p.victim())
}

// victim returns what the harm of a failover explains.
func (p *pair) victim() string {
	if p.synchronous {
		return crash.Connections
	}
	return crash.Failover
}

// record records that the current failover lasted until now.
func (p *pair) record(r *crash.Run, victim string) {
	if err := r.Hist.Add(crash.Record{At: p.began, Until: kit.Monotonic(), Who: victim, What: crash.Killed}); err != nil {
		p.t.Fatal(err)
	}
}

// failover promotes the standby, after harm before it, and before harm after it to the old primary. A lossless one must lose no
// commit of an asynchronous standby either.
func (p *pair) failover(r *crash.Run, name string, lossless bool, before, after func(context.Context) error) {
	ctx := p.t.Context()
	victim := p.victim()
	if p.synchronous || lossless {
		victim, p.began = crash.Connections, kit.Monotonic()
	}
	p.moves = p.changes()
	p.must(before(ctx))
	if p.synchronous { // the new primary has no standby yet
		p.must(p.standby().SyncStandby(ctx, false))
	}
	p.must(p.standby().Promote(ctx))
	p.must(after(ctx))
	r.Serving(name)
	p.record(r, victim)
	p.first = 1 - p.first
	p.t.Logf("%s: node %d is the primary", name, p.first+1)
}
