package postgres

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/queueset"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

func TestManyOpenAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		stores := make([]*Store, 8)
		var wg sync.WaitGroup
		for i := range stores {
			wg.Go(func() {
				s, err := Open(t.Context(), Options{URL: url, Schema: "jobs"})
				if err != nil {
					t.Error(err)
					return
				}
				stores[i] = s
			})
		}
		wg.Wait()
		id := ""
		for _, s := range stores {
			if s == nil {
				continue // Open returned an error
			}
			if id == "" {
				id = s.database
			}
			if len(s.database) != 11 || s.database != id {
				t.Errorf("the database is %q for one and %q for another", s.database, id)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestFailedOpenLeaksNothing doesn't run in parallel with others, whose goroutines it would find.
func TestFailedOpenLeaksNothing(t *testing.T) {
	for _, p := range servers {
		url := p.Database(t)
		must(t, url, "CREATE DATABASE leak_ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
		c, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		before := goleak.IgnoreCurrent()
		for what, url := range map[string]string{
			"no server":       "postgres://127.0.0.1:1/x",
			"no such base":    strings.Replace(url, "/"+c.Database, "/leak_none", 1),
			"another charset": strings.Replace(url, "/"+c.Database, "/leak_ascii", 1),
		} {
			if s, err := Open(t.Context(), Options{URL: url}); err == nil {
				t.Errorf("%s: opened %s", what, s.place)
			}
			if err := goleak.Find(before); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		must(t, url, "DROP DATABASE leak_ascii")
	}
}

// TestLockTimeout checks for how many milliseconds a transaction waits for locks of other programs. A write in a batch
// of its own waits longer, whatever it writes to.
func TestLockTimeout(t *testing.T) {
	t.Parallel()
	for _, o := range []core.TxOptions{{AdoptedWrites: true}, {Keyed: true}, {Settles: true}, {AdoptedWrites: true, Keyed: true, Settles: true}} {
		want := "'500'"
		if o.Keyed {
			want = "'250'"
		}
		brief := lockTimeout(o)
		o.WaitForLocks = true
		if long := lockTimeout(o); !strings.Contains(brief, want) || !strings.Contains(long, "'5000'") {
			t.Errorf("%+v: %q, otherwise %q", o, long, brief)
		}
	}
	if sql := lockTimeout(core.TxOptions{WaitForLocks: true}); sql != "" {
		t.Errorf("a transaction that meets no locks of others: %q", sql)
	}
}

// as returns the URL with another role.
func as(t *testing.T, url, role string) string {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("host=%s port=%d dbname=%s user=%s", c.Host, c.Port, c.Database, role)
}

// TestWithoutDDL: an owner runs the output of `qsidecar migrate --print`, and the sidecar works
// under a role without the right to create anything.
func TestWithoutDDL(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		role := "runs_" + strings.ReplaceAll(strings.ToLower(t.Name()), "/", "_")
		t.Cleanup(func() { // runs after the database is dropped: clean-ups run in reverse order
			if err := p.Exec(context.Background(), "DROP ROLE "+role); err != nil {
				t.Error(err)
			}
		})
		url := p.Database(t)
		must(t, url, "CREATE ROLE "+role+" LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
		_, err := Open(t.Context(), Options{URL: as(t, url, role), Schema: "jobs"})
		if err == nil || !strings.Contains(err.Error(), "migrate --print") {
			t.Errorf("without tables: %v, want advice", err)
		}
		must(t, url, migrate.SQL("jobs", role, 0))
		s := open(t, Options{URL: as(t, url, role), Schema: "jobs"})
		beat(t, s, 1)
		id := []backends.NewJob{{Queue: "q", Key: "k", KeyTTL: time.Minute, Headers: map[string]string{"a": "b"}}, {Queue: "q"}, {Queue: "q", Delay: time.Hour}}
		if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: id}}}); err != nil {
			t.Fatal(err)
		}
		jobs := take(t, s, 1, 9, 1)
		if len(jobs) != 2 {
			t.Fatalf("%d jobs", len(jobs))
		}
		var l []backends.Lease
		for _, j := range jobs {
			l = append(l, backends.Lease{Job: j.ID, Token: j.Token})
		}
		for i, w := range []backends.Write{backends.Nack{Leases: l[:1], Dead: true}, backends.Release{Leases: l[1:], Uncounted: true}} {
			if r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{w}}); err != nil || len(r.Writes[0].Lost) > 0 {
				t.Fatalf("write %d: %+v, %v", i, r, err)
			}
		}
		for _, c := range []backends.Command{
			{Kind: backends.Pause, Queue: "q"}, {Kind: backends.Resume, Queue: "q"},
			{Kind: backends.Retry, Queue: "q", All: true}, {Kind: backends.Purge, Queue: "q", State: backends.StateReady},
		} {
			if _, _, err := s.Command(t.Context(), c); err != nil {
				t.Errorf("command %v: %v", c.Kind, err)
			}
		}
		if _, err := s.Maintain(t.Context(), backends.Maintenance{Prune: true, Limit: 10, Waiting: []string{"q"}, Suspects: []backends.Suspect{{Sidecar: 9}}}); err != nil {
			t.Error(err)
		}
		if _, err := s.Stats(t.Context(), ""); err != nil {
			t.Error(err)
		}
		must(t, url, "DROP SCHEMA jobs CASCADE; DROP OWNED BY "+role)
	})
}

func TestAnotherVersion(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		must(t, url, `UPDATE qsidecar.qsidecar_meta SET version = 99`)
		open(t, Options{URL: url}) // newer, but still usable by this program
		must(t, url, fmt.Sprintf(`UPDATE qsidecar.qsidecar_meta SET min_program = %d`, migrate.Program+1))
		if _, err := Open(t.Context(), Options{URL: url}); err == nil || !strings.Contains(err.Error(), "upgrade this program") {
			t.Errorf("%v, want advice to upgrade", err)
		}
		must(t, url, `DELETE FROM qsidecar.qsidecar_meta`)
		open(t, Options{URL: url}) // restores the row
		must(t, url, `DELETE FROM qsidecar.qsidecar_meta; ALTER TABLE qsidecar.qsidecar_meta ADD CHECK (version > 5)`)
		if _, err := Open(t.Context(), Options{URL: url}); err == nil || !strings.Contains(err.Error(), "is empty") || !strings.Contains(err.Error(), "INSERT INTO") {
			t.Errorf("%v, want it to contain the statement that restores the row", err)
		}
	})
}

func TestErrorsHaveNoPassword(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-word"
	for _, o := range []Options{
		{URL: "postgres://u:" + secret + "@127.0.0.1:1/db"},
		{URL: "postgres://u@127.0.0.1:1/db", Password: secret},
		{URL: "host=/nowhere user=u password=" + secret},
		{URL: "postgres://u:" + secret + "@127.0.0.1:port/db"},
		{URL: "postgres://u:" + secret + "@127.0.0.1/db?sslmode=maybe"},
		{URL: "host=x password='" + secret},
		{URL: "postgres://127.0.0.1:1/db?user=u&password=" + secret},
		{URL: "postgres://127.0.0.1/db?user=u&password=" + secret + "&sslmode=maybe"},
		{URL: "postgres://127.0.0.1/db?user=u&pass%77ord=" + secret + "&sslmode=maybe"},
		{URL: "postgres://u:a%zz" + secret + "@127.0.0.1/db"},
	} {
		_, err := Open(t.Context(), o)
		if err == nil {
			t.Fatal("opened")
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
	if _, err := Open(t.Context(), Options{URL: "postgres://u@127.0.0.1:1/db"}); !backends.Retryable(err) {
		t.Errorf("%v, want retryable", err)
	}
	for _, schema := range []string{"Jobs", "a-b", "1a", `a"b`, strings.Repeat("a", 49)} {
		if _, err := Open(t.Context(), Options{Schema: schema}); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("schema %q: %v", schema, err)
		}
	}
}

// TestPlainInserts runs the documented INSERT statements.
func TestPlainInserts(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		began := time.Now()
		s := open(t, Options{URL: filled(t, p)})
		beat(t, s, 1)
		const insert = `SET search_path = qsidecar; SET TIME ZONE 'Pacific/Chatham'; INSERT INTO qsidecar_jobs `
		for _, sql := range []string{
			`(queue, payload) VALUES ('q', 'hello')`,
			`(queue, payload, priority, headers, max_attempts) VALUES ('q', '\x00ff', 5, '{"a":"b","n":1}', 3)`,
			`(queue) VALUES ('q')`,
			`(queue, payload) VALUES ('q', convert_to('C:\x', 'UTF8'))`,
			`(queue, payload, run_at) VALUES ('q', 'past', now() - interval '1 hour')`,
			`(queue, run_at) VALUES ('q', now() + interval '1 hour')`,
			`(queue, run_at) VALUES ('q', '2101-02-03T04:05:06.789Z')`,
		} {
			must(t, s.o.URL, insert+sql)
		}
		for _, sql := range []string{
			`(queue) VALUES ('no blanks')`, `(queue) VALUES ('.hidden')`, `(queue) VALUES ('')`, `(queue) VALUES (NULL)`, `(queue) VALUES (repeat('q', 129))`,
			`(queue, max_attempts) VALUES ('q', 0)`, `(queue, headers) VALUES ('q', '[1]')`, `(queue, headers) VALUES ('q', 'x')`, `(queue, payload) VALUES ('q', NULL)`,
		} {
			if err := exec(t, s.o.URL, insert+sql); err == nil {
				t.Errorf("%s was taken", sql)
			}
		}
		var got []string
		for _, j := range take(t, s, 1, 20, 1) {
			got = append(got, string(j.Payload))
			if j.Priority == 5 {
				if diff := cmp.Diff(map[string]string{"a": "b", "n": "1"}, j.Headers); diff != "" || j.MaxAttempts != 3 {
					t.Errorf("headers %s, max_attempts %d", diff, j.MaxAttempts)
				}
			}
			if j.EnqueuedAt.Sub(began).Abs() > time.Hour { // a wrong time zone would cause such a difference
				t.Errorf("enqueued at %v, and it is %v", j.EnqueuedAt, began)
			}
		}
		if diff := cmp.Diff([]string{"\x00\xff", "hello", "", `C:\x`, "past"}, got); diff != "" {
			t.Errorf("payloads (-want +got):\n%s", diff)
		}
		views, err := s.Peek(t.Context(), backends.Peek{Queue: "q", State: backends.StateScheduled, Max: 10})
		if err != nil || len(views) != 2 {
			t.Fatalf("scheduled: %v, %v", views, err)
		}
		if want := time.Date(2101, 2, 3, 4, 5, 6, 789e6, time.UTC); !views[1].RunAt.Equal(want) {
			t.Errorf("run_at %v, want %v", views[1].RunAt, want)
		}
		if in := views[0].RunAt.Sub(views[0].EnqueuedAt); in.Round(time.Second) != time.Hour {
			t.Errorf("due in %v, want an hour", in)
		}
	})
}

// hearOthers checks that a Store receives the notifications of other programs' channels, and no
// others. Several queues can share a channel, and a channel can be the sidecars' own.
func hearOthers(t *testing.T, one *Store, url string) {
	t.Helper()
	odd := `New "jobs"; --`
	ctx, cancel := context.WithCancel(testwait.Context(t))
	defer cancel()
	queues, ok := one.Listen(ctx, map[string][]string{odd: {"a", "b"}, "other": {"c"}, one.channel(): {"d"}})
	if !ok || <-queues != "" {
		t.Fatal("there are none")
	}
	hear := func(sql string, want ...string) {
		t.Helper()
		must(t, url, sql)
		var got []string
		for range want {
			got = append(got, <-queues)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("after %s: heard %q, want %q", sql, got, want)
		}
	}
	must(t, url, "NOTIFY unheard")
	hear("SELECT pg_notify("+literal(odd)+`, 'a job, {"id": 1}')`, "a", "b")
	hear("NOTIFY Other", "c")
	hear("NOTIFY "+one.channel()+", 'who knows'", "d", "knows")
	if one.CanListen(strings.Repeat("x", 63)) != nil || one.CanListen(strings.Repeat("x", 64)) == nil {
		t.Error("LISTEN would cut the name")
	}
	cancel()
	for range queues { // until it is closed
	}
}

func TestNotifications(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		one, two := open(t, Options{URL: url, Notify: true}), open(t, Options{URL: url, Notify: true})
		ctx, cancel := context.WithCancel(testwait.Context(t))
		defer cancel()
		heard := map[*Store]<-chan string{}
		for _, s := range []*Store{one, two} {
			queues, ok := s.Notifications(ctx)
			if !ok {
				t.Fatal("there are none")
			}
			if q := <-queues; q != "" {
				t.Errorf("the first word is %q, want none", q)
			}
			heard[s] = queues
		}
		enqueue := func(s *Store, queue string) {
			t.Helper()
			if _, err := s.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: queue}}}}}); err != nil {
				t.Fatal(err)
			}
		}
		enqueue(one, "a")
		if q := <-heard[two]; q != "a" {
			t.Errorf("heard %q, want a", q)
		}
		enqueue(two, "b")
		if q := <-heard[one]; q != "b" { // and not its own notification of a
			t.Errorf("heard %q, want b", q)
		}
		// The server ends the connection that listens. The Store reconnects and reports it with "".
		must(t, url, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`)
		if q := <-heard[one]; q != "" {
			t.Errorf("heard %q, want the word that some may be missing", q)
		}
		hearOthers(t, one, url)
		cancel()
		for range heard[one] { // until it is closed
		}
		if _, ok := open(t, Options{URL: url}).Notifications(t.Context()); ok {
			t.Error("switched off, and there are some")
		}
		pooled, err := poolers[p].URL(url)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := open(t, Options{URL: pooled, Notify: true}).Notifications(t.Context()); ok {
			t.Error("through a pooler, and there are some")
		}
	})
}

// TestManyNotificationsAreOne: notifications of a queue that arrive before the first one is
// read are reported once.
func TestManyNotificationsAreOne(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(testwait.Context(t))
	h := &queueListener{queues: make(chan string), pending: queueset.New()}
	for range 10_000 {
		h.pending.Add("other")
	}
	over := make(chan struct{})
	go func() { defer close(over); h.pass(ctx) }()
	for _, want := range []string{"other", "d"} {
		if want == "d" {
			h.pending.Add("d")
		}
		if q := testwait.Receive(t, "a queue's name", h.queues); q != want {
			t.Errorf("passed on %q, want %q", q, want)
		}
	}
	cancel()
	<-over
}

// TestPlaceNamesEveryHost: the address in status and errors contains all hosts of the URL.
func TestPlaceNamesEveryHost(t *testing.T) {
	t.Setenv("PGSSLMODE", "")
	for url, want := range map[string]string{
		"postgres://app:secret@db1/jobs":                                        "postgres://app@db1:5432/jobs",
		"postgres://app:secret@db1,db2:6000,[::1]/jobs":                         "postgres://app@db1:5432,db2:6000,[::1]:5432/jobs",
		"postgres://app@db1,db2/jobs?sslmode=disable":                           "postgres://app@db1:5432,db2:5432/jobs",
		"postgres://app@/jobs?host=/run/a,/run/b":                               "postgres://app@/jobs?host=/run/a,/run/b",
		"host=db1,db2 user=app dbname=jobs target_session_attrs=prefer-standby": "postgres://app@db1:5432,db2:5432/jobs",
	} {
		config, err := configure(&Options{URL: url}, new(primaries))
		if err != nil {
			t.Fatal(err)
		}
		if got := placeOf(config.ConnConfig); got != want {
			t.Errorf("%s is called %s, want %s", url, got, want)
		}
	}
}

// TestAPoolerComesInBetween: a Store that owned its sessions doesn't use those of a pooler, in which its settings don't hold.
func TestAPoolerComesInBetween(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		pooled, err := poolers[p].URL(url)
		if err != nil {
			t.Fatal(err)
		}
		to, err := pgx.ParseConfig(pooled)
		if err != nil {
			t.Fatal(err)
		}
		var moved atomic.Bool
		s := open(t, Options{URL: url, wrap: func(c net.Conn) net.Conn {
			if !moved.Load() {
				return c
			}
			c.Close()
			network, address := pgconn.NetworkAddress(to.Host, to.Port)
			if c, err = net.Dial(network, address); err != nil {
				t.Error(err)
			}
			return c
		}})
		enqueue := backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}
		if _, err := s.Commit(t.Context(), enqueue); err != nil {
			t.Fatal(err)
		}
		moved.Store(true)
		s.pool.Reset()
		if _, err := s.Commit(t.Context(), enqueue); !backends.IsUnreachable(err) || !strings.Contains(err.Error(), "leads to a pooler now") {
			t.Errorf("%v, want it unavailable", err)
		}
		moved.Store(false)
		if _, err := s.Commit(t.Context(), enqueue); err != nil {
			t.Error(err)
		}
	})
}
