package postgres

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestTerminateInItsEpoch: a Store that ends the session of a transaction without an outcome does not end the session to which a
// server of a later epoch gave the same number.
func TestTerminateInItsEpoch(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		s := open(t, Options{URL: url})
		epoch, err := s.readEpoch(t.Context(), s.pool)
		if err != nil {
			t.Fatal(err)
		}
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		var xid string
		if _, err = c.Exec(t.Context(), "BEGIN"); err == nil {
			err = c.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text").Scan(&xid)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := s.terminate(t.Context(), xid, "1/00000001/an earlier epoch"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("an innocent session was ended: %v", err)
		}
		if err := s.terminate(t.Context(), xid, epoch); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the session of the same epoch has ended", func() bool {
			_, err := c.Exec(t.Context(), "SELECT 1")
			return err != nil
		})
	})
}

// TestClaimWaitsForSynchronousStandby: with a synchronous standby a claim is answered only when the standby has it. A failover
// would lose it otherwise, and another worker would get the job while the first one runs it.
func TestClaimWaitsForSynchronousStandby(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		must(t, p.primary.Admin(), "ALTER ROLE postgres SET synchronous_commit = on") // the test servers have it off
		s := open(t, Options{URL: p.primary.Admin()})
		beat(t, s, 1)
		fill(t, s, 1)
		p.waitForStandby(t)
		claimed := make(chan []backends.Job, 1)
		go func() { claimed <- take(t, s, 1, 1, 1) }()
		testwait.Until(t, "the claim waits for the standby", func() bool { return p.waits(t) || len(claimed) > 0 })
		if len(claimed) > 0 {
			t.Error("the claim was answered although the standby is away")
		}
		if err := p.standby.Restart(testwait.Context(t)); err != nil {
			t.Fatal(err)
		}
		if jobs := testwait.Receive(t, "the claim", claimed); len(jobs) != 1 {
			t.Errorf("claimed %d jobs, want 1", len(jobs))
		}
	})
}

// TestLostAnswerWaitsForSynchronousStandby: the connection breaks while the server waits for a synchronous standby. To end the session
// would end that wait, and commit what no standby has. So the Store waits too, and answers when the standby has the job.
func TestLostAnswerWaitsForSynchronousStandby(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		must(t, p.primary.Admin(), "ALTER ROLE postgres SET synchronous_commit = on") // the test servers have it off
		s := open(t, Options{URL: p.primary.Admin()})
		p.waitForStandby(t)
		commits := make(chan *pgx.Conn, 1)
		report := func(c *pgx.Conn, _ bool) {
			s.fault.Store(nil)
			commits <- c
		}
		s.fault.Store(&report)
		answer := make(chan error, 1)
		go func() { _, err := enqueue(t, s); answer <- err }()
		c := testwait.Receive(t, "the connection of the commit", commits)
		testwait.Until(t, "the commit waits for the standby", func() bool { return p.waits(t) })
		before := s.Usage().RoundTrips.Count
		_ = c.PgConn().Conn().Close()
		testwait.Until(t, "the Store has asked three times for the outcome", func() bool {
			return len(answer) > 0 || s.Usage().RoundTrips.Count >= before+3
		})
		if len(answer) > 0 {
			t.Fatalf("the enqueue was answered with %v although the standby is away", <-answer)
		}
		if err := p.standby.Restart(testwait.Context(t)); err != nil {
			t.Fatal(err)
		}
		if err := testwait.Receive(t, "the answer", answer); err != nil {
			t.Error(err)
		}
	})
}

// TestUnknownCommitLeavesNoSession: if the caller's time is over while a commit waits for a standby, the next transaction ends the
// session. Otherwise one session after the other would wait for the standby.
func TestUnknownCommitLeavesNoSession(t *testing.T) {
	p := newPair(t, testserver.NewestPostgres)
	must(t, p.primary.Admin(), "ALTER ROLE postgres SET synchronous_commit = on") // the test servers have it off
	s := open(t, Options{URL: p.primary.Admin()})
	p.waitForStandby(t)
	answer := make(chan error, 1)
	store := func(ctx context.Context) {
		_, err := s.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
		answer <- err
	}
	ctx, cancel := context.WithCancel(t.Context())
	go store(ctx)
	testwait.Until(t, "the commit waits for the standby", func() bool { return p.waits(t) })
	var first int
	p.ask(t, p.primary, &first, "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	cancel()
	if err := testwait.Receive(t, "the answer", answer); !errors.Is(err, backends.ErrUnknownOutcome) {
		t.Errorf("%v, want an unknown outcome", err)
	}
	go store(t.Context())
	testwait.Until(t, "the first session has ended", func() (ended bool) {
		p.ask(t, p.primary, &ended, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", first)
		return ended
	})
	if err := p.standby.Restart(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := testwait.Receive(t, "the second answer", answer); err != nil {
		t.Error(err)
	}
}

// TestOldPrimaryReturns: after a promotion the old primary returns without a fence, and the address names it first. A Store stores
// nothing at the old one, neither if it has seen the new primary nor if it starts after that.
func TestOldPrimaryReturns(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		p.replayed(t)
		s := open(t, Options{URL: p.url(t)})
		fill(t, s, 1)
		p.replayed(t)
		p.promote(t)
		store := func() {
			testwait.Until(t, "an enqueue succeeds", func() bool {
				_, err := enqueue(t, s)
				if err != nil && !backends.Retryable(err) {
					t.Errorf("an enqueue: %v, want unavailable", err)
				}
				return err == nil
			})
		}
		store()
		if err := p.primary.Restart(testwait.Context(t)); err != nil {
			t.Fatal(err)
		}
		s.pool.Reset() // new connections, which try the old primary first
		store()
		s = open(t, Options{URL: s.o.URL}) // a sidecar that has never seen the new primary
		store()
		var jobs int
		if p.ask(t, p.primary, &jobs, "SELECT count(*) FROM qsidecar.qsidecar_jobs"); jobs != 1 {
			t.Errorf("the old primary has %d jobs, want the one from before the promotion", jobs)
		}
		if s.Usage().OldPrimaries == 0 {
			t.Error("no refused old primary was counted")
		}
		if text := s.Info().Cluster; !strings.HasPrefix(text, "single server, timeline 2; refused connections to an old primary: ") {
			t.Errorf("the cluster is described as %q", text)
		}
	})
}

// TestReplacedPrimaryWhoseCommitsHang: the standby is promoted while the primary runs, and then the commits of the old primary wait for
// a synchronous standby. A Store leaves it although it answers everything else.
func TestReplacedPrimaryWhoseCommitsHang(t *testing.T) {
	p := newPair(t, testserver.NewestPostgres)
	must(t, p.primary.Admin(), "ALTER ROLE postgres SET synchronous_commit = on") // the test servers have it off
	p.replayed(t)
	s := open(t, Options{URL: p.url(t)})
	fill(t, s, 1)
	p.replayed(t)
	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.primary.Exec(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "a job is stored at the new primary", func() bool {
		if _, err := enqueue(t, s); err != nil && !backends.Retryable(err) && !errors.Is(err, backends.ErrUnknownOutcome) {
			t.Errorf("an enqueue: %v, want unavailable or an unknown outcome", err)
		}
		var jobs int
		p.ask(t, p.standby, &jobs, "SELECT count(*) FROM qsidecar.qsidecar_jobs")
		return jobs > 1
	})
}

// TestClusterReturnsToOldPrimary: the old primary returns, and the new one becomes its standby, as when Patroni gives the role back to a
// primary that hung. A Store refuses the old primary for as long as the new one is down, and then uses it.
func TestClusterReturnsToOldPrimary(t *testing.T) {
	p := newPair(t, testserver.NewestPostgres)
	p.replayed(t)
	s := open(t, Options{URL: p.url(t)})
	p.promote(t)
	stored := func() bool {
		_, err := enqueue(t, s)
		if err != nil && !backends.Retryable(err) {
			t.Errorf("an enqueue: %v, want unavailable", err)
		}
		return err == nil
	}
	testwait.Until(t, "a job is stored at the new primary", stored)
	if err := errors.Join(p.primary.Restart(testwait.Context(t)), p.standby.Halt()); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the old primary was refused ten times", func() bool { return stored() || s.Usage().OldPrimaries >= 10 })
	var jobs int
	if p.ask(t, p.primary, &jobs, "SELECT count(*) FROM qsidecar.qsidecar_jobs"); jobs != 0 {
		t.Errorf("the old primary has %d jobs, want none while the new one is down", jobs)
	}
	if err := p.standby.Follow(testwait.Context(t), p.primary); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "a job is stored at the old primary", stored)
	if p.ask(t, p.primary, &jobs, "SELECT count(*) FROM qsidecar.qsidecar_jobs"); jobs != 1 {
		t.Errorf("the old primary has %d jobs, want 1", jobs)
	}
}

// TestOldPrimaryLosesConnections: once a Store has seen the new primary, it ends its connections to the old one. The old one could still
// answer what was sent to it before, for example after it hung, and that would be lost.
func TestOldPrimaryLosesConnections(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		p.replayed(t)
		s := open(t, Options{URL: p.url(t)})
		old, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer old.Release()
		timelines := func() map[string]string {
			s.primaries.mu.Lock()
			defer s.primaries.mu.Unlock()
			return maps.Clone(s.primaries.newest)
		}
		before := timelines()
		if err := p.standby.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := old.Exec(t.Context(), "SELECT 1"); err != nil && maps.Equal(timelines(), before) { // a probe can see it at once
			t.Fatalf("the Store has not seen the new primary, but it ended a connection: %v", err)
		}
		config := s.heartbeat.config.Copy()
		config.Host, config.Fallbacks = socketsOf(t, p.standby), nil
		c, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		if _, err := old.Exec(t.Context(), "SELECT 1"); err == nil {
			t.Error("a connection to the old primary still works")
		}
		if _, err := c.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("the connection to the new primary: %v", err)
		}
	})
}

// TestConnectTimeouts: one of several hosts gets less time to answer than a single one.
func TestConnectTimeouts(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]time.Duration{
		"postgres://u@a/db": 10 * time.Second, "postgres://u@a/db?connect_timeout=3": 3 * time.Second,
		"postgres://u@a,b:5433/db": 2 * time.Second, "postgres://u@a,b/db?connect_timeout=1": time.Second,
		"host=/a,/b user=u": 2 * time.Second, "postgres://u@a/db?sslmode=prefer": 10 * time.Second,
	} {
		c, err := configure(&Options{URL: url}, new(primaries))
		if err != nil || c.ConnConfig.ConnectTimeout != want {
			t.Errorf("%s: %v, %v; want %v", url, c.ConnConfig.ConnectTimeout, err, want)
		}
	}
}

// TestPrimaryStopsAnswering: the primary hangs without closing its connections, and the standby is promoted. The Store goes on
// at the new primary.
func TestPrimaryStopsAnswering(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		s := open(t, Options{URL: p.url(t)})
		fill(t, s, 1)
		p.replayed(t)
		if err := p.primary.Freeze(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := p.primary.Thaw(); err != nil {
				t.Error(err)
			}
		}()
		if err := p.standby.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		promoted := time.Now()
		testwait.Until(t, "an enqueue succeeds", func() bool {
			_, err := enqueue(t, s)
			if err != nil && !backends.Retryable(err) {
				t.Errorf("an enqueue: %v, want unavailable", err)
			}
			return err == nil
		})
		t.Logf("an enqueue succeeded %v after the promotion", time.Since(promoted).Round(10*time.Millisecond))
	})
}
