package sqlserver

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// TestAdoptedLockedRowIsSetAside: of two acks the one whose row another program has locked
// is set aside, and whether that row is there is asked without waiting for its lock, as a
// server without row versions otherwise does.
func TestAdoptedLockedRowIsSetAside(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]adopted.Table{"orders": messages()}, someMessages)
	free, taken := k.one("orders"), k.one("orders")
	k.engine.seen = map[string]string{}
	k.sql("BEGIN")
	k.sql(`SELECT 1 FROM dbo."MsgQueue" WHERE "MsgId" = ` + taken.ID + ` FOR UPDATE`)
	r, err := k.Commit(t.Context(), backends.Batch{Writes: []backends.Write{backends.Ack{Leases: leasesOf(free)}, backends.Ack{Leases: leasesOf(taken)}}})
	if err != nil {
		t.Fatal(err)
	}
	var locked *backends.LockedError
	if r.Writes[0].Err != nil || !errors.As(r.Writes[1].Err, &locked) {
		t.Errorf("%+v", r)
	}
	for text := range k.engine.seen {
		if strings.HasPrefix(text, "SELECT ") && strings.Contains(text, "FROM [dbo].[MsgQueue] WHERE ") {
			t.Errorf("the statement waits for the transaction that locked the row: %s", text)
		}
	}
}

// TestAdoptedBlanksAtTheEnd: SQL Server takes texts for the same that differ in blanks at
// their ends. What is remembered under an id with a blank is of the job without.
func TestAdoptedBlanksAtTheEnd(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]adopted.Table{"orders": messages()}, someMessages)
	job := k.one("orders")
	k.write(backends.Nack{Leases: leasesOf(job), Error: "no", HasDelay: true}, 0)
	k.engine.alter = func(st *backends.Statement) {
		row := st.Row
		if !strings.Contains(st.Text, ".qsidecar_leases l WITH (FORCESEEK, UPDLOCK, READPAST") {
			return
		}
		st.Row = func(cells [][]byte) error {
			const item = 17 // of the columns of a lease
			cells[item] = append(cells[item], ' ')
			return row(cells)
		}
	}
	if again := k.one("orders"); again.ID != job.ID || again.Attempt != 2 || again.LastError != "no" {
		t.Errorf("%+v", again)
	}
}

// TestAdoptedFilteredIndex: a claim names an index of the waiting rows alone, as the server
// writes such a condition, and seeks nothing in it if the condition says all.
func TestAdoptedFilteredIndex(t *testing.T) {
	t.Parallel()
	k := adopting(t, kindTables())
	kinds := kindTables()["kinds"]
	kinds.Where["Name"] = adopted.Value{Text: "x"}
	indexes := k.e.tables["Kinds"][2]
	for _, column := range []string{"Urgency", "Made", "Id"} {
		indexes.Rows = append(indexes.Rows, []driver.Value{"open", int64(0), "([Busy]=(0) AND [Name]=N'x' AND [Wanted] IS NULL)", column, flag01(column == "Urgency"), int64(0)})
	}
	s, err := adopted.New(t.Context(), k.engine, map[string]adopted.Table{"kinds": kinds})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range s.Advice() {
		if f.Topic == "index" {
			t.Errorf("%+v", f)
		}
	}
	k.Store = s
	k.claim("kinds", 1, 0)
	named := false
	for text := range k.engine.seen {
		named = named || strings.Contains(text, "FROM [dbo].[Kinds] WITH (INDEX ([open]), UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)")
	}
	if !named {
		t.Error("no claim names the index")
	}
}
