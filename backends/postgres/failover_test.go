package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
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
	if testing.Short() {
		t.Skip("make check runs this: each case starts two servers")
	}
	t.Setenv(testserver.EnvURL, "") // servers that can be damaged
	for _, version := range testserver.Versions() {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			p := newPair(t, version)
			must(t, p.primary.Admin(), "ALTER ROLE postgres SET synchronous_commit = on") // the test servers have it off
			s := open(t, Options{URL: p.primary.Admin()})
			beat(t, s, 1)
			fill(t, s, 1)
			p.replayed(t)
			if err := p.standby.Halt(); err != nil {
				t.Fatal(err)
			}
			// A reload takes effect at an unknown time: commits wait only after the checkpointer has read the setting.
			if err := p.primary.Exec(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = '*'"); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(p.primary.Halt(), p.primary.Restart(testwait.Context(t))); err != nil {
				t.Fatal(err)
			}
			claimed := make(chan []backends.Job, 1)
			go func() { claimed <- take(t, s, 1, 1, 1) }()
			testwait.Until(t, "the claim waits for the standby", func() (waits bool) {
				p.ask(t, p.primary, &waits, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
				return waits || len(claimed) > 0
			})
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
}

// TestOldPrimaryReturns: after a promotion the old primary returns without a fence, and the address names it first. A Store that
// has seen the new primary stores nothing at the old one.
func TestOldPrimaryReturns(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this: each case starts two servers")
	}
	t.Setenv(testserver.EnvURL, "") // servers that can be damaged
	for _, version := range testserver.Versions() {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			p := newPair(t, version)
			p.replayed(t)
			s := open(t, Options{URL: "postgres://postgres@/postgres?host=" + socketsOf(t, p.primary) + "," + socketsOf(t, p.standby)})
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
			var jobs int
			if p.ask(t, p.primary, &jobs, "SELECT count(*) FROM qsidecar.qsidecar_jobs"); jobs != 1 {
				t.Errorf("the old primary has %d jobs, want the one from before the promotion", jobs)
			}
		})
	}
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
	if testing.Short() {
		t.Skip("make check runs this: each case starts two servers")
	}
	t.Setenv(testserver.EnvURL, "") // servers that can be damaged
	for _, version := range testserver.Versions() {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			p := newPair(t, version)
			s := open(t, Options{URL: "postgres://postgres@/postgres?host=" + socketsOf(t, p.primary) + "," + socketsOf(t, p.standby)})
			fill(t, s, 1)
			p.replayed(t)
			signal := func(which syscall.Signal) {
				for _, pid := range processes(t, p.primary.PID()) {
					_ = syscall.Kill(pid, which) // one that ended gets none
				}
			}
			signal(syscall.SIGSTOP)
			defer signal(syscall.SIGCONT)
			var ok bool
			if p.ask(t, p.standby, &ok, "SELECT pg_promote()"); !ok {
				t.Fatal("the standby was not promoted")
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
}

// processes returns the ids of a process and its children.
func processes(t *testing.T, parent int) []int {
	t.Helper()
	all := []int{parent}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		var pid, ppid int
		var state string
		if _, err := fmt.Sscanf(string(stat), "%d", &pid); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+1:]), "%s %d", &state, &ppid); err != nil {
			t.Fatal(err)
		}
		if ppid == parent {
			all = append(all, pid)
		}
	}
	return all
}
