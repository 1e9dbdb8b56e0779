package sqlserver

import (
	"context"
	"database/sql/driver"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/backendtest"
)

// tablesSQL is the DDL of tables that other programs own.
func tablesSQL(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/adopted.sql")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	createTable = regexp.MustCompile(`(?s)CREATE TABLE \[dbo\]\.\[([^\]]+)\] \(\n(.*?)\n  \);((?:\nCREATE INDEX [^\n]*)*)`)
	columnLine  = regexp.MustCompile(`^ +\[(\w+)\] (\w+)(?:\((\w+)(?:,(\d+))?\))?( COLLATE (\w+))?( IDENTITY\(1,1\))? (NOT NULL|NULL)( DEFAULT .*)?,?$`)
	keyLine     = regexp.MustCompile(`CONSTRAINT \[([^\]]+)\] PRIMARY KEY \((.*)\)$`)
	indexLine   = regexp.MustCompile(`CREATE INDEX \[(\w+)\] ON \S+ \((.*)\);`)
)

// catalogue is what the server would return about the tables: by name, the answers to
// describe.sql.
func catalogue(t testing.TB, ddl string) map[string][]*answer {
	t.Helper()
	all := map[string][]*answer{}
	for _, m := range createTable.FindAllStringSubmatch(ddl, -1) {
		sets := []*answer{rowOf("dbo", m[1], "U", int64(0), int64(1), "app", int64(0), "-"), {Columns: make([]string, 14)}, {Columns: make([]string, 8)}, {Columns: make([]string, 2)},
			{make([]string, 2), [][]driver.Value{{"INSERT", int64(1)}, {"DELETE", int64(1)}}}, {Columns: make([]string, 1)}, {Columns: make([]string, 2)}, {Columns: make([]string, 9)}}
		nullable := map[string]bool{}
		index := func(name, columns string, unique int64) {
			for part := range strings.SplitSeq(columns, ", ") {
				column := strings.Trim(strings.TrimSuffix(part, " DESC"), "[]")
				sets[2].Rows = append(sets[2].Rows, []driver.Value{name, unique, int64(0), "", column, flag01(strings.HasSuffix(part, " DESC")), flag01(nullable[column]), unique})
			}
		}
		for line := range strings.SplitSeq(m[2], "\n") {
			if key := keyLine.FindStringSubmatch(line); key != nil {
				index(key[1], key[2], 1)
				continue
			}
			c := columnLine.FindStringSubmatch(line)
			if c == nil {
				t.Fatalf("%s: a line of the DDL is not understood: %q", m[1], line)
			}
			nullable[c[1]] = c[8] == "NULL"
			sets[1].Rows = append(sets[1].Rows, catalogued(c, nullable[c[1]]))
		}
		for _, x := range indexLine.FindAllStringSubmatch(m[3], -1) {
			index(x[1], x[2], 0)
		}
		all[m[1]] = sets
	}
	return all
}

// catalogued is a column's row in sys.columns, from the parts of its line in the DDL.
func catalogued(c []string, nullable bool) []driver.Value {
	size, err := strconv.ParseInt(c[3], 10, 64)
	bytes, digits, scale := size, int64(0), size
	switch {
	case c[3] == "max" || err != nil:
		bytes = -1
	case c[2] == "nchar" || c[2] == "nvarchar":
		bytes *= 2
	case c[2] == "decimal":
		digits = size
		scale, _ = strconv.ParseInt(c[4], 10, 64) // the pattern has digits alone
	}
	return []driver.Value{c[1], c[2], bytes, digits, scale, c[6], flag01(nullable), flag01(c[7] != ""), flag01(c[9] != ""), int64(0), int64(1), int64(1), strings.TrimPrefix(c[9], " DEFAULT "), ""}
}

func flag01(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// adopter is a Store with adopted tables, on any server.
type adopter struct {
	*testing.T
	*adopted.Store
	slots atomic.Uint64
}

// adoption is a Store with adopted tables on the emulator.
type adoption struct {
	*adopter
	e      *emulator
	engine *recorder
	beside *pgx.Conn // the owner's
}

const me backends.Identity = 1 << 63

// adopting creates the tables on the emulator, and adopts some of them.
func adopting(t *testing.T, tables map[string]mapping.Table, rows ...string) *adoption {
	t.Helper()
	ddl := tablesSQL(t)
	url := standIn(t)
	k := &adoption{adopter: &adopter{T: t}, e: &emulator{url: url, schema: defaultSchema, translator: places.translator, conns: map[*emulated]struct{}{}, tables: catalogue(t, ddl)}}
	var err error
	if k.beside, err = pgx.Connect(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.beside.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	k.sql("CREATE SCHEMA dbo")
	steps, err := places.translator.steps(ddl, defaultSchema)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		k.sql(s.Query)
	}
	o := Options{URL: "sqlserver://app@stand.in?database=qsidecar", driver: func(*mssql.Connector) driver.Connector { return k.e }}
	store := open(t, o)
	tools := NewEngine(store)
	k.engine = &recorder{Store: store, Advisor: tools, Examiner: tools, seen: map[string]string{}}
	k.sql(`CREATE OR REPLACE FUNCTION qsidecar.qsidecar_now() RETURNS timestamp(6) LANGUAGE sql VOLATILE AS $$SELECT clock_timestamp() AT TIME ZONE 'UTC'$$`)
	for _, row := range rows {
		k.sql(row)
	}
	if k.Store, err = adopted.New(t.Context(), k.engine, tables); err != nil {
		t.Fatal(err)
	}
	k.beat(me)
	return k
}

func (a *adopter) beat(sidecar backends.Identity) {
	a.Helper()
	if _, err := a.Heartbeat(a.Context(), backends.Heartbeat{Sidecar: sidecar, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
		a.Fatal(err)
	}
}

// sql runs the owner's own statements, written for PostgreSQL.
func (a *adoption) sql(text string) {
	a.Helper()
	if _, err := a.beside.Exec(a.Context(), text); err != nil {
		a.Fatalf("%s: %v", text, err)
	}
}

// shows compares a query's rows, each one text, with the expected ones.
func (a *adoption) shows(query string, want ...string) {
	a.Helper()
	rows, err := a.beside.Query(a.Context(), query)
	if err != nil {
		a.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		a.Fatalf("%s: %v", query, err)
	}
	if d := cmp.Diff(want, got); d != "" && len(want)+len(got) > 0 {
		a.Errorf("%s (-want +got):\n%s", query, d)
	}
}

func (a *adopter) slot(lease time.Duration) backends.Slot {
	return backends.Slot{Token: backends.Token{Sidecar: me, Number: a.slots.Add(1)}, Lease: lease, Worker: "worker"}
}

func (a *adopter) claim(queue string, n int, lease time.Duration) []backends.Job {
	a.Helper()
	c := backends.Claim{Queues: []backends.Policy{{Queue: queue, MaxAttempts: 3, Backoff: time.Hour, BackoffMax: time.Hour}}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
	for range n {
		c.Slots = append(c.Slots, a.slot(lease))
	}
	return a.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0].Jobs
}

func (a *adopter) one(queue string) backends.Job {
	a.Helper()
	jobs := a.claim(queue, 1, 0)
	if len(jobs) != 1 {
		a.Fatalf("%d jobs, want 1", len(jobs))
	}
	return jobs[0]
}

func (a *adopter) commit(b backends.CommitContent) backends.Results {
	a.Helper()
	r, err := a.Commit(a.Context(), b)
	if err != nil {
		a.Fatal(err)
	}
	backendtest.CheckFailedCounts(a, b, r)
	return r
}

// write makes one write and checks how many leases were lost.
func (a *adopter) write(w backends.Write, lost int) backends.WriteResult {
	a.Helper()
	r := a.commit(backends.CommitContent{Writes: []backends.Write{w}}).Writes[0]
	if len(r.Lost) != lost {
		a.Errorf("%T: %d leases were lost, want %d", w, len(r.Lost), lost)
	}
	return r
}

func (a *adopter) sweep(s backends.Maintenance) backends.MaintenanceResult {
	a.Helper()
	s.Limit = 100
	r, err := a.Maintain(a.Context(), s)
	if err != nil {
		a.Fatal(err)
	}
	backendtest.CheckReapedCounts(a, r)
	return r
}

func (a *adopter) command(c backends.Command, want int64) {
	a.Helper()
	if n, _, err := a.Command(a.Context(), c); err != nil || n != want {
		a.Errorf("command %d: %d, %v; want %d", c.Kind, n, err, want)
	}
}

func (a *adopter) peek(p backends.Peek) []backends.View {
	a.Helper()
	views, err := a.Peek(a.Context(), p)
	if err != nil {
		a.Error(err)
	}
	return views
}

func leasesOf(jobs ...backends.Job) (l []backends.Lease) {
	for i := range jobs {
		l = append(l, jobs[i].Lease())
	}
	return l
}

// recorder is an engine that records each statement of package adopted as it is sent.
type recorder struct {
	*Store
	backends.Advisor
	backends.Examiner
	mu   sync.Mutex
	seen map[string]string // by the statement's text, its golden form

	alter func(st *backends.Statement) // changes a statement before it is sent; nil: none
}

func (r *recorder) note(statements []*backends.Statement) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range statements {
		q, err := prepare(1, st)
		if err != nil {
			return err
		}
		r.seen[q.text] = golden(q.call)
	}
	return nil
}

func (r *recorder) Query(ctx context.Context, statements ...*backends.Statement) error {
	if err := r.note(statements); err != nil {
		return err
	}
	return r.Store.Query(ctx, statements...)
}

func (r *recorder) CommitWith(ctx context.Context, b backends.CommitContent, also backends.TxHooks) (backends.Results, error) {
	if before := also.Before; before != nil {
		also.Before = func(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error {
			return before(ctx, noted{sql, r}, b)
		}
	}
	if after := also.After; after != nil {
		also.After = func(ctx context.Context, sql backends.SQL, res *backends.Results) error {
			return after(ctx, noted{sql, r}, res)
		}
	}
	return r.Store.CommitWith(ctx, b, also)
}

type noted struct {
	backends.SQL
	r *recorder
}

func (n noted) Do(ctx context.Context, statements ...*backends.Statement) error {
	if err := n.r.note(statements); err != nil {
		return err
	}
	for _, st := range statements {
		if n.r.alter != nil {
			n.r.alter(st)
		}
	}
	return n.SQL.Do(ctx, statements...)
}

// golden is a statement as it is sent, without the beginning and the end of its batch.
func golden(c call) string {
	var b, d strings.Builder
	for _, p := range c.params {
		if d.Len() > 0 {
			d.WriteString(", ")
		}
		d.WriteString("@" + p.name + " " + p.kind)
	}
	b.WriteString("-- parameters: " + d.String() + "\n-- result sets: " + strconv.Itoa(c.sets) + "\n" + c.text + "\n")
	return b.String()
}

// isTSQL checks the statements of package adopted as TestTSQL checks the sidecar's own: two
// grammars of T-SQL parse them, names are looked up, types of comparisons are checked, and the
// rules of testdata/tsql/adopted.py are applied. There are no golden files of them, because
// package adopted writes their texts.
func (a *adoption) isTSQL(name string) {
	a.Helper()
	if testing.Short() {
		return // make check runs this
	}
	var all []string
	for _, text := range a.engine.seen {
		all = append(all, text)
	}
	slices.Sort(all)
	file := filepath.Join(a.TempDir(), name+".sql")
	if err := os.WriteFile(file, []byte(strings.Join(all, "\n")), 0o644); err != nil {
		a.Fatal(err)
	}
	checkTSQL(a.T, "adopted", file)
}
