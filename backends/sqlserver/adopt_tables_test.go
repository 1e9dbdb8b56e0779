package sqlserver

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestAdoptedKeys shows a key of two columns, a token instead of a state, attempts in a column, a payload of several
// columns, and an archive.
func TestAdoptedKeys(t *testing.T) {
	t.Parallel()
	m := mapping.Table{
		Name: "Order Lines", Schema: "dbo", MaxAttempts: 3, OnAck: mapping.Archive, Archive: "Order Lines Done",
		Columns: map[mapping.Role][]string{
			mapping.ID: {"OrderNo", "Line"}, mapping.Payload: {"What", "HowMany"}, mapping.Attempts: {"Tries"}, mapping.Priority: {"Urgency"},
		},
		Token: &mapping.Token{Column: "pid", From: 900, To: 909},
	}
	k := adopting(t, map[string]mapping.Table{"lines": m}, `INSERT INTO dbo."Order Lines" ("OrderNo", "Line", "Urgency", "What", "HowMany", pid) VALUES
		('a,b', 1, 1, 'x', 1.5, NULL), ('a\b', 2, 2, NULL, NULL, NULL), ('c', 1, 0, 'it''s', 7, NULL), ('taken', 1, 9, 'y', 1, 17)`)
	jobs := k.claim("lines", 5, 0)
	if len(jobs) != 3 || jobs[0].ID != `a\\b,2` || string(jobs[0].Payload) != `{"HowMany":null,"What":null}` ||
		jobs[1].ID != `a\,b,1` || string(jobs[1].Payload) != `{"HowMany":"1.50","What":"x"}` || jobs[1].Priority != 1 || jobs[2].ID != "c,1" {
		t.Fatalf("%+v", jobs)
	}
	k.shows(`SELECT "OrderNo" || (pid BETWEEN 900 AND 909)::text FROM dbo."Order Lines" WHERE pid IS NOT NULL ORDER BY 1`, "a,btrue", `a\btrue`, "ctrue", "takenfalse")
	k.write(backends.Ack{Leases: leasesOf(jobs[1])}, 0)
	k.shows(`SELECT concat_ws('|', "OrderNo", "Line", "What") FROM dbo."Order Lines Done"`, "a,b|1|x")
	k.write(backends.Nack{Leases: leasesOf(jobs[0]), Error: "no", HasDelay: true}, 0)
	k.sql(`UPDATE dbo."Order Lines" SET pid = 17 WHERE "OrderNo" = 'c'`) // its own consumer took it
	k.write(backends.Ack{Leases: leasesOf(jobs[2])}, 1)
	k.shows(`SELECT concat_ws('|', "OrderNo", "Tries", pid) FROM dbo."Order Lines" ORDER BY "OrderNo"`, `a\b|1`, "c|0|17", "taken|0|17")
	again := k.one("lines")
	if again.Attempt != 2 {
		t.Errorf("%+v", again)
	}
	k.write(backends.Nack{Leases: leasesOf(again), Dead: true}, 0)
	k.command(backends.Command{Kind: backends.Retry, Queue: "lines", IDs: []string{`a\\b,2`, "no such,thing", "none"}}, 1)
	timed := k.claim("lines", 1, time.Hour)
	k.sql("UPDATE qsidecar.qsidecar_leases SET due_at = 1 WHERE due_at IS NOT NULL")
	if r := k.sweep(backends.Maintenance{Waiting: []string{"lines"}, Prune: true}); r.Reaped[backends.CauseLeaseEnded] != 1 {
		t.Errorf("%+v", r)
	}
	k.write(backends.Ack{Leases: leasesOf(timed...)}, 1)
	var u *backends.UnsupportedError
	if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "lines"}}}}}); !errors.As(err, &u) {
		t.Errorf("nothing gives its key: %v", err)
	}
	k.isTSQL("order_lines")
}

// kindTables are two queues in a table with columns of all types of the server.
func kindTables() map[string]mapping.Table {
	m := mapping.Table{
		Name: "Kinds", OnAck: mapping.Delete,
		Columns: map[mapping.Role][]string{
			mapping.ID: {"Id"}, mapping.Payload: {"Body"}, mapping.State: {"Busy"}, mapping.RunAt: {"RunAt"}, mapping.CreatedAt: {"Made"}, mapping.ClaimedAt: {"Taken"},
			mapping.FinishedAt: {"Ended"}, mapping.Worker: {"Who"}, mapping.Error: {"Fault"}, mapping.Priority: {"Urgency"},
			mapping.Headers: {"Name", "Price", "Weight", "Note", "Doc"},
		},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "false"}, backends.StateClaimed: {Text: "true"}, backends.StateDead: {Null: true}},
		Where:  map[string]mapping.Value{"Wanted": {Null: true}},
	}
	kept := mapping.Table{
		Name:    "Kinds",
		Columns: map[mapping.Role][]string{mapping.ID: {"Id"}, mapping.Payload: {"Name", "Body", "Note"}, mapping.State: {"Busy"}, mapping.Result: {"Answer"}, mapping.Worker: {"Who"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Null: true}, backends.StateDone: {Text: "1"}},
		Where:   map[string]mapping.Value{"Wanted": {Text: "2026-02-03"}, "Price": {Text: "1.25"}},
	}
	return map[string]mapping.Table{"kinds": m, "kept": kept}
}

// TestAdoptedKinds shows that columns of all types of the server keep their values.
func TestAdoptedKinds(t *testing.T) {
	t.Parallel()
	k := adopting(t, kindTables())
	later := k.allKinds()
	k.shows(`SELECT concat_ws('|', coalesce("Busy"::text, 'dead'), length("Fault"), CASE WHEN "Ended" IS NULL THEN NULL ELSE 'e' END, CASE WHEN "RunAt" > now() + interval '59 minutes' THEN 'later' END)
		FROM dbo."Kinds" WHERE "Wanted" IS NULL ORDER BY 1`, "0|4|later", "0|later", "dead|30|e")
	k.shows(`SELECT concat_ws('|', "Busy", "Answer", "Price") FROM dbo."Kinds" WHERE "Wanted" IS NOT NULL`, "1|{}|1.2500")
	k.command(backends.Command{Kind: backends.Retry, Queue: "kinds", All: true}, 1)
	k.write(backends.Ack{Leases: leasesOf(k.one("kinds"))}, 0)
	k.command(backends.Command{Kind: backends.Delete, Queue: "kinds", IDs: []string{strings.ToLower(later), "no uuid"}}, 1)
	k.isTSQL("kinds")
}

// allKinds stores values of all kinds, and reads them back. It returns the id of a scheduled
// job.
func (a *adopter) allKinds() (later string) {
	a.Helper()
	within := withinNow()
	headers := map[string]string{"Name": "Zoë", "Price": "12.5000", "Note": "a note", "Doc": "<a>b</a>"}
	r := a.write(backends.Enqueue{Jobs: []backends.NewJob{
		{Queue: "kinds", Payload: []byte{0, 0xff, 'x'}, Headers: headers, Priority: 5},
		{Queue: "kinds", Payload: []byte("later"), Delay: time.Hour, Priority: 7},
		{Queue: "kinds", RunAt: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), Headers: map[string]string{"Weight": "0.5"}},
		{Queue: "kept", Payload: []byte(`{"Name": "n", "Body": "AP8=", "Note": null}`)},
	}}, 0)
	jobs := a.claim("kinds", 5, 0)
	if len(jobs) != 2 || jobs[0].ID != r.Stored[0].ID || string(jobs[0].Payload) != "\x00\xffx" || jobs[0].Priority != 5 || fmt.Sprint(jobs[0].Headers) != fmt.Sprint(headers) ||
		!within(jobs[0].EnqueuedAt, 0) || jobs[1].ID != r.Stored[2].ID {
		a.Fatalf("%+v, of %+v", jobs, r.Stored)
	}
	if w, err := strconv.ParseFloat(jobs[1].Headers["Weight"], 64); err != nil || w != 0.5 {
		a.Errorf("the weight is %q", jobs[1].Headers["Weight"])
	}
	if v := a.peek(backends.Peek{Queue: "kinds", State: backends.StateScheduled, Max: 5}); len(v) != 1 || v[0].ID != r.Stored[1].ID || !within(v[0].RunAt, time.Hour) {
		a.Errorf("%+v", v)
	}
	if v := a.peek(backends.Peek{Queue: "kinds", State: backends.StateClaimed, Max: 5, MaxBytes: 1 << 20}); len(v) != 2 || v[0].Worker != "worker" || !within(v[0].ClaimedAt, 0) {
		a.Errorf("%+v", v)
	}
	a.write(backends.Nack{Leases: leasesOf(jobs[0]), Error: "почему нет " + strings.Repeat("ы", 40), Dead: true}, 0)
	a.write(backends.Nack{Leases: leasesOf(jobs[1]), Error: "wait"}, 0)
	one := a.one("kept")
	if one.ID != r.Stored[3].ID || string(one.Payload) != `{"Body":"AP8=","Name":"n","Note":null}` {
		a.Errorf("%+v", one)
	}
	if _, err := a.Commit(a.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(one), Result: []byte("почему")}}}); !backends.IsRefused(err) {
		a.Errorf("letters that the column's code page lacks: %v", err)
	}
	a.write(backends.Ack{Leases: leasesOf(one), Result: []byte("{}")}, 0)
	return r.Stored[1].ID
}
