package cluster

import (
	"context"
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

// TestPatroniSynchronousStandby: Patroni with a synchronous standby loses nothing when the primary fails or changes.
func TestPatroniSynchronousStandby(t *testing.T) { patroniRun(t, true) }

// TestPatroniAsynchronousStandby: Patroni with asynchronous standbys loses the last commits, and nothing else.
func TestPatroniAsynchronousStandby(t *testing.T) { patroniRun(t, false) }

func patroniRun(t *testing.T, synchronous bool) {
	t.Parallel() // most of the time passes until Patroni replaces a primary
	c := &patroni{changer: changer{t}, synchronous: synchronous, proxies: map[string][]*proxy.Proxy{}}
	var err error
	c.Patroni, err = testserver.StartPatroni(t.Context(), 3, synchronous, func(member, to string) string {
		proxy := proxy.New(t, to)
		c.proxies[member] = append(c.proxies[member], proxy)
		return proxy.Addr
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, m := range c.Members {
				t.Logf("the log of %s ends:\n%s", m.Name, c.Log(m))
			}
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	if synchronous {
		c.compresses(t)
	}
	c.must(func(ctx context.Context) error {
		return c.Exec(ctx, "CREATE DATABASE e2e", "CREATE DATABASE schedules")
	})
	s := c.site("e2e")
	if synchronous { // otherwise an occurrence of a lost commit can store a job again
		defer c.schedules()()
	}
	e := &events{all: c.events()}
	e.steps.check, e.steps.short, e.steps.soak = 12, 4, 60 // Patroni takes 20 s to replace a primary that doesn't answer
	v := e.run(t, []*kit.Sidecar{s.Start("a"), s.Start("b")}, !synchronous, c.left)
	if synchronous && v.LostJobs+v.LostAcks > 0 {
		t.Errorf("a synchronous standby lost commits: %v", v.Failovers)
	}
}

// site returns a site with a database of the cluster.
func (p *patroni) site(database string) *kit.Site {
	s := kit.NewSite(p.t)
	s.SidecarTimeout = 2 * time.Minute // longer than a failover takes on a busy machine
	var hosts []string
	for _, m := range p.Members {
		hosts = append(hosts, m.Addr)
	}
	s.URL = "postgres://postgres@" + strings.Join(hosts, ",") + "/" + database + "?sslmode=disable"
	return s
}

// schedules lets two sidecars serve schedules beside the run. check checks that each occurrence stored one job.
func (p *patroni) schedules() (check func()) {
	s := p.site("schedules")
	sidecars := []*kit.Sidecar{s.Start("c"), s.Start("d")}
	kit.DeclareSchedules(sidecars[0].Dial(), "q", 5)
	jobs := func() []string {
		primary, err := p.Primary(p.t.Context(), nil)
		if err != nil {
			p.t.Fatal(err)
		}
		url := "postgres://postgres@" + primary.Addr + "/schedules?sslmode=disable"
		return (&databases.Postgres{T: p.t, URL: url}).Query(url, "SELECT headers->>'qsidecar-schedule' || ' ' || (headers->>'qsidecar-occurrence') FROM qsidecar.qsidecar_jobs")
	}
	return func() {
		before := len(jobs())
		testwait.Until(p.t, "schedules store jobs after the last failover", func() bool { return len(jobs()) > before+5 })
		for _, s := range sidecars {
			s.Kill()
		}
		kit.CheckOccurrences(p.t, jobs(), 5)
	}
}

// patroni is a cluster whose members fail.
type patroni struct {
	changer
	*testserver.Patroni
	synchronous bool
	proxies     map[string][]*proxy.Proxy // by member, in the order of StartPatroni
	victim      *testserver.PatroniMember
	lagging     bool  // no standby receives the victim's commits
	began       int64 // when the current failover can lose commits
}

// compresses checks that LZ4 compresses payloads, unless an administrator chose another method. Of the tests' servers only Debian's
// are built with LZ4.
func (p *patroni) compresses(t *testing.T) {
	p.must(func(ctx context.Context) error {
		return p.Exec(ctx, "CREATE DATABASE compressed", "CREATE DATABASE chosen", "ALTER DATABASE chosen SET default_toast_compression = 'pglz'")
	})
	primary, err := p.Primary(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for database, want := range map[string]string{"compressed": "lz4", "chosen": "pglz"} {
		s := kit.NewSite(t)
		s.URL = "postgres://postgres@" + primary.Addr + "/" + database + "?sslmode=disable"
		sidecar := s.Start(database)
		sidecar.Dial().Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": strings.Repeat("0123456789", 1000)})
		got := (&databases.Postgres{T: t, URL: s.URL}).Query(s.URL, "SELECT pg_column_compression(payload) FROM qsidecar.qsidecar_jobs")
		if len(got) != 1 || got[0] != want {
			t.Errorf("the payload in the database %s is compressed with %q, want %s", database, got, want)
		}
		sidecar.Kill()
	}
}

// left returns the ids of all jobs at the primary.
func (p *patroni) left(t testing.TB) []string {
	primary, err := p.Primary(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return (&databases.Postgres{T: t, URL: "postgres://postgres@" + primary.Addr + "/e2e?sslmode=disable"}).Jobs(t)
}

// events returns all kinds of failovers.
func (p *patroni) events() []event {
	switchover := func(ctx context.Context) error { return p.Switchover(ctx, p.victim) }
	kill9 := func(context.Context) error { return p.Kill9(p.victim) }
	freeze := func(context.Context) error { return p.Freeze(p.victim) }
	cut := func(context.Context) error {
		if p.cut(0, 1, 3); p.synchronous {
			p.cut(2) // lag did that otherwise
		}
		return nil
	}
	cutFromEtcd := func(context.Context) error { p.cut(0); return nil }
	mend := func(*crash.Run) { p.mend() }
	start := p.repair(func(context.Context) error { p.mend(); return p.Start(p.victim) })
	// A member that continues can take the leader's lock back in the timeline of before, as seen with Patroni 3.0. A watchdog, which
	// Patroni recommends, kills it instead.
	kill := func(r *crash.Run) { p.must(kill9); start(r) }
	return []event{
		{"switchover", nil, p.failover("switchover", switchover), nil},
		{"crash", p.lag, p.failover("crash", kill9), []step{start}},
		{"freeze", p.lag, p.failover("freeze", freeze), []step{kill}},
		{"cut", p.lag, p.failover("cut", cut), []step{mend}},
		{"cut from etcd", nil, p.failover("cut from etcd", cutFromEtcd), []step{mend}},
	}
}

// cut cuts connections of the victim, by their indexes in the order of StartPatroni.
func (p *patroni) cut(which ...int) {
	for _, i := range which {
		p.proxies[p.victim.Name][i].Cut()
	}
}

// mend ends the cuts.
func (p *patroni) mend() {
	for _, proxy := range p.proxies[p.victim.Name] {
		proxy.SetToxics()
	}
}

// lag begins to lose commits if the standbys are asynchronous: they receive no more of them.
func (p *patroni) lag(*crash.Run) {
	if !p.synchronous {
		p.ready()
		p.cut(2)
		p.lagging = true
	}
}

// ready waits until another member can take over with all that is committed now, and makes the primary the victim.
func (p *patroni) ready() {
	p.must(p.Whole)
	p.began = kit.Monotonic()
	p.must(p.CaughtUp)
	p.must(func(ctx context.Context) (err error) {
		p.victim, err = p.Primary(ctx, nil)
		return err
	})
}

// failover harms the primary and waits until another member is the primary. It can lose commits if the standbys are asynchronous.
func (p *patroni) failover(name string, harm func(context.Context) error) step {
	return func(r *crash.Run) {
		if !p.lagging {
			p.ready()
		}
		p.lagging = false
		p.must(func(ctx context.Context) error {
			if err := harm(ctx); err != nil {
				return err
			}
			_, err := p.Primary(ctx, p.victim)
			return err
		})
		p.serves(r, name, p.began, !p.synchronous)
	}
}
