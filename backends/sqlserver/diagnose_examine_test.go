package sqlserver_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlserver"
	"github.com/qsidecar/qsidecar/backends/sqlserver/diagnose"
	"github.com/qsidecar/qsidecar/backends/sqlserver/internal/plan"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

// The tests of adopted tables in package sqlserver need an engine with diagnostics, which
// they can't import.
func init() {
	sqlserver.NewEngine = func(s *sqlserver.Store) backends.Engine { return diagnose.New(s) }
}

var createIndex = regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (\w+)`)

// planOf returns a SHOWPLAN_XML document of the claim's statements, in the form that
// Microsoft documents. pick and take are their steps.
func planOf(pick, take string) string {
	statement := func(text, steps string) string {
		return fmt.Sprintf(`<StmtSimple StatementText="%s" StatementType="INSERT"><QueryPlan>%s</QueryPlan></StmtSimple>`, text, steps)
	}
	return `<?xml version="1.0" encoding="utf-16"?><ShowPlanXML xmlns="http://schemas.microsoft.com/sqlserver/2004/07/showplan" Version="1.564"><BatchSequence><Batch><Statements>` +
		statement("INSERT INTO @claim_segment (n) SELECT x.n FROM OPENJSON(@claim_segments)", `<RelOp PhysicalOp="Table Scan"><TableScan><Object Table="[@claim_segment]"/></TableScan></RelOp>`) +
		`<StmtCond StatementText="WHILE @claim_left &gt; 0"><Then><Statements>` +
		statement("INSERT INTO @claim_picked (id) SELECT TOP (@claim_left) j.id FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK) WHERE x", pick) +
		statement("INSERT INTO @claim_picked (id) SELECT TOP (@claim_left) j.id FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK) WHERE y", pick) +
		`</Statements></Then></StmtCond>` + statement("UPDATE j SET state = 'claimed', owner = @claim_host", take) + `</Statements></Batch></BatchSequence></ShowPlanXML>`
}

const (
	goodPick = `<RelOp PhysicalOp="Clustered Index Insert"><Update><Object Table="[@claim_picked]" Index="[PK]"/><RelOp PhysicalOp="Top"><Top><RelOp PhysicalOp="Nested Loops"><NestedLoops>
		<RelOp PhysicalOp="Index Seek"><IndexScan Ordered="1" ScanDirection="FORWARD" ForcedIndex="1"><Object Schema="[qsidecar]" Table="[qsidecar_jobs]" Index="[qsidecar_ready]" Alias="[j]"/></IndexScan></RelOp>
		<RelOp PhysicalOp="Clustered Index Seek"><IndexScan Lookup="1" Ordered="1"><Object Table="[qsidecar_jobs]" Index="[qsidecar_jobs_id]"/></IndexScan></RelOp></NestedLoops></RelOp></Top></RelOp></Update></RelOp>`
	goodTake = `<RelOp PhysicalOp="Clustered Index Update"><Update><Object Index="[qsidecar_jobs_id]"/><RelOp PhysicalOp="Nested Loops"><NestedLoops>
		<RelOp PhysicalOp="Clustered Index Scan"><IndexScan Ordered="0"><Object Table="[@claim_chosen]" Index="[PK__1]"/></IndexScan></RelOp>
		<RelOp PhysicalOp="Clustered Index Seek"><IndexScan Ordered="1"><Object Table="[qsidecar_jobs]" Index="[qsidecar_jobs_id]"/></IndexScan></RelOp></NestedLoops></RelOp></Update></RelOp>`
)

func TestClaimFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ pick, take, word string }{
		"as it should be": {goodPick, goodTake, ""},
		"sorted to be stored": {strings.NewReplacer(`<RelOp PhysicalOp="Top">`, `<RelOp PhysicalOp="Sort"><Sort><RelOp PhysicalOp="Top">`,
			`</Top></RelOp>`, `</Top></RelOp></Sort></RelOp>`).Replace(goodPick), goodTake, ""},
		"a sort": {strings.NewReplacer(`<RelOp PhysicalOp="Nested Loops">`, `<RelOp PhysicalOp="Sort"><Sort><RelOp PhysicalOp="Nested Loops">`,
			`</NestedLoops></RelOp>`, `</NestedLoops></RelOp></Sort></RelOp>`).Replace(goodPick), goodTake, "sorted"},
		"a sort that is the TOP": {strings.Replace(goodPick, `PhysicalOp="Top"`, `PhysicalOp="Sort"`, 1), goodTake, "sorted"},
		"a scan":                 {strings.Replace(goodPick, `"Index Seek"`, `"Index Scan"`, 1), goodTake, "a Index Scan of qsidecar_ready"},
		"out of order":           {strings.Replace(goodPick, `Ordered="1" ScanDirection`, `Ordered="0" ScanDirection`, 1), goodTake, "without an ordered seek"},
		"another index":          {strings.Replace(goodPick, `[qsidecar_ready]" Alias`, `[qsidecar_owned]" Alias`, 1), goodTake, "without an ordered seek"},
		"taken by a scan":        {goodPick, strings.Replace(goodTake, `"Clustered Index Seek"`, `"Clustered Index Scan"`, 1), "a Clustered Index Scan of qsidecar_jobs_id"},
	} {
		faults, seeks, err := plan.ClaimFaults(planOf(c.pick, c.take))
		got := strings.Join(faults, "; ")
		if err != nil || c.word == "" && (got != "" || seeks != 2) || !strings.Contains(got, c.word) {
			t.Errorf("%s: %q, %d, %v; want %q", name, got, seeks, err, c.word)
		}
	}
	for _, text := range []string{"", "<ShowPlanXML/>", "<ShowPlanXML><unfinished>"} {
		if _, _, err := plan.ClaimFaults(text); err == nil {
			t.Errorf("%q is taken for a plan", text)
		}
	}
}

// world holds the answers of a scripted server about itself.
type world struct {
	settings *sqlserver.Answer
	cluster  *sqlserver.Answer
	replicas *sqlserver.Answer
	mirror   *sqlserver.Answer
	rights   func(query string) *sqlserver.Answer
	indexes  *sqlserver.Answer
	triggers *sqlserver.Answer
	overdue  *sqlserver.Answer // nil: no job is
	sequence *sqlserver.Answer
	plan     string
	refused  string // the start of queries that the login may not ask
}

func sound() world {
	indexes := &sqlserver.Answer{Columns: make([]string, 3)}
	for _, m := range createIndex.FindAllStringSubmatch(migrate.Script(0), -1) {
		indexes.Rows = append(indexes.Rows, sqlserver.RowOf(m[1], int64(0), int64(1)).Rows[0])
	}
	return world{
		settings: sqlserver.RowOf(int64(1), "ON", "DISABLED", int64(0), "READ_WRITE", "app", "app", time.Now().UTC(), int64(0)),
		cluster:  sqlserver.RowOf(int64(3), int64(0)), mirror: &sqlserver.Answer{Columns: make([]string, 3)},
		rights: func(query string) *sqlserver.Answer {
			a := &sqlserver.Answer{Columns: make([]string, 3)}
			for range strings.Count(query, "', '") / 2 {
				a.Rows = append(a.Rows, sqlserver.RowOf("x", "SELECT", int64(1)).Rows[0])
			}
			return a
		},
		sequence: sqlserver.RowOf(int64(5000), int64(5999)), indexes: indexes, triggers: &sqlserver.Answer{Columns: make([]string, 2)}, plan: planOf(goodPick, goodTake),
	}
}

// group makes the server the primary of an availability group with one other replica.
func (w *world) group(mode, state string) {
	w.cluster.Rows[0][1] = int64(1)
	w.replicas = sqlserver.RowOf("a", "SYNCHRONOUS_COMMIT", "SYNCHRONIZED", int64(1), int64(1))
	w.replicas.Rows = append(w.replicas.Rows, sqlserver.RowOf("b", mode, state, int64(0), int64(0)).Rows[0])
}

func (w world) answer(query string) ([]*sqlserver.Answer, error) {
	if w.refused != "" && strings.Contains(query, w.refused) {
		return nil, sqlserver.ServerError(262, "SHOWPLAN permission denied in database 'app'.")
	}
	switch {
	case strings.Contains(query, "delayed_durability_desc"):
		return []*sqlserver.Answer{w.settings}, nil
	case strings.Contains(query, "EngineEdition"):
		return []*sqlserver.Answer{w.cluster}, nil
	case strings.Contains(query, "dm_hadr_database_replica_states"):
		return []*sqlserver.Answer{w.replicas}, nil
	case strings.Contains(query, "database_mirroring"):
		return []*sqlserver.Answer{w.mirror}, nil
	case strings.Contains(query, "HAS_PERMS_BY_NAME"):
		return []*sqlserver.Answer{w.rights(query)}, nil
	case strings.Contains(query, "sys.sequences"):
		return []*sqlserver.Answer{w.sequence}, nil
	case strings.Contains(query, "sys.indexes"):
		return []*sqlserver.Answer{w.indexes}, nil
	case strings.Contains(query, "sys.triggers"):
		return []*sqlserver.Answer{w.triggers}, nil
	case strings.Contains(query, "AS example") && w.overdue != nil:
		return []*sqlserver.Answer{w.overdue}, nil
	case strings.Contains(query, "AS example"):
		return []*sqlserver.Answer{{Columns: make([]string, 4)}}, nil
	case strings.HasPrefix(query, "SET SHOWPLAN_XML"):
		return nil, nil
	case strings.Contains(query, "@claim_picked"):
		return []*sqlserver.Answer{sqlserver.RowOf(w.plan)}, nil
	}
	return nil, fmt.Errorf("asked: %s", query)
}

func TestExamine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(w *world)
		grade  backends.Severity
		topic  string
		words  string
	}{
		"all well":           {func(*world) {}, backends.SeverityInfo, "plan", "seeks in the index qsidecar_ready"},
		"no row versions":    {func(w *world) { w.settings.Rows[0][0] = int64(0) }, backends.SeverityWarning, "isolation", "SET READ_COMMITTED_SNAPSHOT ON"},
		"delayed durability": {func(w *world) { w.settings.Rows[0][2] = "FORCED" }, backends.SeverityWarning, "durability", "DELAYED_DURABILITY = DISABLED"},
		"auto close":         {func(w *world) { w.settings.Rows[0][3] = int64(1) }, backends.SeverityWarning, "server", "AUTO_CLOSE OFF"},
		"forced parameters":  {func(w *world) { w.settings.Rows[0][8] = int64(1) }, backends.SeverityWarning, "server", "is_parameterization_forced"},
		"a secondary":        {func(w *world) { w.settings.Rows[0][4] = "READ_ONLY" }, backends.SeverityError, "server", "takes no writes"},
		"one server":         {func(*world) {}, backends.SeverityInfo, "cluster", "in no availability group"},
		"Azure":              {func(w *world) { w.cluster.Rows[0][0] = int64(8) }, backends.SeverityInfo, "cluster", "Azure SQL Managed Instance"},
		"mirrored":           {func(w *world) { w.mirror = sqlserver.RowOf("PRINCIPAL", "SYNCHRONIZED", "FULL") }, backends.SeverityInfo, "cluster", "loses nothing"},
		"mirrored later":     {func(w *world) { w.mirror = sqlserver.RowOf("PRINCIPAL", "SYNCHRONIZED", "OFF") }, backends.SeverityWarning, "cluster", "SAFETY FULL"},
		"synchronous group":  {func(w *world) { w.group("SYNCHRONOUS_COMMIT", "SYNCHRONIZED") }, backends.SeverityInfo, "cluster", "loses nothing"},
		"asynchronous group": {func(w *world) { w.group("ASYNCHRONOUS_COMMIT", "SYNCHRONIZING") }, backends.SeverityWarning, "cluster", "no commit waits"},
		"a replica is away":  {func(w *world) { w.group("SYNCHRONOUS_COMMIT", "NOT SYNCHRONIZING") }, backends.SeverityWarning, "cluster", "no synchronous replica is synchronized"},
		"a secondary of a group": {func(w *world) {
			w.group("", "")
			w.replicas = sqlserver.RowOf("b", "SYNCHRONOUS_COMMIT", "SYNCHRONIZED", int64(1), int64(0))
		}, backends.SeverityInfo, "cluster", "is a secondary"},
		"replicas are hidden": {func(w *world) {
			w.group("", "")
			w.refused = "dm_hadr_database_replica_states"
		}, backends.SeverityInfo, "cluster", "could not be checked"},
		"another clock": {func(w *world) { w.settings.Rows[0][7] = time.Now().UTC().Add(time.Minute) }, backends.SeverityWarning, "clock", "is ahead"},
		"a right is missing": {func(w *world) {
			w.rights = func(string) *sqlserver.Answer {
				return sqlserver.RowOf("[qsidecar].qsidecar_sequence", "UPDATE", int64(0))
			}
		}, backends.SeverityError, "rights", "UPDATE on [qsidecar].qsidecar_sequence"},
		"an index is missing":           {func(w *world) { w.indexes.Rows = w.indexes.Rows[1:] }, backends.SeverityError, "indexes", "qsidecar_ready"},
		"an index is disabled":          {func(w *world) { w.indexes.Rows[2][1] = int64(1) }, backends.SeverityError, "indexes", "qsidecar_delayed"},
		"row locks are off":             {func(w *world) { w.indexes.Rows[2][2] = int64(0) }, backends.SeverityError, "indexes", "ALLOW_ROW_LOCKS = ON"},
		"a sequence that was set back":  {func(w *world) { w.sequence = sqlserver.RowOf(int64(5000), int64(6000)) }, backends.SeverityError, "sequence", "sp_sequence_get_range"},
		"INSTEAD OF":                    {func(w *world) { w.triggers = sqlserver.RowOf("theirs", int64(1)) }, backends.SeverityError, "triggers", "INSTEAD OF"},
		"a trigger":                     {func(w *world) { w.triggers = sqlserver.RowOf("theirs", int64(0)) }, backends.SeverityInfo, "triggers", "theirs"},
		"a job that was not given back": {func(w *world) { w.overdue = sqlserver.RowOf("mail", "claimed", int64(3), int64(7)) }, backends.SeverityWarning, "maintenance", "the queue mail has 3 jobs"},
		"a bad plan": {func(w *world) {
			w.plan = planOf(strings.Replace(goodPick, `"Index Seek"`, `"Index Scan"`, 1), goodTake)
		}, backends.SeverityError, "plan", "Index Scan"},
		"no plan":             {func(w *world) { w.plan = "<ShowPlanXML/>" }, backends.SeverityInfo, "plan", "cannot be read"},
		"SHOWPLAN is refused": {func(w *world) { w.refused = "SET SHOWPLAN_XML ON" }, backends.SeverityInfo, "claim", "could not be checked"},
	} {
		w := sound()
		c.change(&w)
		s, _ := sqlserver.ScriptedStore(t, w.answer)
		found, err := diagnose.New(s).Examine(t.Context(), []backends.Policy{{Queue: "it's", MaxAttempts: 3}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		hit := false
		for _, f := range found {
			if f.Topic == c.topic && f.Severity == c.grade && strings.Contains(f.Text+" "+f.Fix, c.words) {
				hit = true
			} else if f.Severity > c.grade && f.Topic != c.topic {
				t.Errorf("%s: and also %+v", name, f)
			}
			if f.Severity != backends.SeverityInfo && f.Fix == "" {
				t.Errorf("%s: %+v lacks a fix", name, f)
			}
		}
		if !hit {
			t.Errorf("%s: no %s of %s with %q in %+v", name, c.grade, c.topic, c.words, found)
		}
	}
}

// TestExamineBeforeTheTables: in a schema that exists the login needs ALTER, and for a new one CREATE SCHEMA.
func TestExamineBeforeTheTables(t *testing.T) {
	t.Parallel()
	for hasSchema, want := range map[bool]string{true: "(N'[qsidecar]', 'SCHEMA', 'ALTER')", false: "(N'app', 'DATABASE', 'CREATE SCHEMA')"} {
		w, asked := sound(), ""
		w.rights = func(query string) *sqlserver.Answer {
			asked = query
			return sqlserver.RowOf("[qsidecar]", "ALTER", int64(0))
		}
		s, script := sqlserver.ScriptedStore(t, w.answer)
		script.WithoutTables(hasSchema)
		found, err := diagnose.New(s).Examine(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(asked, want) || strings.Contains(asked, "CREATE SCHEMA") == hasSchema {
			t.Errorf("it asked for %s", asked)
		}
		if !slices.ContainsFunc(found, func(f backends.Finding) bool {
			return f.Severity == backends.SeverityError && f.Topic == "rights" && strings.Contains(f.Text, "ALTER on [qsidecar]")
		}) {
			t.Errorf("%+v", found)
		}
	}
}

// TestExamineBabelfish: Babelfish adds a hash to the names of indexes.
func TestExamineBabelfish(t *testing.T) {
	t.Parallel()
	w := sound()
	for _, row := range w.indexes.Rows {
		row[0] = row[0].(string) + "qsidecar_jobs0123456789abcdef0123456789abcdef"
	}
	s, _ := sqlserver.ScriptedStore(t, w.answer)
	sqlserver.SetBabelfish(s)
	found, err := diagnose.New(s).Examine(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Topic == "indexes" {
			t.Errorf("%+v", f)
		}
	}
}
