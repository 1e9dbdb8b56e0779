package adopted_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// timeForm is how a table writes times in columns of other types.
type timeForm struct {
	column string // its type
	unit   int64
	at     string // the SQL of a time that many seconds after now
	on     string // the only product that has it; empty: all
}

// epoch is the present second on a product.
func epoch(product string) string {
	switch product {
	case "PostgreSQL":
		return "floor(extract(epoch FROM clock_timestamp()))::bigint"
	case "SQLite":
		return "unixepoch()"
	}
	return "unix_timestamp()"
}

var timeForms = []timeForm{
	{"int", mapping.Seconds, "NOW + %d", ""},
	{"bigint", mapping.Seconds, "NOW + %d", ""},
	{"bigint", mapping.Milliseconds, "(NOW + %d) * 1000", ""},
	{"decimal(18,0)", mapping.Milliseconds, "(NOW + %d) * 1000", ""},
	{"int unsigned", mapping.Seconds, "NOW + %d", "MySQL"},
	{"text", 0, "strftime('%%Y-%%m-%%d %%H:%%M:%%S', 'now', '%d seconds')", "SQLite"},
	{"varchar(40)", 0, "strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now', '%d seconds')", "SQLite"},
	{"text", 0, "strftime('%%Y-%%m-%%dT%%H:%%M:%%f', 'now', '%d seconds', '+2 hours') || '000+02:00'", "SQLite"},
}

// TestTimeForms: every role of a time works with whole numbers since 1970, and on SQLite with texts.
func TestTimeForms(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		for i, form := range timeForms {
			if form.on == product || form.on == "" || form.on == "MySQL" && product != "SQLite" && product != "PostgreSQL" {
				t.Run(fmt.Sprint(i, form.column), func(t *testing.T) {
					timesAre(t, form, product, start)
				})
			}
		}
	})
}

func timesAre(t *testing.T, form timeForm, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
	at := func(seconds int) string {
		return strings.ReplaceAll(fmt.Sprintf(form.at, seconds), "NOW", epoch(product))
	}
	m := mapping.Table{
		Name: "timed", MaxAttempts: 5, StuckAfter: time.Hour, Unit: form.unit, RetainDone: time.Hour, RetainDead: time.Hour,
		Columns: map[mapping.Role][]string{
			mapping.ID: {"id"}, mapping.State: {"state"}, mapping.RunAt: {"run_at"}, mapping.CreatedAt: {"made_at"}, mapping.ClaimedAt: {"claimed_at"},
			mapping.FinishedAt: {"ended_at"}, mapping.FailedAt: {"failed_at"},
		},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "N"}, backends.StateClaimed: {Text: "A"}, backends.StateDone: {Text: "C"}},
	}
	if strings.Contains(form.at, "T%%H") { // new jobs have a blank for the T
		m.Order = []mapping.Ordering{{Column: "id"}}
	}
	ddl := fmt.Sprintf("CREATE TABLE timed (id %s, state char(1) NOT NULL DEFAULT 'N', run_at %[2]s NOT NULL, made_at %[2]s, claimed_at %[2]s, ended_at %[2]s, failed_at %[2]s);", serial(product), form.column)
	for _, row := range [][]string{
		{"'N'", at(-90), at(-100), "NULL", "NULL", "NULL"},
		{"'N'", at(9000), at(-95), "NULL", "NULL", "NULL"},
		{"'A'", at(-90), at(-90), at(-3700), "NULL", "NULL"},
		{"'A'", at(-90), at(-90), at(-3500), "NULL", "NULL"},
		{"'C'", at(-90), at(-90), "NULL", at(-3700), "NULL"},
		{"'C'", at(-90), at(-90), "NULL", at(-3500), "NULL"},
		{"'N'", at(-90), at(-90), "NULL", "NULL", at(-3700)},
		{"'N'", at(-90), at(-90), "NULL", "NULL", at(-3500)},
	} {
		ddl += "INSERT INTO timed (state, run_at, made_at, claimed_at, ended_at, failed_at) VALUES (" + strings.Join(row, ", ") + ");"
	}
	k := start(ddl, map[string]mapping.Table{"q": m})
	job := k.one("q")
	if ago := time.Since(job.EnqueuedAt).Round(time.Hour); job.ID != "1" || ago != 0 || len(k.claim("q", 9)) > 0 {
		t.Fatalf("%+v", job)
	}
	if r := k.maintain(backends.Maintenance{Waiting: []string{"q"}, Prune: true}); !slices.Equal(r.MadeReady, []string{"q"}) || r.Pruned != 2 {
		t.Errorf("%+v", r)
	}
	k.wantRows("SELECT concat_ws('|', id, state) FROM timed ORDER BY id", "1|A", "2|N", "3|N", "4|A", "6|C", "8|N")
	k.write(backends.Nack{Leases: leases(job)}, 0) // for an hour
	k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}, {Queue: "q", Delay: time.Hour}, {Queue: "q", RunAt: time.Now().Add(2 * time.Hour)}}}, 0)
	var got []string
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled} {
		views, err := k.Peek(t.Context(), backends.Peek{Queue: "q", State: state, Max: 9})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range views {
			got = append(got, fmt.Sprintf("%s %s %v %v", v.ID, v.State, time.Until(v.RunAt).Round(30*time.Minute), time.Until(v.EnqueuedAt).Round(10*time.Minute)))
		}
	}
	slices.Sort(got)
	want := []string{"1 scheduled 1h0m0s 0s", "10 scheduled 1h0m0s 0s", "11 scheduled 2h0m0s 0s", "2 scheduled 2h30m0s 0s", "3 ready 0s 0s", "9 ready 0s 0s"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if st, err := k.Stats(t.Context(), "q"); err != nil || st[0].Ready != 2 || st[0].Scheduled != 4 || st[0].Claimed != 1 || st[0].Dead != 1 || st[0].OldestClaimed.Round(30*time.Minute) != time.Hour {
		t.Errorf("%+v, %v", st, err)
	}
	k.sql("UPDATE timed SET run_at = " + at(-1) + " WHERE id < 3")
	jobs := k.claim("q", 9)
	if len(jobs) != 4 {
		t.Fatalf("%+v", jobs)
	}
	k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
	k.write(backends.Nack{Leases: leases(jobs[1]), Dead: true}, 0)
	k.write(backends.Release{Leases: leases(jobs[2:]...), Uncounted: true}, 0)
	k.write(backends.Ack{Leases: leases(jobs[3])}, 1)
	k.wantRows("SELECT concat_ws('|', id, state, CASE WHEN ended_at IS NULL THEN '-' ELSE 'ended' END, CASE WHEN failed_at IS NULL THEN '-' ELSE 'failed' END) FROM timed WHERE id < 4 ORDER BY id",
		"1|C|ended|-", "2|N|-|failed", "3|N|-|-")
	if form.unit > 0 {
		k.wantRows(fmt.Sprintf("SELECT concat_ws('', count(*)) FROM timed WHERE coalesce(ended_at, failed_at) BETWEEN %[1]s - %[2]d AND %[1]s + %[2]d AND id < 3", at(0), 600*1000/form.unit), "2")
	}
	k.command(backends.Command{Kind: backends.Retry, IDs: []string{"2"}}, 1)
	k.wantRows("SELECT concat_ws('|', id, state, failed_at) FROM timed WHERE id = 2", "2|N")
}

// TestTimesThatDoNotFit: the error names the types that do.
func TestTimesThatDoNotFit(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		k := start("CREATE TABLE odd (id int PRIMARY KEY, small smallint, i int, b bigint, v varchar(20), f double precision, bin "+map[bool]string{true: "bytea", false: "blob"}[product == "PostgreSQL"]+")", nil)
		for _, c := range []struct {
			column string
			unit   int64
			want   string // in the error; empty: it fits
		}{
			{"i", 0, ""},
			{"i", mapping.Seconds, ""},
			{"i", mapping.Milliseconds, "too little for milliseconds since 1970: set times: seconds"},
			{"b", 0, "which doesn't show whether it counts seconds or milliseconds since 1970: set times: seconds, or times: milliseconds"},
			{"b", mapping.Milliseconds, ""},
			{"small", 0, "too little for seconds since 1970: name another column"},
			{"v", 0, "which can't hold times: name a column of a type that can: a date with a time (timestamp, datetime), whole numbers"},
			{"f", mapping.Seconds, "which can't hold times: name a column of a type that can: "},
			{"bin", 0, "which can't hold times: name a column of a type that can: "},
		} {
			if product == "SQLite" {
				switch c.column { // types of SQLite have no limits
				case "i", "small":
					c.want = map[bool]string{true: "", false: "set times: seconds, or times: milliseconds"}[c.unit > 0]
				case "v":
					c.want = ""
				}
			}
			m := mapping.Table{
				Name: "odd", Unit: c.unit, OnAck: mapping.Delete,
				Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.ClaimedAt: {c.column}},
			}
			_, wrong, err := adopted.Check(t.Context(), k.Engine, map[string]mapping.Table{"q": m})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(wrong); c.want == "" && len(wrong) > 0 || c.want != "" && (len(wrong) != 1 || !strings.Contains(got, c.want)) {
				t.Errorf("%s, %d: %s\nwant %q", c.column, c.unit, got, c.want)
			}
		}
	})
}
