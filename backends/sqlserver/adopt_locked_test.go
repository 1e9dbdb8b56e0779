package sqlserver

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestAdoptedLockedRowIsSetAside shows that of two acks the one whose row another program has
// locked is set aside. The question whether that row exists does not wait for its lock, as it
// would on a server without row versions.
func TestAdoptedLockedRowIsSetAside(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()}, someMessages)
	free, taken := k.one("orders"), k.one("orders")
	k.engine.seen = map[string]string{}
	k.sql("BEGIN")
	k.sql(`SELECT 1 FROM dbo."MsgQueue" WHERE "MsgId" = ` + taken.ID + ` FOR UPDATE`)
	r, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(free)}, backends.Ack{Leases: leasesOf(taken)}}})
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

// TestAdoptedBlanksAtTheEnd shows that an id with a blank at its end names the job whose id has none: SQL Server
// considers texts equal that differ in blanks at their ends.
func TestAdoptedBlanksAtTheEnd(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()}, someMessages)
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

// TestAdoptedFilteredIndex shows that a claim names a filtered index of the ready rows, whose
// condition is as the server writes it. It does not seek in it if the
// filter is the whole condition.
func TestAdoptedFilteredIndex(t *testing.T) {
	t.Parallel()
	k := adopting(t, kindTables())
	kinds := kindTables()["kinds"]
	kinds.Where["Name"] = mapping.Value{Text: "x"}
	indexes := k.e.tables["Kinds"][2]
	for _, column := range []string{"Urgency", "Made", "Id"} {
		indexes.Rows = append(indexes.Rows, []driver.Value{"open", int64(0), int64(1), "([Busy]=(0) AND [Name]=N'x' AND [Wanted] IS NULL)", column, flag01(column == "Urgency"), int64(0), int64(0)})
	}
	s, err := adopted.New(t.Context(), k.engine, map[string]mapping.Table{"kinds": kinds})
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
