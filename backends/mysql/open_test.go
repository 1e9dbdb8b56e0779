package mysql

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestManyOpenAtOnce checks that sidecars that start together create the tables once.
func TestManyOpenAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		o := Options{URL: m.URL(m.Database(t))}
		var mu sync.Mutex
		names := map[string]int{}
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				s, err := Open(t.Context(), o)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				names[s.Info().Database]++
				mu.Unlock()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(names) != 1 || names[""] > 0 {
			t.Errorf("the database has the names %v", names)
		}
	})
}

// login creates a user with some rights and returns its address for a database.
func login(t *testing.T, m *testserver.MySQL, database string, grants ...string) string {
	t.Helper()
	user := database + "_u"
	must(t, m, database, fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY 'x'", user))
	t.Cleanup(func() {
		if err := m.Exec(context.Background(), fmt.Sprintf("DROP USER '%s'@'%%'", user)); err != nil {
			t.Error(err)
		}
	})
	for _, g := range grants {
		must(t, m, database, strings.ReplaceAll(g, "{user}", "'"+user+"'@'%'"))
	}
	u, err := url.Parse(m.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, "x")
	return u.String()
}

// TestTablesCreatedByHand checks tables that a person creates with the printed SQL, for a sidecar whose user has no
// right to create them.
func TestTablesCreatedByHand(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		url := login(t, m, name, "GRANT SELECT ON "+name+".* TO {user}")
		_, err := Open(t.Context(), Options{URL: url})
		if err == nil || !strings.Contains(err.Error(), "migrate --print") {
			t.Fatalf("without tables and rights: %v", err)
		}
		c := connect(t, m, name)
		for _, sql := range migrate.Statements(migrate.SQL(DatabaseOf(url), name+"_u", 0)) {
			runSQL(t, c, sql)
		}
		s := open(t, Options{URL: url})
		join(t, s, 1)
		fillBy(t, s, 3, 3)
		write(t, s, backends.Ack{Leases: leasesOf(claimJobs(t, s, 1, 3, 1))})
		if _, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Prune: true, Waiting: []string{"q"}}); err != nil {
			t.Fatal(err)
		}
		for _, sql := range migrate.Statements(migrate.SQL(DatabaseOf(url), name+"_u", 0)) {
			runSQL(t, c, sql) // running it again does no harm
		}
	})
}

func TestTablesOfANewerProgram(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		open(t, Options{URL: m.URL(name)})
		must(t, m, name, "UPDATE qsidecar_meta SET version = 9")
		open(t, Options{URL: m.URL(name)}) // the newer tables still allow this program: see min_program
		must(t, m, name, "UPDATE qsidecar_meta SET min_program = 9")
		if _, err := Open(t.Context(), Options{URL: m.URL(name)}); err == nil || !strings.Contains(err.Error(), "upgrade this program") {
			t.Fatalf("opened: %v", err)
		}
	})
}

// TestSessionsIgnoreServerSettings checks that sessions do not depend on the server's settings.
func TestSessionsIgnoreServerSettings(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		tx := "transaction_isolation"
		if m.Kind != testserver.MySQL97 {
			tx = "tx_isolation"
		}
		// init_connect applies to users without SUPER. It stands for everything that can be set for a session.
		o := Options{URL: m.URL(name)}
		s := open(t, o)
		c, err := s.pool.Take(t.Context(), &s.Meter)
		if err != nil {
			t.Fatal(err)
		}
		defer s.pool.Put(c)
		for setting, want := range map[string]string{
			"autocommit": "1", "time_zone": "+00:00", tx: "READ-COMMITTED", "innodb_lock_wait_timeout": "5", "wait_timeout": "20",
			"completion_type": "NO_CHAIN", "sql_safe_updates": "0", "character_set_client": "utf8mb4",
		} {
			got := ""
			if err := c.Each(t.Context(), func(r *session.Result) { got = string(r.Cell(0)) }, "SELECT @@SESSION."+setting); err != nil || got != want {
				t.Errorf("%s is %q, want %q; %v", setting, got, want, err)
			}
		}
	})
}

// TestPlainInserts checks INSERTs of a program whose session has another time zone, and INSERTs with a
// run_at.
func TestPlainInserts(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, 1)
		c := connect(t, m, name)
		from := serverTime(t, m)
		runSQL(t, c, "SET time_zone = '-11:00'", "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
			"INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', 'now')",
			"INSERT INTO qsidecar_jobs (queue, payload, priority, headers, max_attempts) VALUES ('q', 'first', 5, '{\"a\": \"b\"}', 2)",
			"INSERT INTO qsidecar_jobs (queue, payload, run_at) VALUES ('q', 'past', UTC_TIMESTAMP() - INTERVAL 1 HOUR), ('q', 'future', UTC_TIMESTAMP() + INTERVAL 100 HOUR)")
		r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Waiting: []string{"q"}})
		if err != nil || r.Promoted != 1 || r.Next < 95*time.Hour || r.Next > 100*time.Hour { // no time zone can turn 100 hours into this range: none is five hours behind UTC and eleven
			t.Fatalf("%+v, %v", r, err)
		}
		jobs, to := claimJobs(t, s, 1, 9, 1), serverTime(t, m)
		got := ""
		for _, j := range jobs {
			got += string(j.Payload) + " "
			if at := j.EnqueuedAt.UnixMicro(); at < from || at > to {
				t.Errorf("%s was enqueued at %v", j.Payload, j.EnqueuedAt)
			}
		}
		if got != "first now past " || jobs[0].MaxAttempts != 2 || jobs[0].Headers["a"] != "b" {
			t.Errorf("given %s: %+v", got, jobs)
		}
		for _, bad := range []string{"('-q')", "('a b')", "('é')", "('a\n')", "('')"} {
			if _, err := c.ExecContext(t.Context(), "INSERT INTO qsidecar_jobs (queue) VALUES "+bad); err == nil {
				t.Errorf("the queue %q was taken", bad)
			}
		}
	})
}

// TestOldCommitRowsAreDeleted checks that the rows of qsidecar_commits of stopped sidecars are deleted after some time,
// and those of running sidecars remain. Each start of a sidecar leaves some rows, and there are starts for
// years.
func TestOldCommitRowsAreDeleted(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, 1)
		must(t, m, name, "INSERT INTO qsidecar_commits (handle, number, at) SELECT n.n, 1, UTC_TIMESTAMP(6) - INTERVAL 31 DAY FROM "+
			"(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 25) SELECT n FROM s) AS n")
		for range 4 * tidyEvery {
			if _, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Prune: true}); err != nil {
				t.Fatal(err)
			}
		}
		write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
		if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_commits WHERE handle BETWEEN 1 AND 25"); n != 0 {
			t.Errorf("%d rows of old handles are left", n)
		}
		if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_commits"); n < 1 {
			t.Error("the sidecar's own row is gone")
		}
	})
}

// TestIdleQueuesAreDeleted checks that a queue has a row for maintenance only as long as it is used. The row
// remains while the queue has scheduled jobs, is paused or was registered again. Jobs that are scheduled
// later are found again.
func TestIdleQueuesAreDeleted(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, 1)
		schedule := func(delay time.Duration, queues ...string) {
			t.Helper()
			for _, q := range queues {
				write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: q, Delay: delay}}})
			}
		}
		schedule(time.Hour, "idle", "again", "paused", "later")
		must(t, m, name, "DELETE FROM qsidecar_jobs WHERE queue <> 'later'")
		if _, _, err := s.Command(t.Context(), backends.Command{Kind: backends.Pause, Queue: "paused"}); err != nil {
			t.Fatal(err)
		}
		names := func() (names string) {
			t.Helper()
			if err := s.read(t.Context(), func(_ context.Context, x *tx) error {
				x.Each(func(r *session.Result) {
					names += r.Text(0) + " "
				}, "SELECT queue FROM qsidecar_queues ORDER BY queue")
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return names
		}
		tidy := func(long time.Duration) {
			t.Helper()
			for range 3 { // two batches, and the end
				if err := s.cleanQueues(t.Context(), 2, long); err != nil {
					t.Fatal(err)
				}
			}
		}
		tidy(time.Hour)
		tidy(time.Hour)
		if got := names(); got != "again idle later paused " {
			t.Fatalf("%s", got)
		}
		s.queues = registered{} // as after believedFor
		schedule(time.Millisecond, "again")
		must(t, m, name, "DELETE FROM qsidecar_jobs WHERE queue = 'again'")
		tidy(0)
		if got := names(); got != "again later paused " {
			t.Errorf("%s", got)
		}
		s.queues = registered{}
		schedule(time.Millisecond, "idle")
		testwait.Until(t, "the job is promoted", func() bool {
			r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			return r.Promoted > 0
		})
	})
}

// TestPostponedPlainInsert checks that maintenance finds a job that an operator postponed, although no sidecar stored a job in its
// queue. Without a row in qsidecar_queues the job would never become ready.
func TestPostponedPlainInsert(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		must(t, m, name, "INSERT INTO qsidecar_jobs (queue) VALUES ('plain')")
		id, delay := core.ID(numberOf(t, m, name, "SELECT id FROM qsidecar_jobs")), time.Hour
		if n, _, err := s.Command(t.Context(), backends.Command{Kind: backends.Change, Queue: "plain", IDs: []string{id}, Delay: &delay}); err != nil || n != 1 {
			t.Fatalf("%d jobs changed, %v", n, err)
		}
		if r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10}); err != nil || r.Next <= 0 {
			t.Errorf("the next promotion is in %v, %v", r.Next, err)
		}
	})
}

// TestDeletedByHand checks that the other tables' rows of a deleted job are deleted too, after some time,
// and that its key records the deletion.
func TestDeletedByHand(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, 1)
		j := backends.NewJob{Queue: "q", Key: "k", KeyTTL: time.Millisecond}
		write(t, s, backends.Enqueue{Jobs: []backends.NewJob{j}})
		write(t, s, backends.Nack{Leases: leasesOf(claimJobs(t, s, 1, 1, 1)), HasDelay: true, Error: "no"})
		must(t, m, name, "DELETE FROM qsidecar_jobs")
		testwait.Until(t, "no rows are left of it", func() bool {
			if _, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Prune: true}); err != nil {
				t.Fatal(err)
			}
			return numberOf(t, m, name, "SELECT (SELECT COUNT(*) FROM qsidecar_failures) + (SELECT COUNT(*) FROM qsidecar_keys WHERE state IS NULL)") == 0
		})
		if r := write(t, s, backends.Enqueue{Jobs: []backends.NewJob{j}}); r.Stored[0].Duplicate {
			t.Error("its key is taken")
		}
	})
}

func TestSilentServer(t *testing.T) {
	t.Parallel()
	testserver.CheckSilentServer(t, func(ctx context.Context, address string, login time.Duration) error {
		_, err := Open(ctx, Options{URL: "mysql://u@" + address + "/app", connect: login})
		return err
	})
}

// vtgate passes queries on to its MySQL, except the one for the version, if that is alone in its packet.
type vtgate struct{ net.Conn }

func (v vtgate) Write(b []byte) (int, error) {
	const asked, passedOn = "SELECT @@version", "SELECT '8.0.30-Vitess'"
	if len(b) > 5 && string(b[5:]) == asked {
		_, err := v.Conn.Write(append([]byte{byte(1 + len(passedOn)), 0, 0, b[3], b[4]}, passedOn...))
		return len(b), err
	}
	return v.Conn.Write(b)
}

// TestVitessIsRefused checks that a vtgate in front of a MySQL is recognized.
func TestVitessIsRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, err := Open(t.Context(), Options{URL: m.URL(m.Database(t)), connect: testwait.Limit, wrap: func(c net.Conn) net.Conn { return vtgate{c} }})
		if err == nil {
			err = s.Close()
			t.Fatalf("it is accepted (%v)", err)
		}
		if !strings.Contains(err.Error(), "it is Vitess") {
			t.Error(err)
		}
	})
}

// TestServerBecomesAnother checks that statements and settings of one kind of server are not used on another kind, which the address can
// lead to after a failover, or after a group got several primaries.
func TestServerBecomesAnother(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t))})
		was := s.dialer.Server
		for name, other := range map[string]session.Server{
			"another product": {Text: was.Text, Maria: !was.Maria, Version: was.Version},
			"an older one":    {Text: "10.6.0", Maria: was.Maria, SkipLocked: true},
			"of a group":      {Text: was.Text, Maria: was.Maria, Version: was.Version, MultiPrimary: true, SkipLocked: was.SkipLocked},
		} {
			s.dialer.Server = other
			s.pool.Retire()
			_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
			works := name == "of a group" || name == "an older one" && was.SkipLocked // these statements are right for it too
			if works != (err == nil) || !works && (!backends.IsUnreachable(err) || !strings.Contains(err.Error(), "restart this program")) {
				t.Errorf("it was %s: %v", name, err)
			}
		}
	})
}
