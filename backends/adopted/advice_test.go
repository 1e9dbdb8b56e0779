package adopted_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
)

// advice returns the warnings and errors of check about a mapping, and its facts, a line each.
func (f *fitting) advice(m mapping.Table) (advice, facts string) {
	f.Helper()
	s, err := adopted.New(f.Context(), pgdiagnose.New(f.engine), map[string]mapping.Table{"q": m})
	if err != nil {
		f.Fatal(err)
	}
	found, err := s.Examine(f.Context(), nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, x := range found {
		switch {
		case x.Severity == backends.SeverityInfo:
			facts += x.Text + "\n"
		case strings.HasPrefix(x.Text, "queues.q.") || strings.HasPrefix(x.Text, "the table "):
			advice += x.Topic + ": " + x.Text + " → " + x.Fix + "\n"
		}
	}
	atStart := ""
	for _, x := range s.Advice() {
		atStart += x.Topic + ": " + x.Text + " → " + x.Fix + "\n"
	}
	if atStart != advice {
		f.Errorf("at start it reports\n%sand check reports\n%s", atStart, advice)
	}
	return advice, facts
}

// TestIndexes checks which indexes serve a claim, and which index the advice proposes.
func TestIndexes(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	f := newFitting(t, `CREATE TABLE jobs (id bigint PRIMARY KEY, s varchar(10) NOT NULL, b boolean NOT NULL, n smallint NOT NULL, "Kind" text, gone text, at timestamptz, "prio""" int, worker text)`)
	plain := on("s", "waiting", "taken")
	plain.Columns[mapping.Worker] = []string{"worker"}
	made := func(change func(m *mapping.Table)) mapping.Table {
		m := plain
		m.Columns = map[mapping.Role][]string{}
		maps.Copy(m.Columns, plain.Columns)
		change(&m)
		return m
	}
	dated := made(func(m *mapping.Table) { m.Columns[mapping.CreatedAt] = []string{"at"} })
	lifo := made(func(m *mapping.Table) { m.Columns[mapping.CreatedAt] = []string{"at"}; m.LIFO = true })
	first := made(func(m *mapping.Table) { m.Columns[mapping.Priority] = []string{`prio"`} })
	kind := made(func(m *mapping.Table) {
		m.Where = map[string]mapping.Value{"Kind": {Text: "it's"}, "gone": {Null: true}}
	})
	truth := made(func(m *mapping.Table) {
		m.Columns[mapping.State] = []string{"b"}
		m.States = map[backends.State]mapping.Value{backends.StateReady: {Text: "false"}, backends.StateDone: {Text: "true"}}
		m.ClaimInTx, m.Columns[mapping.Worker] = true, nil
	})
	const waiting = ` WHERE "s" =  E'waiting'`
	for name, c := range map[string]struct {
		m      mapping.Table
		serves []string // indexes, each of which serves the claim alone
		not    []string
		want   string // the proposed index
	}{
		"state": {plain, []string{"(s, id)", "(s, id DESC)", "(id) WHERE s = 'waiting'", "(s, id, at)", "(id, at) WHERE s::text = 'waiting'::text"},
			[]string{"(s)", "(id, s)", "(s, at, id)", "(id) WHERE s = 'taken'", "(id) WHERE b", "(s, (id + 1))", "(s, id DESC NULLS LAST)", "(s text_pattern_ops, id)"}, `("id")` + waiting},
		"dated":    {dated, []string{"(s, at, id)", "(s, at DESC, id DESC)", "(at, id) WHERE s IN ('waiting')"}, []string{"(s, at)", "(s, at DESC, id)", "(at, id)"}, `("at", "id")` + waiting},
		"lifo":     {lifo, []string{"(s, at, id)", "(s, at DESC, id DESC)"}, []string{"(s, at, id DESC)"}, `("at", "id")` + waiting},
		"priority": {first, []string{`(s, "prio""" DESC, id)`, `(s, "prio""", id DESC)`}, []string{`(s, "prio""", id)`, `(s, id)`}, `("prio""" DESC, "id")` + waiting},
		"where": {kind, []string{`("Kind", s, id) WHERE gone IS NULL`, `("Kind", s, id, gone) WHERE gone IS NULL`, `("Kind", id) WHERE gone IS NULL AND s = 'waiting'`, `(id) WHERE "Kind" = 'it''s' AND gone IS NULL AND s = 'waiting'`},
			[]string{`("Kind", s, id)`, `("Kind", gone, s, id)`, `("Kind", gone, s, id) WHERE gone IS NULL`, `(gone, s, id) WHERE "Kind" = 'its'`}, `("Kind", "id") WHERE "gone" IS NULL AND "s" =  E'waiting'`},
		"truth": {truth, []string{"(b, id)", "(id) WHERE NOT b", "(id) WHERE b = false"}, []string{"(id) WHERE b", "(b)"}, `("id") WHERE "b" =  E'false'`},
	} {
		t.Run(name, func(t *testing.T) {
			g := *f
			g.T = t
			advice, facts := g.advice(c.m)
			want := `CREATE INDEX CONCURRENTLY ON "public"."jobs" ` + c.want
			if !strings.Contains(advice, "index: queues.q.order: no index of ") || !strings.Contains(advice, "→ "+want+"\n") {
				t.Errorf("without an index: %s\nwant %s", advice, want)
			}
			if !strings.Contains(facts, "queues.q: the plan of its claim reads ") || !strings.Contains(facts, "LockRows\n") {
				t.Errorf("no plan is reported: %s", facts)
			}
			for _, index := range c.not {
				g.sql("CREATE INDEX x ON jobs " + index)
				if advice, _ := g.advice(c.m); !strings.Contains(advice, want) {
					t.Errorf("with an index on %s it reports %s", index, advice)
				}
				g.sql("DROP INDEX x")
			}
			for _, index := range append(c.serves, strings.TrimPrefix(want, `CREATE INDEX CONCURRENTLY ON "public"."jobs"`)) {
				g.sql("CREATE INDEX x ON jobs " + index)
				if advice, facts := g.advice(c.m); advice != "" || !strings.Contains(facts, "by x") || strings.Contains(facts, "sorts") {
					t.Errorf("with an index on %s it reports %s%s", index, advice, facts)
				}
				g.sql("DROP INDEX x")
			}
		})
	}
}

// TestAdvice checks the advice about triggers and rules, about what a crash leaves, and about claims
// that rows do not show.
func TestAdvice(t *testing.T) {
	t.Parallel()
	f := newFitting(t, `CREATE UNLOGGED TABLE jobs (id bigint PRIMARY KEY, s text, w text); CREATE INDEX ON jobs (s, id);
		CREATE TABLE old (id bigint, s varchar(9), w text NOT NULL);
		CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE TRIGGER audit BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION nothing();
		CREATE TRIGGER off BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION nothing(); ALTER TABLE jobs DISABLE TRIGGER off;
		CREATE RULE keep AS ON DELETE TO jobs DO ALSO NOTIFY gone`)
	m := on("s", "waiting", "taken")
	m.OnAck, m.Archive = mapping.Archive, "old"
	advice, _ := f.advice(m)
	for _, want := range []string{
		`triggers: queues.q.table: the table "public"."jobs" has the triggers or rules audit, keep, which `, "the table jobs is UNLOGGED", "queues.q.columns: nothing in a row distinguishes",
		"queues.q.on_ack.archive: the column s holds less in old (character varying(9)) than in jobs (text)", "queues.q.on_ack.archive: the column w can be NULL in jobs but not in old",
	} {
		if !strings.Contains(advice, want) {
			t.Errorf("it does not report %s:\n%s", want, advice)
		}
	}
	if n := strings.Count(advice, "\n"); n != 5 {
		t.Errorf("%d pieces of advice, want 5:\n%s", n, advice)
	}
	fmt.Fprintln(t.Output(), advice)
}
