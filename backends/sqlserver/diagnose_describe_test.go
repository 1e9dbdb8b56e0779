package sqlserver_test

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlserver"
	"github.com/qsidecar/qsidecar/backends/sqlserver/diagnose"
)

// theirs returns a server's answers about a table that another application owns.
func theirs() []*sqlserver.Answer {
	set := func(rows ...[]driver.Value) *sqlserver.Answer {
		a := &sqlserver.Answer{Columns: make([]string, 14)}
		if len(rows) > 0 {
			a.Columns = make([]string, len(rows[0]))
		}
		a.Rows = rows
		return a
	}
	column := func(name, kind string, bytes, digits, scale int64, collation string, flags string, maySelect, mayUpdate int64) []driver.Value {
		return []driver.Value{name, kind, bytes, digits, scale, collation, sqlserver.Flag(strings.Contains(flags, "n")), sqlserver.Flag(strings.Contains(flags, "g")),
			sqlserver.Flag(strings.Contains(flags, "d")), sqlserver.Flag(strings.Contains(flags, "j")), maySelect, mayUpdate, map[bool]string{true: "(N'N')", false: ""}[name == "State"], map[bool]string{true: "([State]+'x')", false: ""}[name == "Mark"]}
	}
	index := func(name, flags, filter, column string, descending, nullable int64) []driver.Value {
		return []driver.Value{name, sqlserver.Flag(strings.Contains(flags, "u")), sqlserver.Flag(strings.Contains(flags, "f")), filter, column, descending, nullable,
			sqlserver.Flag(strings.Contains(flags, "1"))}
	}
	key := func(outside int64, name string, number int64, other, here, there string, cascades, place int64) []driver.Value {
		return []driver.Value{outside, name, number, "dbo", other, here, there, cascades, place}
	}
	return []*sqlserver.Answer{
		set([]driver.Value{"dbo", "Jobs", "U", int64(0), int64(1), "DOM\\app", int64(0), "-"}),
		set(
			column("Id", "int", 4, 10, 0, "", "g", 1, 1),
			column("State", "char", 1, 0, 0, "Latin1_General_CI_AS", "d", 1, 1),
			column("Doc", "nvarchar", -1, 0, 0, "Latin1_General_CI_AS", "nj", 1, 1),
			column("Name", "nvarchar", 40, 0, 0, "Latin1_General_CI_AS", "n", 1, 0),
			column("Code", "varchar", 10, 0, 0, "Cyrillic_General_CI_AS", "n", 1, 1),
			column("Utf", "varchar", 10, 0, 0, "Latin1_General_100_CI_AS_SC_UTF8", "n", 1, 1),
			column("Amount", "decimal", 9, 18, 0, "", "n", 1, 1),
			column("Price", "decimal", 9, 18, 2, "", "n", 1, 1),
			column("At", "datetimeoffset", 10, 34, 3, "", "n", 1, 1),
			column("Version", "timestamp", 8, 0, 0, "", "g", 1, 1),
			column("Mark", "varchar", 2, 0, 0, "Latin1_General_CI_AS", "g", 1, 1),
		),
		set(
			index("PK", "u1", "", "Id", 0, 0),
			index("open", "uf", "([State]='N')", "State", 0, 0),
			index("open", "uf", "([State]='N')", "At", 1, 1),
			index("names", "u", "", "Name", 0, 1),
			index("two", "u", "", "State", 0, 0),
			index("two", "u", "", "Id", 0, 0),
		),
		set([]driver.Value{"theirs", int64(1)}),
		set([]driver.Value{"INSERT", int64(1)}, []driver.Value{"DELETE", int64(0)}),
		set(),
		set([]driver.Value{"CK_State", "([State]=N'C' OR [State]='A' OR [State]='N')"}),
		set(
			key(0, "FK_State", 7, "States", "State", "Code", 0, 1),
			key(0, "FK_State", 7, "States", "Code", "a]b", 0, 2),
			key(1, "FK_Done", 8, "Done", "Id", "JobId", 1, 1),
		),
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	world := theirs()
	s, _ := sqlserver.ScriptedStore(t, func(query string) ([]*sqlserver.Answer, error) {
		if !strings.Contains(query, "@describe_table") || strings.Contains(query, "qsidecar_now") {
			t.Errorf("asked, where our own tables may not be there: %s", query)
		}
		return world, nil
	})
	info, err := diagnose.New(s).Describe(t.Context(), "", "Jobs")
	if err != nil {
		t.Fatal(err)
	}
	if got := []any{info.Schema, info.Kind, info.Unsafe, info.Unique, info.Denied, info.Triggers, len(info.Remarks)}; !cmp.Equal(got,
		[]any{"dbo", "table", "", [][]string{{"Id"}, {"State", "Id"}}, []string{"DELETE"}, []string{"theirs"}, 1}) {
		t.Errorf("%+v", got)
	}
	if !info.FoldsCase {
		t.Error("the database's collation takes names in any case")
	}
	if want := (backends.Index{Name: "open", Only: "[State]='N'", Columns: []backends.IndexColumn{{Name: "State"}, {Name: "At", Descending: true}}}); !cmp.Equal(info.Indexes[1], want) {
		t.Errorf("%+v", info.Indexes)
	}
	for _, want := range []backends.Column{
		{Name: "Id", Type: "int", Kind: backends.NumberColumn, Default: true, Generated: true, Least: -1 << 31, Most: 1<<31 - 1},
		{Name: "State", Type: "char(1) COLLATE Latin1_General_CI_AS", Kind: backends.TextColumn, Default: true, Given: "'N'", Chars: 1, Charset: "latin1"},
		{Name: "Doc", Type: "nvarchar(max) COLLATE Latin1_General_CI_AS", Kind: backends.JSONColumn, Nullable: true},
		{Name: "Name", Type: "nvarchar(20) COLLATE Latin1_General_CI_AS", Kind: backends.TextColumn, Nullable: true, Chars: 20, Denied: []string{"UPDATE"}},
		{Name: "Code", Type: "varchar(10) COLLATE Cyrillic_General_CI_AS", Kind: backends.TextColumn, Nullable: true, Chars: 10, Charset: "unknown"},
		{Name: "Utf", Type: "varchar(10) COLLATE Latin1_General_100_CI_AS_SC_UTF8", Kind: backends.TextColumn, Nullable: true, Chars: 10},
		{Name: "Amount", Type: "decimal(18,0)", Kind: backends.NumberColumn, Nullable: true, Least: -999999999999999999, Most: 999999999999999999},
		{Name: "Price", Type: "decimal(18,2)", Nullable: true},
		{Name: "At", Type: "datetimeoffset(3)", Kind: backends.TimeColumn, Nullable: true},
		{Name: "Version", Type: "timestamp", Kind: backends.BytesColumn, Default: true, Generated: true},
		{Name: "Mark", Type: "varchar(2) COLLATE Latin1_General_CI_AS", Kind: backends.TextColumn, Default: true, Generated: true, Computed: "([State]+'x')", Chars: 2, Charset: "latin1"},
	} {
		if c, ok := info.Column(want.Name); !ok || !cmp.Equal(c, want) {
			t.Errorf("(-want +got)\n%s", cmp.Diff(want, c))
		}
	}
	if want := []backends.Constraint{
		{Kind: backends.UniqueKey, Name: "open", Text: "[State]='N'", Columns: []string{"[State]", "[At]"}},
		{Kind: backends.UniqueKey, Name: "names", Columns: []string{"[Name]"}},
		{Kind: backends.UniqueKey, Name: "two", Columns: []string{"[State]", "[Id]"}},
		{Kind: backends.CheckConstraint, Name: "CK_State", Text: "([State]=N'C' OR [State]='A' OR [State]='N')"},
		{Kind: backends.ForeignKey, Name: "FK_State", Table: "[dbo].[States]", Columns: []string{"[State]", "[Code]"}, Others: []string{"[Code]", "[a]]b]"}},
		{Kind: backends.ReferencedBy, Name: "FK_Done", Table: "[dbo].[Done]", Columns: []string{"[Id]"}, Others: []string{"[JobId]"}, Cascades: true},
	}; !cmp.Equal(info.Constraints, want) {
		t.Errorf("(-want +got)\n%s", cmp.Diff(want, info.Constraints))
	}
	if !cmp.Equal(info.Checks, []string{"([State] IN ('C', 'A', 'N'))"}) {
		t.Errorf("%q", info.Checks)
	}
	world[0].Rows[0][3], world[0].Rows[0][4] = int64(1), int64(0)
	for i := range world[1].Rows {
		world[1].Rows[i][11] = int64(0)
	}
	if info, err = diagnose.New(s).Describe(t.Context(), "dbo", "Jobs"); err != nil || !strings.Contains(info.Unsafe, "memory-optimized") || !cmp.Equal(info.Denied, []string{"UPDATE", "DELETE"}) || len(info.Columns[3].Denied) > 0 {
		t.Errorf("%+v, %v", info, err)
	}
	world = []*sqlserver.Answer{{Columns: make([]string, 8)}, {}, {}, {}, {}, sqlserver.RowOf("JOBS"), {}, {}}
	if info, err = diagnose.New(s).Describe(t.Context(), "", "jobs"); err != nil || len(info.Columns) != 0 || !cmp.Equal(info.Tables, []string{"JOBS"}) {
		t.Errorf("%+v, %v", info, err)
	}
}

// TestDescribeWithoutTheRight: a login without VIEW DEFINITION sees that there are CHECKs and filters, but not their texts. An index
// whose filter is hidden does not count as a key, and no claim reads it.
func TestDescribeWithoutTheRight(t *testing.T) {
	t.Parallel()
	world := theirs()
	for _, row := range world[2].Rows {
		row[3] = ""
	}
	world[6].Rows[0][1] = ""
	s, _ := sqlserver.ScriptedStore(t, func(string) ([]*sqlserver.Answer, error) { return world, nil })
	info, err := diagnose.New(s).Describe(t.Context(), "", "Jobs")
	if err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(info.Unique, [][]string{{"Id"}, {"State", "Id"}}) {
		t.Errorf("keys: %v", info.Unique)
	}
	for _, x := range info.Indexes {
		if x.Name == "open" || len(x.Columns) == 0 {
			t.Errorf("a claim can use %+v", x)
		}
	}
	if len(info.Indexes) != 3 || len(info.Indexes[2].Columns) != 2 {
		t.Errorf("%+v", info.Indexes)
	}
	for _, k := range info.Constraints {
		if k.Kind == backends.CheckConstraint || k.Name == "open" {
			t.Errorf("without a definition: %+v", k)
		}
	}
	want := backends.Finding{Severity: backends.SeverityWarning, Topic: "rights", Fix: `GRANT VIEW DEFINITION ON OBJECT::[dbo].[Jobs] TO [DOM\app]`}
	found := false
	for _, f := range info.Remarks {
		if f.Topic == want.Topic && f.Severity == want.Severity && f.Fix == want.Fix {
			found = strings.Contains(f.Text, "open") && strings.Contains(f.Text, "CK_State")
		}
	}
	if !found {
		t.Errorf("%+v", info.Remarks)
	}
}

// TestDescribeWithoutRowLocks: sidecars lock single rows, so a table that doesn't is refused, with what to do.
func TestDescribeWithoutRowLocks(t *testing.T) {
	t.Parallel()
	for index, words := range map[string]string{
		"PK_Jobs": "ALTER INDEX [PK_Jobs] ON [dbo].[Jobs] SET (ALLOW_ROW_LOCKS = ON)",
		"":        "EXEC sp_indexoption N'[dbo].[Jobs]', 'AllowRowLocks', 1", // a heap
		"-":       "columnstore",
	} {
		world := theirs()
		world[0].Rows[0][6], world[0].Rows[0][7] = sqlserver.Flag(index == "-"), index
		s, _ := sqlserver.ScriptedStore(t, func(string) ([]*sqlserver.Answer, error) { return world, nil })
		if info, err := diagnose.New(s).Describe(t.Context(), "", "Jobs"); err != nil || !strings.Contains(info.Unsafe, words) {
			t.Errorf("%q: %q, %v", index, info.Unsafe, err)
		}
	}
}

// TestExplain shows that Explain returns the plan of a statement, or that this login is not allowed to see one.
func TestExplain(t *testing.T) {
	t.Parallel()
	shown, denied := "", false
	s, _ := sqlserver.ScriptedStore(t, func(query string) ([]*sqlserver.Answer, error) {
		switch {
		case strings.HasPrefix(query, "SET SHOWPLAN_XML"):
			if denied {
				return nil, sqlserver.ServerError(262, "SHOWPLAN permission denied in database 'app'.")
			}
			return nil, nil
		case strings.Contains(query, "SELECT TOP (@a1_1)") && strings.Contains(query, "DECLARE @a1_1 bigint;") && !strings.Contains(query, "qsidecar_now"):
			return []*sqlserver.Answer{sqlserver.RowOf(shown)}, nil
		}
		t.Errorf("asked: %s", query)
		return nil, nil
	})
	g := s.Dialect()
	st := &backends.Statement{Text: g.SelectLocked("1 AS one", g.Table("dbo", "Jobs"), "1 = 1", "[At]", 1, true), Args: []any{int64(1)}}
	plan := func(steps string) backends.Plan {
		shown = `<ShowPlanXML><BatchSequence><Batch><Statements><StmtSimple StatementText="DECLARE @now datetime2(6) = SYSUTCDATETIME()"/><StmtSimple StatementText="SELECT TOP (@a1_1) 1 AS one"><QueryPlan>` +
			steps + `</QueryPlan></StmtSimple></Statements></Batch></BatchSequence></ShowPlanXML>`
		p, err := diagnose.New(s).Explain(t.Context(), st, backends.TableInfo{Name: "Jobs"})
		if err != nil {
			t.Error(err)
		}
		return p
	}
	seek := `<RelOp PhysicalOp="Index Seek"><IndexScan Ordered="1"><Object Table="[Jobs]" Index="[by_at]"/></IndexScan></RelOp>`
	if p := plan(`<RelOp PhysicalOp="Top"><Top>` + seek + `</Top></RelOp>`); p.Index != "by_at" || p.Whole || p.Sorts || !cmp.Equal(p.Lines, []string{"Top", "  Index Seek of Jobs by by_at"}) {
		t.Errorf("%+v", p)
	}
	if p := plan(`<RelOp PhysicalOp="Sort"><Sort>` + strings.Replace(seek, "Index Seek", "Clustered Index Scan", 1) + `</Sort></RelOp>`); !p.Whole || !p.Sorts {
		t.Errorf("%+v", p)
	}
	// If the plan cannot be read, the statement is still accepted.
	for _, shown = range []string{"", "<ShowPlanXML><unfinished>", "<ShowPlanXML/>"} {
		if _, err := diagnose.New(s).Explain(t.Context(), st, backends.TableInfo{}); !errors.Is(err, backends.ErrNoPlan) {
			t.Errorf("%q: %v", shown, err)
		}
	}
	denied = true
	if _, err := diagnose.New(s).Explain(t.Context(), st, backends.TableInfo{}); !errors.Is(err, backends.ErrNoPlan) {
		t.Errorf("%v", err)
	}
}
