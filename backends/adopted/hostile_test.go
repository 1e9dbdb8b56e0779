package adopted_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/internal/testseed"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// A role, a database and a pooler can change the settings of the sidecar's sessions. These tests change each setting that a server
// has, and run a short life of jobs, in managed and in adopted queues. It must work, or the database isn't opened and the error names the
// setting.

// change is a setting with another value than the server's.
type change struct{ name, value string }

func (c change) String() string { return c.name + " = " + c.value }

// unruly is a database in which sessions begin with changed settings.
type unruly struct {
	t     *testing.T
	time  string // a time in SQL
	id    string // the id of the job with that time
	open  func(ctx context.Context) (backends.Engine, error)
	owner func(ctx context.Context, sql string) error
	rows  func(query string) ([]string, error)
	set   func(all []change) error // nil: back to the server's settings
	fresh []string                 // SQL that removes the sidecar's tables, and the owner's rows
}

// adoptedA is the mapping of the owner's table.
var adoptedA = mapping.Table{
	Name:    "a",
	Columns: map[mapping.Role][]string{mapping.ID: {"region", "made"}, mapping.Payload: {"payload"}, mapping.State: {"state"}, mapping.Error: {"error"}, mapping.Worker: {"worker"}, mapping.ClaimedAt: {"since"}},
	States: map[backends.State]mapping.Value{
		backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}, backends.StateDone: {Text: "done"}, backends.StateDead: {Text: "dead"},
	},
	OnAck: mapping.Update,
}

// errNotSet means that the server doesn't have these values at the same time.
var errNotSet = errors.New("not set")

// openError is an error of opening the database.
type openError struct{ error }

// live runs jobs from their enqueue to their end. An openError is one that an operator sees at the start.
func (u *unruly) live(ctx context.Context) (err error) {
	engine, err := u.open(ctx)
	if err != nil {
		return openError{err}
	}
	s, err := adopted.New(ctx, engine, map[string]mapping.Table{"a": adoptedA})
	if err != nil {
		return openError{errors.Join(err, engine.Close())}
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := s.Heartbeat(ctx, backends.Heartbeat{Sidecar: me, Kind: backends.HeartbeatJoin, Timeout: sidecarTimeout}); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	number := uint64(0)
	claim := func(queue string, want int, writes ...backends.Write) ([]backends.Job, error) {
		c := backends.Claim{Queues: []backends.Policy{{Queue: queue, MaxAttempts: 3, Backoff: time.Hour, BackoffMax: time.Hour, RetainDone: time.Hour}}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
		for range 3 {
			number++
			c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: me, Number: number}, Worker: "w"})
		}
		r, err := s.Commit(ctx, backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}, Writes: writes})
		if err != nil {
			return nil, fmt.Errorf("claim of %s: %w", queue, err)
		}
		for _, w := range r.Writes {
			if w.Err != nil || len(w.Lost) > 0 {
				return nil, fmt.Errorf("a write with the claim of %s: %w, %d leases lost", queue, w.Err, len(w.Lost))
			}
		}
		jobs := r.Claims[0].Jobs
		if len(jobs) != want {
			return nil, fmt.Errorf("claim of %s: %d jobs, want %d", queue, len(jobs), want)
		}
		slices.SortFunc(jobs, func(x, y backends.Job) int { return strings.Compare(string(x.Payload), string(y.Payload)) })
		return jobs, nil
	}
	const odd = "1 it's \\ \x00 \xff ü"
	r, err := s.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{
		{Queue: "m", Payload: []byte(odd), Key: "k\\'", KeyTTL: time.Hour, Headers: map[string]string{"h": `"\'ü`}, Priority: -3},
		{Queue: "m", Payload: []byte("2"), Timeout: time.Hour}, {Queue: "m", Payload: []byte("3"), Delay: time.Hour}, {Queue: "m", Payload: []byte("4")},
	}}}})
	if err != nil {
		return fmt.Errorf("enqueue: %w", err)
	}
	first := r.Writes[0].Stored[0].ID
	if r, err = s.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m", Key: "k\\'", KeyTTL: time.Hour}}}}}); err != nil {
		return fmt.Errorf("enqueue of a duplicate: %w", err)
	}
	if x := r.Writes[0].Stored[0]; !x.Duplicate || x.ID != first {
		return fmt.Errorf("the same key again: %+v, want a duplicate of %s", x, first)
	}
	jobs, err := claim("m", 3)
	if err != nil {
		return err
	}
	if j := jobs[0]; string(j.Payload) != odd || j.Headers["h"] != `"\'ü` || jobs[1].Timeout != time.Hour {
		return fmt.Errorf("claimed %+v", j)
	}
	own, err := claim("a", 2, backends.Ack{Leases: leases(jobs[0])}, backends.Nack{Leases: leases(jobs[1]), Error: "no"}, backends.Nack{Leases: leases(jobs[2]), Dead: true, Error: "never"})
	if err != nil {
		return err
	}
	if own[0].ID != u.id || string(own[0].Payload) != "1" {
		return fmt.Errorf("the id of the job in the adopted table is %q, want %q", own[0].ID, u.id)
	}
	if _, err := claim("a", 0, backends.Nack{Leases: leases(own[0]), Error: "no"}, backends.Ack{Leases: leases(own[1])}); err != nil {
		return err
	}
	if _, err := claim("a", 0); err != nil {
		return err
	}
	for _, m := range []backends.Maintenance{{Limit: 10, Prune: true, Waiting: []string{"m", "a"}, Sidecar: me}, {Limit: 10}} {
		if _, err := s.Maintain(ctx, m); err != nil {
			return fmt.Errorf("maintenance: %w", err)
		}
	}
	if n, _, err := s.Command(ctx, backends.Command{Kind: backends.Retry, Queue: "m", IDs: []string{jobs[2].ID}}); err != nil || n != 1 {
		return fmt.Errorf("retry: %d, %w", n, err)
	}
	stats, err := s.Stats(ctx, "")
	if err != nil {
		return fmt.Errorf("stats: %w", err)
	}
	for _, x := range stats {
		if x.Queue == "m" && (x.Ready != 1 || x.Scheduled != 2 || x.Done != 1 || x.OldestReady > 10*time.Hour) {
			return fmt.Errorf("stats %+v", x)
		}
	}
	// The time of a failure in the lease table is by the same clock as that of a managed job.
	views, err := s.Peek(ctx, backends.Peek{Queue: "a", IDs: []string{u.id}, Max: 1, MaxBytes: 1 << 20})
	if err != nil || len(views) != 1 || views[0].ID != u.id || views[0].Attempt != 1 || len(views[0].Failures) != 1 || views[0].Failures[0].At.Sub(jobs[0].EnqueuedAt).Abs() > time.Hour {
		return fmt.Errorf("peek: %+v, %w", views, err)
	}
	if _, err := s.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "m"}}}}}); err != nil {
		return fmt.Errorf("enqueue: %w", err)
	}
	got, err := u.rows("SELECT CONCAT(state, ' ', COALESCE(error, ''), ' ', (SELECT COUNT(*) FROM audit)) FROM a ORDER BY payload")
	if want := []string{"new no 4", "done  4"}; err != nil || !slices.Equal(got, want) {
		return fmt.Errorf("the owner's rows are %q, want %q, %w", got, want, err)
	}
	return nil
}

// run runs the life of jobs with changed settings. It returns nil if it passed, or if the database wasn't opened for a reason that
// names a setting.
func (u *unruly) run(all []change) (refused bool, err error) {
	ctx := u.t.Context()
	for _, sql := range u.fresh {
		if err := u.owner(ctx, sql); err != nil {
			return false, err
		}
	}
	for i := 1; i <= 2; i++ {
		if err := u.owner(ctx, fmt.Sprintf("INSERT INTO a (region, made, payload) VALUES ('eu%d', %s, '%d')", i, u.time, i)); err != nil {
			return false, err
		}
	}
	if err := u.set(all); err != nil {
		if failed := u.set(nil); failed != nil {
			u.t.Fatal(failed)
		}
		return false, fmt.Errorf("%w: %w", errNotSet, err)
	}
	err = u.live(ctx)
	if failed := u.set(nil); failed != nil {
		u.t.Fatal(failed)
	}
	if open, ok := errors.AsType[openError](err); ok {
		for _, c := range all {
			if strings.Contains(c.name, "_") && strings.Contains(open.Error(), c.name) {
				return true, nil
			}
		}
	}
	return false, err
}

// each runs each change alone, and with QSIDECAR_SOAK also pairs. Otherwise it runs several at once, and those of a group that fails
// alone.
func (u *unruly) each(all []change) {
	t := u.t
	if _, err := u.run(nil); err != nil {
		t.Fatalf("without a change: %v", err)
	}
	soak := os.Getenv("QSIDECAR_SOAK") != ""
	var groups [][]change
	if soak {
		seed := testseed.Rand(t)
		for _, c := range all {
			groups = append(groups, []change{c})
		}
		for range 2 * len(all) {
			groups = append(groups, []change{all[seed.IntN(len(all))], all[seed.IntN(len(all))]})
		}
	} else {
		groups = grouped(all, 30)
	}
	refused := 0
	var try func(g []change)
	try = func(g []change) {
		no, err := u.run(g)
		switch {
		case err == nil && (!no || soak || len(g) == 1):
			if no {
				refused++
				t.Logf("refused: %v", g)
			}
		case soak && len(g) > 1 && errors.Is(err, errNotSet):
		case len(g) <= 2 && (soak || len(g) == 1):
			t.Errorf("%v: %v", g, err)
		default:
			try(g[:len(g)/2])
			try(g[len(g)/2:])
		}
	}
	for _, g := range groups {
		try(g)
	}
	t.Logf("%d changes of settings in %d groups, %d refused", len(all), len(groups), refused)
}

// grouped divides the changes into groups of at most n, without two of one setting in a group.
func grouped(all []change, n int) (groups [][]change) {
	for _, c := range all {
		i := slices.IndexFunc(groups, func(g []change) bool {
			return len(g) < n && !slices.ContainsFunc(g, func(x change) bool { return x.name == c.name })
		})
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], c)
	}
	return groups
}

// postgresTexts are values of settings that are texts.
var postgresTexts = map[string][]string{
	"DateStyle": {"German", "SQL, DMY", "Postgres, MDY"}, "TimeZone": {"Pacific/Chatham", "Etc/GMT+12"}, "search_path": {"evil, pg_catalog, public", "public"},
	"client_encoding": {"LATIN1", "SQL_ASCII"}, "lc_monetary": {"C.UTF-8"}, "lc_numeric": {"C.UTF-8"}, "lc_time": {"C.UTF-8"}, "lc_messages": {"C.UTF-8"},
	"timezone_abbreviations": {"India"}, "default_tablespace": {"pg_default"}, "temp_tablespaces": {"pg_default"},
	"default_text_search_config": {"pg_catalog.simple"}, "restrict_nonsystem_relation_kind": {"view, foreign-table"}, "application_name": {"it's"},
	"backtrace_functions": {"x"}, "createrole_self_grant": {"set"},
}

// postgresChanges are the changes that a role can have.
func postgresChanges(t *testing.T, c *pgx.Conn) (all []change) {
	rows, err := c.Query(t.Context(), `SELECT name, setting, vartype, coalesce(min_val, ''), coalesce(max_val, ''), coalesce(enumvals, '{}')
		FROM pg_settings WHERE context IN ('user', 'superuser') AND name NOT LIKE 'transaction\_%' OR name = 'transaction_timeout' ORDER BY name`)
	if err != nil {
		t.Fatal(err)
	}
	var name, setting, kind, least, most string
	var values []string
	if _, err := pgx.ForEachRow(rows, []any{&name, &setting, &kind, &least, &most, &values}, func() error {
		candidates := postgresTexts[name]
		switch kind {
		case "bool":
			candidates = []string{"on", "off"}
		case "enum":
			candidates = values
		case "integer", "real":
			candidates = []string{least, most}
			if name == "lock_timeout" || name == "idle_in_transaction_session_timeout" { // with others of 1 ms, no client can work
				candidates = append(candidates, "1")
			}
		}
		for _, v := range candidates {
			if v != setting {
				all = append(all, change{name, v})
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// onRole prepares a database with a role of its own, and the owner's table. before is SQL that runs before the sidecar's tables are
// created.
func onRole(t *testing.T, before string) (h *unruly, c *pgx.Conn, database, role string) {
	at := server.Database(t) // not one that other tests use
	c = connect(t, at)
	database = c.Config().Database
	role = "role_of_" + database
	exec := func(ctx context.Context, sql string) error {
		_, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	must := func(sql string) {
		t.Helper()
		if err := exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	must("CREATE ROLE " + role + " LOGIN; GRANT ALL ON DATABASE " + database + " TO " + role + "; GRANT ALL ON SCHEMA public TO " + role)
	t.Cleanup(func() {
		if err := exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	must("DROP SCHEMA IF EXISTS qsidecar CASCADE") // another test had the database
	must(`CREATE TABLE a (region varchar(9), made timestamptz, payload text, state varchar(9) NOT NULL DEFAULT 'new', error text, worker text, since timestamptz, PRIMARY KEY (region, made));
		CREATE INDEX ON a (state, region, made); CREATE TABLE audit (payload text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO audit VALUES (NEW.payload); RETURN NEW; END$$;
		CREATE TRIGGER note BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION note();
		CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM count(*) FROM audit; RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER later AFTER UPDATE ON a DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION later();
		GRANT ALL ON a, audit TO ` + role)
	must(strings.NewReplacer("{role}", role, "{database}", database).Replace(before))
	login, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	login.User = url.User(role)
	h = &unruly{
		t: t, time: "'2026-03-01 10:00:00.5+00'", id: "eu1,2026-03-01 10:00:00.5+00", owner: exec,
		fresh: []string{"DROP SCHEMA IF EXISTS qsidecar CASCADE", "DELETE FROM a", "DELETE FROM audit"},
		open:  func(ctx context.Context) (backends.Engine, error) { return openPostgres(ctx, login.String()) },
		rows: func(query string) ([]string, error) {
			rows, err := c.Query(t.Context(), query)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[string])
		},
	}
	engine, err := h.open(t.Context()) // the sidecar's tables are the role's
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	return h, c, database, role
}

func openPostgres(ctx context.Context, url string) (backends.Engine, error) {
	s, err := postgres.Open(ctx, postgres.Options{URL: url})
	if err != nil {
		return nil, err
	}
	return pgdiagnose.New(s), nil
}

// setSQL sets a setting after SET or ALTER ROLE … SET.
func setSQL(x change) string {
	if x.name == "search_path" {
		return x.name + " = " + x.value
	}
	return x.name + " = '" + strings.ReplaceAll(x.value, "'", "''") + "'"
}

// accepted are the changes that the server accepts.
func (u *unruly) accepted(candidates []change) (all []change) {
	for _, x := range candidates {
		if err := u.set([]change{x}); err == nil {
			all = append(all, x)
		}
	}
	if err := u.set(nil); err != nil {
		u.t.Fatal(err)
	}
	return all
}

// TestHostileSettingsOfARole changes each setting of a role of PostgreSQL.
func TestHostileSettingsOfARole(t *testing.T) {
	t.Parallel()
	h, c, database, role := onRole(t, "")
	in := "ALTER ROLE " + role + " IN DATABASE " + database
	h.set = func(all []change) error {
		sql := in + " RESET ALL"
		for _, x := range all {
			sql += "; " + in + " SET " + setSQL(x)
		}
		return h.owner(context.WithoutCancel(t.Context()), sql)
	}
	h.each(h.accepted(postgresChanges(t, c)))
}

// onPooler is onRole behind a pooler that gives all clients of the role the same session. as runs SQL as another client of it.
func onPooler(t *testing.T) (h *unruly, c *pgx.Conn, as func(sql string) error) {
	// The pooler doesn't test the session. With client_min_messages = debug5, a session gets a notice whenever another one changes a table. If
	// that comes together with the answer to the pooler's test, PgBouncer 1.18 waits for the answer for good.
	b, err := testserver.StartPgBouncer(t.Context(), server, 1, "server_check_query =")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	})
	h, c, database, _ := onRole(t, foreignFunctions)
	t.Cleanup(func() {
		if t.Failed() { // another client possibly kept the session
			t.Log(b.State(context.WithoutCancel(t.Context())))
		}
	})
	through, err := b.URL(urlOf(database))
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(through)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	h.open = func(ctx context.Context) (backends.Engine, error) { return openPostgres(ctx, through) }
	h.fresh = h.fresh[1:] // to create tables takes two sessions at once
	for _, name := range []string{"jobs", "keys", "failures", "leases", "sidecars"} {
		h.fresh = append(h.fresh, "DELETE FROM qsidecar.qsidecar_"+name)
	}
	return h, c, func(sql string) (err error) {
		ctx := context.WithoutCancel(t.Context())
		other, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, other.Close(ctx)) }()
		_, err = other.Exec(ctx, sql)
		return err
	}
}

// TestHostileSettingsOfAPooler changes each setting in the session that the pooler then gives to the sidecar, as another client of the
// same user does if PgBouncer has no server_reset_query_always.
func TestHostileSettingsOfAPooler(t *testing.T) {
	t.Parallel()
	h, c, as := onPooler(t)
	h.set = func(all []change) error {
		sql := "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL"
		for _, x := range all {
			sql += "; SET " + setSQL(x)
		}
		return as(sql)
	}
	h.each(h.accepted(append(postgresChanges(t, c), change{"role", "pg_monitor"}, change{"session_authorization", "pg_monitor"})))
}

// TestTemporaryTablesOfAPooler shows that no statement, and no trigger of an adopted table, uses temporary tables that another client
// left in the session: they have the names of the sidecar's and of the owner's tables, and of all tables, views and types of the
// catalogue.
func TestTemporaryTablesOfAPooler(t *testing.T) {
	t.Parallel()
	h, _, as := onPooler(t)
	names, err := h.rows(`SELECT quote_ident(relname) FROM pg_class WHERE relkind IN ('r', 'v') AND relnamespace::regnamespace::text IN ('pg_catalog', 'public', 'qsidecar')
		UNION SELECT quote_ident(typname) FROM pg_type WHERE typtype = 'b' AND typelem = 0 AND typnamespace = 'pg_catalog'::regnamespace`)
	if err != nil || len(names) < 200 {
		t.Fatalf("%d names, %v", len(names), err)
	}
	h.set = func(all []change) error {
		sql := "DISCARD TEMP"
		for range all {
			for _, name := range names {
				sql += "; CREATE TEMP TABLE " + name + " (evil pg_catalog.int4)"
			}
		}
		return as(sql)
	}
	if refused, err := h.run([]change{{name: "temporary tables"}}); refused || err != nil {
		t.Errorf("refused: %v, %v", refused, err)
	}
}
