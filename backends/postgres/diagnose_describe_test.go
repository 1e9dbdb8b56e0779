package postgres_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestDescribe compares the description of a table on every version.
func TestDescribe(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		s := open(t, postgres.Options{URL: url})
		if err := exec(t, url, `CREATE SCHEMA "it's"; CREATE TYPE mood AS ENUM ('a', 'b c'); CREATE DOMAIN score0 AS numeric(4, 1);
			CREATE DOMAIN score AS score0;
			CREATE TABLE "it's"."T" ("A b" bigint GENERATED ALWAYS AS IDENTITY, c varchar(7) NOT NULL DEFAULT 'x', m mood, n numeric(3, 0), s score, i int, l smallint, at timestamptz, CHECK (l IN (1, 2)),
				PRIMARY KEY (c, "A b"), UNIQUE (i), UNIQUE (c));
			CREATE INDEX one ON "it's"."T" (m, "A b" DESC) INCLUDE (i) WHERE m = 'a';
			CREATE INDEX two ON "it's"."T" ((i + 1)); CREATE INDEX three ON "it's"."T" USING hash (m); CREATE INDEX four ON "it's"."T" (m NULLS FIRST);
			CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN perform pg_notify( 'it''s', NEW.c); PERFORM pg_notify(TG_ARGV[0], ''); NOTIFY "B c"; RETURN NEW; END$$;
			CREATE TRIGGER tells AFTER INSERT ON "it's"."T" FOR EACH ROW EXECUTE FUNCTION tell();
			CREATE RULE r AS ON INSERT TO "it's"."T" DO ALSO NOTIFY X`); err != nil {
			t.Fatal(err)
		}
		got, err := diagnose.New(s).Describe(t.Context(), "it's", "T")
		if err != nil {
			t.Fatal(err)
		}
		by := func(names ...string) (all []backends.IndexColumn) {
			for _, n := range names {
				name, descending := strings.CutSuffix(n, " DESC")
				all = append(all, backends.IndexColumn{Name: name, Descending: descending})
			}
			return all
		}
		none := []string{}
		want := backends.TableInfo{
			Schema: "it's", Name: "T", Kind: "table", Denied: none, Grantee: `"postgres"`, Triggers: []string{"r", "tells"}, Channels: []string{"it's", "B c", "x"}, Checks: []string{"CHECK ((l = ANY (ARRAY[1, 2])))"},
			Constraints: []backends.Constraint{
				{Kind: backends.CheckConstraint, Name: "T_l_check", Text: "(l = ANY (ARRAY[1, 2]))", Columns: none, Others: none},
				{Kind: backends.UniqueKey, Name: "T_c_key", Columns: []string{"c"}, Others: none},
				{Kind: backends.UniqueKey, Name: "T_i_key", Columns: []string{"i"}, Others: none},
			},
			Columns: []backends.Column{
				{Name: "A b", Type: "bigint", Kind: backends.NumberColumn, Default: true, Generated: true, Denied: none},
				{Name: "c", Type: "character varying(7)", Kind: backends.TextColumn, Default: true, Given: "'x'::character varying", Chars: 7, Denied: none},
				{Name: "m", Type: "public.mood", Kind: backends.TextColumn, Nullable: true, Values: []string{"a", "b c"}, Denied: none},
				{Name: "n", Type: "numeric(3,0)", Kind: backends.NumberColumn, Nullable: true, Least: -999, Most: 999, Denied: none},
				{Name: "s", Type: "numeric(4,1)", Kind: backends.NumberColumn, Nullable: true, Least: -999, Most: 999, Denied: none},
				{Name: "i", Type: "integer", Kind: backends.NumberColumn, Nullable: true, Least: math.MinInt32, Most: math.MaxInt32, Denied: none},
				{Name: "l", Type: "smallint", Kind: backends.NumberColumn, Nullable: true, Least: math.MinInt16, Most: math.MaxInt16, Denied: none},
				{Name: "at", Type: "timestamp with time zone", Kind: backends.TimeColumn, Nullable: true, Denied: none},
			},
			Unique: [][]string{{"c", "A b"}, {"c"}},
			Indexes: []backends.Index{
				{Name: "T_pkey", Columns: by("c", "A b")}, {Name: "T_c_key", Columns: by("c")}, {Name: "T_i_key", Columns: by("i")},
				{Name: "one", Columns: by("m", "A b DESC"), Only: "(m = 'a'::public.mood)"},
			},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if got, err := diagnose.New(s).Describe(t.Context(), "", "t"); err != nil || len(got.Columns) > 0 || !slices.Contains(got.Tables, "it's.T") {
			t.Errorf("of a missing table: %+v, %v", got, err)
		}
	})
}
