package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// pair is a primary with tables and its streaming standby.
type pair struct {
	primary, standby *testserver.Postgres
}

// onPairs runs a test on a pair of each version.
func onPairs(t *testing.T, test func(t *testing.T, p *pair)) {
	t.Helper()
	ownServers(t)
	for _, version := range testserver.Versions() {
		t.Run("PostgreSQL"+version, func(t *testing.T) { test(t, newPair(t, version)) })
	}
}

// ownServers skips the test with -short, and makes it start servers that it can damage.
func ownServers(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make check runs this: it starts two servers")
	}
	t.Setenv(testserver.EnvURL, "")
}

func newPair(t *testing.T, version string) *pair {
	t.Helper()
	ownServers(t)
	var started []*testserver.Postgres
	t.Cleanup(func() {
		for _, p := range started {
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
		}
	})
	primary, err := testserver.StartPostgres(t.Context(), version, testserver.Options{Own: true, Settings: map[string]string{"log_connections": "on"}})
	if err != nil {
		t.Fatal(err)
	}
	started = append(started, primary)
	open(t, Options{URL: primary.Admin()})
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	started = append(started, standby)
	return &pair{primary, standby}
}

// url returns the address that has both servers, the primary first.
func (p *pair) url(t *testing.T) string {
	t.Helper()
	return "postgres://postgres@/postgres?host=" + socketsOf(t, p.primary) + "," + socketsOf(t, p.standby)
}

// replayed waits until the standby has replayed everything that the primary has now.
func (p *pair) replayed(t *testing.T) {
	t.Helper()
	var lsn string
	p.ask(t, p.primary, &lsn, "SELECT pg_current_wal_insert_lsn()::text")
	testwait.Until(t, "the standby has replayed", func() (there bool) {
		p.ask(t, p.standby, &there, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", lsn)
		return there
	})
}

func (p *pair) ask(t *testing.T, at *testserver.Postgres, to any, sql string, args ...any) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), at.Admin())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if err := c.QueryRow(t.Context(), sql, args...).Scan(to); err != nil {
		t.Fatal(err)
	}
}

// waitForStandby stops the standby. From then on commits of the primary wait for it.
func (p *pair) waitForStandby(t *testing.T) {
	t.Helper()
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
}

// waits reports whether a commit of the primary waits for the standby.
func (p *pair) waits(t *testing.T) (waits bool) {
	t.Helper()
	p.ask(t, p.primary, &waits, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
	return waits
}

// promote makes the standby take over, and ends the primary.
func (p *pair) promote(t *testing.T) {
	t.Helper()
	if err := p.primary.Halt(); err != nil {
		t.Fatal(err)
	}
	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// address is a service address: a socket that leads to one of the servers, and can be moved.
type address struct{ dir string }

func (a *address) moveTo(t *testing.T, p *testserver.Postgres) {
	t.Helper()
	name := filepath.Join(a.dir, ".s.PGSQL.5432")
	next := name + ".next"
	if err := errors.Join(os.Symlink(filepath.Join(socketsOf(t, p), ".s.PGSQL.5432"), next), os.Rename(next, name)); err != nil {
		t.Fatal(err)
	}
}

func (a *address) URL() string { return "postgres://postgres@/postgres?host=" + a.dir }

func socketsOf(t *testing.T, p *testserver.Postgres) string {
	t.Helper()
	u, err := url.Parse(p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("host")
}

func newAddress(t *testing.T, p *testserver.Postgres) *address {
	t.Helper()
	a := &address{dir: t.TempDir()}
	a.moveTo(t, p)
	return a
}

// TestLostCommitAndStandby: the answer to a COMMIT is lost, and the address leads to the
// standby, which has not replayed the transaction. A transaction in the standby's future can
// still have been committed.
func TestLostCommitAndStandby(t *testing.T) {
	ownServers(t)
	for _, version := range testserver.Versions() {
		for what, promoted := range map[string]bool{"the standby catches up": false, "the standby takes over without it": true} {
			t.Run(fmt.Sprintf("PostgreSQL%s/%s", version, what), func(t *testing.T) {
				p := newPair(t, version)
				a := newAddress(t, p.primary)
				s := open(t, Options{URL: a.URL()})
				p.replayed(t)
				if err := p.standby.Detach(testwait.Context(t)); err != nil {
					t.Fatal(err)
				}
				for range 20 { // so that the standby does not assign the number of the lost transaction at once
					must(t, p.primary.Admin(), "SELECT pg_current_xact_id()")
				}
				lose := func(c *pgx.Conn, before bool) {
					if !before {
						s.fault.Store(nil)
						a.moveTo(t, p.standby)
						s.pool.Reset()
						c.PgConn().Conn().Close()
					}
				}
				s.fault.Store(&lose)
				answer := make(chan error, 1)
				go func() {
					_, err := enqueue(t, s)
					answer <- err
				}()
				testwait.Until(t, "the standby is asked", func() bool {
					return strings.Contains(p.standby.Log(), "application_name=qsidecar")
				})
				if promoted {
					p.promote(t)
				} else {
					a.moveTo(t, p.primary)
				}
				err := testwait.Receive(t, "the answer", answer)
				there := len(peek(t, s, 10))
				right := err == nil && there == 1
				if promoted {
					right = backends.Retryable(err) && there == 0
				}
				if !right {
					t.Errorf("answered %v, and %d jobs are there", err, there)
				}
			})
		}
	}
}

// TestStandby: a standby is unavailable, never an internal error. A Store finds the primary
// among several hosts. It follows a promotion, through an address that moves and through its hosts.
func TestStandby(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		p.replayed(t)
		a := newAddress(t, p.primary)
		stores := map[string]*Store{"an address that moves": open(t, Options{URL: a.URL()})}
		hosts := "postgres://postgres@/postgres?host=" + socketsOf(t, p.standby) + "," + socketsOf(t, p.primary)
		for _, attrs := range []string{"", "any", "read-write", "primary", "prefer-standby"} {
			url := hosts
			if attrs != "" {
				url += "&target_session_attrs=" + attrs
			}
			stores["standby,primary "+attrs] = open(t, Options{URL: url})
		}
		look := open(t, Options{URL: p.standby.Admin(), ReadOnly: true}) // as if a pooler led to it
		if _, err := Open(t.Context(), Options{URL: p.standby.Admin()}); !backends.IsUnreachable(err) {
			t.Errorf("opening the standby: %v, want unavailable", err)
		}
		if _, err := enqueue(t, look); !backends.Retryable(err) {
			t.Errorf("a commit on the standby: %v, want unavailable", err)
		}
		if _, err := look.readEpoch(t.Context(), look.pool); !backends.Retryable(look.withKind(err)) {
			t.Errorf("a table that is not logged, on the standby: %v, want unavailable", look.withKind(err))
		}
		if c := open(t, Options{URL: hosts, ReadOnly: true}); c.Close() == nil {
			var standby bool
			err := look.pool.QueryRow(t.Context(), "SELECT pg_is_in_recovery()").Scan(&standby)
			if err != nil || !standby {
				t.Errorf("the look at the standby is at %v, %v", standby, err)
			}
		}
		for what, s := range stores {
			if _, err := enqueue(t, s); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}

		a.moveTo(t, p.standby)
		if err := p.primary.Halt(); err != nil {
			t.Fatal(err)
		}
		for what, s := range stores {
			if _, err := enqueue(t, s); !backends.Retryable(err) {
				t.Errorf("%s, before the promotion: %v, want unavailable", what, err)
			}
			if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Kind: backends.HeartbeatJoin, Timeout: time.Minute}); !backends.Retryable(err) {
				t.Errorf("%s, a beat before the promotion: %v, want unavailable", what, err)
			}
		}
		if err := p.standby.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		for what, s := range stores {
			if _, err := enqueue(t, s); err != nil {
				t.Errorf("%s, after the promotion: %v", what, err)
			}
			beat(t, s, 1)
		}
	})
}

func enqueue(t *testing.T, s *Store) (backends.Results, error) {
	return s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
}

// TestReadOnlyByDefault: an owner's default does not prevent a sidecar from writing. A server
// that refuses all writes is unavailable, and its session is not used again.
func TestReadOnlyByDefault(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		must(t, url, `DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END$$`)
		s := open(t, Options{URL: url})
		beat(t, s, 1)
		if _, err := enqueue(t, s); err != nil {
			t.Error(err)
		}
	})
}
