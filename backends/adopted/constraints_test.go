package adopted_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// ofRiver is River's table of jobs after its migrations 002 to 006.
const ofRiver = `CREATE TYPE river_job_state AS ENUM ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');
CREATE TABLE river_job (
  id bigserial PRIMARY KEY, state river_job_state NOT NULL DEFAULT 'available', attempt smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL,
  attempted_at timestamptz, created_at timestamptz NOT NULL DEFAULT NOW(), finalized_at timestamptz, scheduled_at timestamptz NOT NULL DEFAULT NOW(),
  priority smallint NOT NULL DEFAULT 1, args jsonb NOT NULL, attempted_by text[], errors jsonb[], kind text NOT NULL, metadata jsonb NOT NULL DEFAULT '{}',
  queue text NOT NULL DEFAULT 'default', tags varchar(255)[] NOT NULL DEFAULT '{}', unique_key bytea, unique_states bit(8),
  CONSTRAINT finalized_or_finalized_at_null CHECK ((finalized_at IS NULL AND state NOT IN ('cancelled', 'completed', 'discarded')) OR (finalized_at IS NOT NULL AND state IN ('cancelled', 'completed', 'discarded'))),
  CONSTRAINT max_attempts_is_positive CHECK (max_attempts > 0), CONSTRAINT priority_in_range CHECK (priority >= 1 AND priority <= 4),
  CONSTRAINT queue_length CHECK (char_length(queue) > 0 AND char_length(queue) < 128), CONSTRAINT kind_length CHECK (char_length(kind) > 0 AND char_length(kind) < 128));
CREATE FUNCTION river_job_state_in_bitmask(bitmask bit(8), state river_job_state) RETURNS boolean LANGUAGE SQL IMMUTABLE AS $$
  SELECT CASE state WHEN 'available' THEN get_bit(bitmask, 7) WHEN 'cancelled' THEN get_bit(bitmask, 6) WHEN 'completed' THEN get_bit(bitmask, 5) WHEN 'discarded' THEN get_bit(bitmask, 4)
    WHEN 'pending' THEN get_bit(bitmask, 3) WHEN 'retryable' THEN get_bit(bitmask, 2) WHEN 'running' THEN get_bit(bitmask, 1) WHEN 'scheduled' THEN get_bit(bitmask, 0) ELSE 0 END = 1 $$;
CREATE INDEX river_job_prioritized_fetching_index ON river_job (state, queue, priority, scheduled_at, id);
CREATE UNIQUE INDEX river_job_unique_idx ON river_job (unique_key) WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL AND river_job_state_in_bitmask(unique_states, state);`

// ofProcrastinate are the tables of Procrastinate 3.
const ofProcrastinate = `CREATE TYPE procrastinate_job_status AS ENUM ('todo', 'doing', 'succeeded', 'failed', 'cancelled', 'aborting', 'aborted');
CREATE TABLE procrastinate_workers (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, last_heartbeat timestamptz NOT NULL DEFAULT NOW());
CREATE TABLE procrastinate_jobs (
  id bigserial PRIMARY KEY, queue_name varchar(128) NOT NULL, task_name varchar(128) NOT NULL, priority integer DEFAULT 0 NOT NULL, lock text, queueing_lock text,
  args jsonb DEFAULT '{}' NOT NULL, status procrastinate_job_status DEFAULT 'todo'::procrastinate_job_status NOT NULL, scheduled_at timestamptz NULL, attempts integer DEFAULT 0 NOT NULL,
  abort_requested boolean DEFAULT false NOT NULL, worker_id bigint REFERENCES procrastinate_workers (id) ON DELETE SET NULL,
  CONSTRAINT check_not_todo_abort_requested CHECK (NOT (status = 'todo' AND abort_requested = true)));
CREATE UNIQUE INDEX procrastinate_jobs_queueing_lock_idx_v1 ON procrastinate_jobs (queueing_lock) WHERE status = 'todo';
CREATE UNIQUE INDEX procrastinate_jobs_lock_idx_v1 ON procrastinate_jobs (lock) WHERE status = 'doing';
CREATE INDEX procrastinate_jobs_queue_name_idx_v1 ON procrastinate_jobs (queue_name);
CREATE TABLE procrastinate_events (id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES procrastinate_jobs ON DELETE CASCADE, type text, at timestamptz DEFAULT NOW());`

// tried are the findings of Try about a mapping, a line each.
func (k *kit) tried(m mapping.Table) string {
	k.Helper()
	s, err := adopted.New(k.Context(), k.Engine, map[string]mapping.Table{"q": m})
	if err != nil {
		k.Fatal(err)
	}
	found, err := s.Try(k.Context())
	if err != nil {
		k.Fatal(err)
	}
	var all []string
	for _, f := range found {
		all = append(all, f.Severity.String()+": "+f.Text+" → "+f.Fix)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// has checks that a text has a line for each of want with all of its parts, and no other line.
func (k *kit) has(name, text string, want ...[]string) {
	k.Helper()
	lines := strings.Split(text, "\n")
	if text == "" {
		lines = nil
	}
	for _, words := range want {
		if !slices.ContainsFunc(lines, func(line string) bool {
			return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
		}) {
			k.Errorf("%s: no line has %q:\n%s", name, words, text)
		}
	}
	if len(lines) != len(want) {
		k.Errorf("%s: %d lines, want %d:\n%s", name, len(lines), len(want), text)
	}
}

// TestRiver: a proposal for River's table can be claimed and acked. Without the time of the end, check reports that no ack can
// ever succeed, with rows and without.
func TestRiver(t *testing.T) {
	t.Parallel()
	k := newKit(t, ofRiver, nil)
	p, err := guess.Table(t.Context(), k.Engine, "", "river_job")
	if err != nil {
		t.Fatal(err)
	}
	m := p.Table
	if got := fmt.Sprint(m.Columns[mapping.FinishedAt], m.Columns[mapping.Worker], m.States); !strings.HasPrefix(got, "[finalized_at] [] map[claimed:{running false} dead:{discarded false} done:{completed false} ready:{available false}]") {
		t.Errorf("it proposes %s", got)
	}
	m.Where = map[string]mapping.Value{"queue": {Text: "default"}}
	for _, rows := range []string{"", "INSERT INTO river_job (args, kind, max_attempts) SELECT '{}', 'k', 3 FROM generate_series(1, 4)"} {
		if rows != "" {
			k.sql(rows)
		}
		k.has("as proposed"+rows, k.tried(m))
		without := m
		without.Columns = map[mapping.Role][]string{}
		for role, names := range m.Columns {
			if role != mapping.FinishedAt {
				without.Columns[role] = names
			}
		}
		k.has("without finalized_at"+rows, k.tried(without), []string{
			"error: queues.q.table: the constraint finalized_or_finalized_at_null of ", " refuses each ack, each last nack", "give a role to finalized_at",
		})
	}
	if k.Store, err = adopted.New(t.Context(), k.Engine, map[string]mapping.Table{"q": m}); err != nil {
		t.Fatal(err)
	}
	k.write(backends.Ack{Leases: leases(k.one("q"))}, 0)
	k.write(backends.Nack{Leases: leases(k.one("q")), Dead: true, Error: "no"}, 0)
	k.command(backends.Command{Kind: backends.Retry, IDs: []string{"2"}}, 1)
	k.wantRows("SELECT concat_ws('|', id, state, finalized_at IS NULL) FROM river_job ORDER BY id", "1|completed|f", "2|available|t", "3|available|t", "4|available|t")
}

// TestProcrastinate: the id of a worker refers to the table of workers, so it isn't guessed as a token. Two unique indexes can refuse
// a claim and a give back.
func TestProcrastinate(t *testing.T) {
	t.Parallel()
	k := newKit(t, ofProcrastinate, nil)
	p, err := guess.Table(t.Context(), k.Engine, "", "procrastinate_jobs")
	if err != nil {
		t.Fatal(err)
	}
	m := p.Table
	if m.Token != nil || len(m.Columns[mapping.Worker]) > 0 {
		t.Errorf("it proposes %+v", m)
	}
	if !slices.ContainsFunc(p.Hints, func(h guess.Hint) bool {
		return h.Key == "token" && strings.Contains(h.Text, "its values are keys of public.procrastinate_workers")
	}) {
		t.Errorf("%+v", p.Hints)
	}
	m.Where = map[string]mapping.Value{"queue_name": {Text: "default"}}
	locks := [][]string{
		{"warning: queues.q.table: the constraint procrastinate_jobs_lock_idx_v1", "can refuse a claim, while another row has the same values"},
		{"warning: queues.q.table: the constraint procrastinate_jobs_queueing_lock_idx_v1", "can refuse a give back, a nack, a retry, while"},
	}
	k.has("as proposed", k.tried(m), locks...)
	token := m
	token.Token = &mapping.Token{Column: "worker_id", From: 900, To: 999}
	refused := []string{"error: queues.q.table: the constraint procrastinate_jobs_worker_id_fkey of ", "refuses each ", " claim", "a key of public.procrastinate_workers"}
	k.has("with a token", k.tried(token), append(locks, refused)...)
	k.sql("INSERT INTO procrastinate_jobs (queue_name, task_name, lock) SELECT 'default', 't', 'l' FROM generate_series(1, 3)")
	k.has("with rows", k.tried(token), locks[0], refused)
	k.sql("UPDATE procrastinate_jobs SET lock = NULL, queueing_lock = 'x' WHERE id = 1")
	k.has("with a queueing lock", k.tried(m), locks...)
}

// TestConstraintsOfEveryEngine: each engine's server evaluates the table's own constraints.
func TestConstraintsOfEveryEngine(t *testing.T) {
	onEachEngine(t, func(t *testing.T, on *product) {
		text := "varchar(20)"
		k := on.newKit(t, fmt.Sprintf(`CREATE TABLE states (name %[1]s NOT NULL PRIMARY KEY); INSERT INTO states VALUES ('new'), ('it''s running'), ('failed');
			CREATE TABLE jobs (id int PRIMARY KEY, state %[1]s NOT NULL DEFAULT 'new', dedupe %[1]s, since %[2]s, ended %[2]s, tries int NOT NULL DEFAULT 0, pid int, owner %[1]s,
				only_one %[1]s GENERATED ALWAYS AS (CASE WHEN state = 'new' THEN dedupe END) STORED,
				CONSTRAINT done_has_an_end CHECK (state <> 'done' OR ended IS NOT NULL), CONSTRAINT few CHECK (tries < 1 OR dedupe <> 'k1'), CONSTRAINT quoted CHECK (state <> 'it''s running' OR pid < 100 OR pid IS NULL),
				CONSTRAINT known FOREIGN KEY (state) REFERENCES states (name));
			CREATE UNIQUE INDEX one_waits ON jobs (only_one);
			CREATE TABLE logs (id int PRIMARY KEY, job int NOT NULL, CONSTRAINT log_of FOREIGN KEY (job) REFERENCES jobs (id));
			CREATE TABLE notes (id int PRIMARY KEY, job int NOT NULL, CONSTRAINT note_of FOREIGN KEY (job) REFERENCES jobs (id) ON DELETE CASCADE);`, text, on.zoneless), nil)
		m := mapping.Table{
			Name: "jobs", MaxAttempts: 3, Deliveries: true,
			Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.ClaimedAt: {"since"}, mapping.Attempts: {"tries"}},
			States: map[backends.State]mapping.Value{
				backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "it's running"}, backends.StateDone: {Text: "done"}, backends.StateDead: {Text: "failed"},
			},
			Token: &mapping.Token{Column: "pid", From: 900, To: 999},
		}
		names := []string{"done_has_an_end", "few", "quoted", "known", "log_of", "one_waits"}
		if on.name == "SQLite" {
			names[3], names[4] = "FOREIGN KEY of state to states", "FOREIGN KEY of logs.job"
		}
		deletes := m
		deletes.OnAck = mapping.Delete
		end, few, quoted := []string{"error: ", "constraint " + names[0], " refuses each ack"}, []string{"warning: ", "constraint " + names[1], "claim (of 1 of 2 sampled jobs)"}, []string{"error: ", "constraint " + names[2], " refuses each claim"}
		state := []string{"error: ", "constraint " + names[3], " refuses each ack"}
		k.has("without rows", k.tried(m), end, quoted, state)
		k.sql("INSERT INTO jobs (id, dedupe) VALUES (1, 'k1'), (2, 'k2')")
		unique := []string{"warning: ", "constraint " + names[5], "can refuse a give back, a nack, a retry"}
		k.has("with rows", k.tried(m), end, few, quoted, state, unique)
		k.has("with deletes", k.tried(deletes), few, quoted, unique)
		k.sql("INSERT INTO logs VALUES (1, 1)")
		k.has("with a log", k.tried(deletes), few, quoted, unique, []string{"warning: ", "constraint " + names[4], "refuses a ack (of 1 of 2 sampled jobs)"})
		k.sql("INSERT INTO logs VALUES (2, 2)")
		k.has("with logs", k.tried(deletes), few, quoted, unique, []string{"error: ", "constraint " + names[4], "refuses each ack"})
		k.wantRows("SELECT concat_ws('|', id, state, tries) FROM jobs ORDER BY id", "1|new|0", "2|new|0")
	})
}

// TestRefusalsBesideAnUnknownStep: a constraint that the server can't evaluate for one step is still reported for the others.
func TestRefusalsBesideAnUnknownStep(t *testing.T) {
	t.Parallel()
	k := newKit(t, `CREATE TABLE jobs (id int PRIMARY KEY, state text NOT NULL DEFAULT 'new', tries int NOT NULL DEFAULT 0,
		CONSTRAINT steps CHECK (CASE state WHEN 'done' THEN false WHEN 'failed' THEN 1 / (tries - tries) > 0 ELSE true END)); INSERT INTO jobs (id) VALUES (1);`, nil)
	m := mapping.Table{
		Name: "jobs", MaxAttempts: 3, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Attempts: {"tries"}},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "running"}, backends.StateDone: {Text: "done"}, backends.StateDead: {Text: "failed"}},
	}
	k.has("a nack that fails", k.tried(m), []string{"can't evaluate the constraint steps of ", " for each last nack: "}, []string{"error: queues.q.table: the constraint steps of ", " refuses each ack"})
}

// TestOccupiedColumns: a column that isn't empty in waiting rows gets no role that overwrites it, and check warns about one
// that a config gives it.
func TestOccupiedColumns(t *testing.T) {
	onEachEngine(t, func(t *testing.T, on *product) {
		k := on.newKit(t, fmt.Sprintf(`CREATE TABLE jobs (id int PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new', worker varchar(20) NOT NULL, started_at %[1]s, finished_at %[1]s, batch_id int, args varchar(20));
			CREATE TABLE fresh (id int PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new', worker varchar(20) NOT NULL, args varchar(20));
			CREATE TABLE usual (id int PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new', worker varchar(20) NOT NULL DEFAULT '', started_at %[1]s, args varchar(20));
			INSERT INTO jobs VALUES (1, 'new', 'Mail', '2026-01-02 03:04:05', '2026-01-02 03:04:05', 3, ''), (2, 'new', 'Mail', NULL, NULL, NULL, ''), (3, 'running', 'Mail', NULL, NULL, 1, '');
			INSERT INTO usual (id, state, worker, started_at) VALUES (1, 'new', '', NULL), (2, 'running', 'w', '2026-01-02 03:04:05');`, on.zoneless), nil)
		for table, want := range map[string]string{"jobs": "[] [] []", "fresh": "[] [] []", "usual": "[worker] [started_at] []"} {
			p, err := guess.Table(t.Context(), k.Engine, "", table)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(p.Table.Columns[mapping.Worker], p.Table.Columns[mapping.ClaimedAt], p.Table.Columns[mapping.FinishedAt]); got != want || p.Table.Token != nil {
				t.Errorf("%s: it proposes %s, %+v, want %s", table, got, p.Table.Token, want)
			}
		}
		m := mapping.Table{
			Name: "jobs", OnAck: mapping.Delete, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Worker: {"worker"}, mapping.ClaimedAt: {"started_at"}},
			States: map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "running"}},
			Token:  &mapping.Token{Column: "batch_id", From: 900, To: 999},
		}
		k.has("jobs", k.tried(m), []string{"warning: queues.q.columns.worker: 2 of 2 sampled rows"}, []string{"queues.q.columns.claimed_at: 1 of 2"}, []string{"queues.q.token.column: 1 of 2"})
	})
}

// TestRemainingAttempts: a counter that falls gets no role, and check warns if waiting rows would be dead by it.
func TestRemainingAttempts(t *testing.T) {
	onEachEngine(t, func(t *testing.T, on *product) {
		var ddl strings.Builder
		const rest = "state varchar(9) NOT NULL DEFAULT 'new', args varchar(20)"
		for table, counter := range map[string]string{
			"a": "retries_left int NOT NULL", "b": "attempts int NOT NULL DEFAULT 3", "c": "tries int NOT NULL", "d": "remaining_attempts int", "e": "attempts int NOT NULL DEFAULT 0", "f": "tries int NOT NULL",
		} {
			fmt.Fprintf(&ddl, "CREATE TABLE %s (id int PRIMARY KEY, %s, %s);", table, counter, rest)
		}
		for n := range 15 {
			fmt.Fprintf(&ddl, "INSERT INTO c (id, tries) VALUES (%d, 5); INSERT INTO f (id, tries, state) VALUES (%[1]d, %d, 'new');", n, n%4)
		}
		ddl.WriteString("INSERT INTO c (id, tries, state) VALUES (20, 0, 'failed'), (21, 4, 'done')")
		k := on.newKit(t, ddl.String(), nil)
		for table, want := range map[string]string{"a": "[]", "b": "[]", "c": "[]", "d": "[]", "e": "[attempts]", "f": "[tries]"} {
			p, err := guess.Table(t.Context(), k.Engine, "", table)
			if err != nil {
				t.Fatal(err)
			}
			hinted := slices.ContainsFunc(p.Hints, func(h guess.Hint) bool {
				return h.Key == "columns.attempts" && strings.Contains(h.Text, "attempts that remain")
			})
			if got := fmt.Sprint(p.Table.Columns[mapping.Attempts]); got != want || hinted != (want == "[]") {
				t.Errorf("%s: it proposes %s, and says %+v", table, got, p.Hints)
			}
		}
		m := mapping.Table{
			Name: "c", OnAck: mapping.Delete, MaxAttempts: 5, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Attempts: {"tries"}},
			States: map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "running"}},
		}
		k.has("c", k.tried(m), []string{"warning: queues.q.columns.attempts: 15 of 15 sampled rows that wait have used all attempts by tries"})
		m.Name = "f"
		k.has("f", k.tried(m))
	})
}

// TestLocksOutsideTheRow: tables whose rows don't show which jobs their own workers have are refused, also with a mapping
// that a person wrote.
func TestLocksOutsideTheRow(t *testing.T) {
	t.Parallel()
	k := newKit(t, `CREATE TABLE que_jobs (priority smallint NOT NULL DEFAULT 100, run_at timestamptz NOT NULL DEFAULT now(), id bigserial PRIMARY KEY, job_class text NOT NULL, error_count integer NOT NULL DEFAULT 0,
			last_error_message text, queue text NOT NULL DEFAULT 'default', last_error_backtrace text, finished_at timestamptz, expired_at timestamptz, args jsonb NOT NULL DEFAULT '[]', data jsonb NOT NULL DEFAULT '{}',
			job_schema_version int NOT NULL DEFAULT 1, kwargs jsonb NOT NULL DEFAULT '{}');
		CREATE TABLE old_que (priority smallint NOT NULL DEFAULT 100, run_at timestamptz NOT NULL DEFAULT now(), job_id bigserial PRIMARY KEY, job_class text NOT NULL, args json NOT NULL DEFAULT '[]',
			error_count integer NOT NULL DEFAULT 0, last_error text, queue text NOT NULL DEFAULT '');
		CREATE TABLE renamed_good_jobs (id uuid PRIMARY KEY, queue_name text, priority integer, serialized_params jsonb, scheduled_at timestamp, performed_at timestamp, finished_at timestamp, error text, created_at timestamp NOT NULL,
			updated_at timestamp NOT NULL, active_job_id uuid, concurrency_key text, locked_by_id uuid, locked_at timestamp);
		CREATE TABLE rihanna_jobs (id serial PRIMARY KEY, term bytea NOT NULL, priority int, enqueued_at timestamptz NOT NULL, due_at timestamptz, failed_at timestamptz, fail_reason text);
		CREATE TABLE solid_queue_jobs (id bigserial PRIMARY KEY, queue_name varchar NOT NULL, class_name varchar NOT NULL, arguments text, priority int DEFAULT 0 NOT NULL, active_job_id varchar, scheduled_at timestamp, finished_at timestamp,
			concurrency_key varchar);
		CREATE TABLE qrtz_triggers (sched_name text, trigger_name text, trigger_group text, trigger_state text, PRIMARY KEY (sched_name, trigger_name, trigger_group));
		CREATE TABLE things (id bigint PRIMARY KEY, body text); CREATE TABLE thing_claims (thing_id bigint PRIMARY KEY REFERENCES things, worker text)`, nil)
	for table, word := range map[string]string{
		"que_jobs": "Que's table. Its workers keep an advisory lock", "old_que": "Que's table", "renamed_good_jobs": "GoodJob's table", "rihanna_jobs": "Rihanna's table", "solid_queue_jobs": "Solid Queue",
		"qrtz_triggers": "Quartz", "things": "public.thing_claims, which refers to its rows",
	} {
		if _, err := guess.Table(t.Context(), k.Engine, "", table); err == nil || !strings.Contains(err.Error(), "the table "+table+" cannot be adopted: ") || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", table, err)
		}
		m := mapping.Table{Name: table, OnAck: mapping.Delete, ClaimInTx: true, Columns: map[mapping.Role][]string{mapping.ID: {"id"}}}
		switch table {
		case "things":
			k.has(table, k.tried(m), []string{"warning: ", "the table public.thing_claims refers to its rows, and seems to show which of them are claimed"})
			continue
		case "old_que":
			m.Columns[mapping.ID] = []string{"job_id"}
		case "qrtz_triggers":
			m.Columns[mapping.ID] = []string{"sched_name", "trigger_name", "trigger_group"}
		}
		if _, err := adopted.New(t.Context(), k.Engine, map[string]mapping.Table{"q": m}); err == nil || !strings.Contains(err.Error(), "queues.q.table: it ") || !strings.Contains(err.Error(), word) {
			t.Errorf("%s by hand: %v", table, err)
		}
	}
}
