package adopted_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestKeys takes jobs with keys of each type through claims, settles, failures, commands, views and
// maintenance.
func TestKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ddl  string // the key's columns
		id   []string
		rows string // three of them
		want []string
	}{
		"number":  {"n bigint PRIMARY KEY", []string{"n"}, "(-5), (0), (9223372036854775807)", []string{"-5", "0", "9223372036854775807"}},
		"numeric": {"n numeric(30, 2) PRIMARY KEY", []string{"n"}, "(-1.5), (2), (123456789012345678901234567.89)", []string{"-1.50", "2.00", "123456789012345678901234567.89"}},
		"uuid":    {"u uuid PRIMARY KEY", []string{"u"}, "('00000000-0000-0000-0000-00000000000A'), ('10000000-0000-0000-0000-000000000000'), ('20000000-0000-0000-0000-000000000000')", []string{"00000000-0000-0000-0000-00000000000a", "10000000-0000-0000-0000-000000000000", "20000000-0000-0000-0000-000000000000"}},
		"text":    {`w text COLLATE "C" PRIMARY KEY`, []string{"w"}, `('a,b''"'), ('b\,\\'), ('ü ')`, []string{`a,b'"`, `b\,\\`, "ü "}},
		"two": {`tenant int, w text COLLATE "C", PRIMARY KEY (w, tenant)`, []string{"tenant", "w"}, `(1, 'a,b'), (1, 'a\,b'), (2, 'a,b')`,
			[]string{`1,a\,b`, `1,a\\\,b`, `2,a\,b`}},
		"mixed": {`d date, u uuid, w varchar(20), ok bool, at timestamptz, n smallint, PRIMARY KEY (d, u, w, ok, at, n)`, []string{"d", "u", "w", "ok", "at", "n"},
			`('2026-01-02', '00000000-0000-0000-0000-000000000000', '', true, '2026-01-01 00:00:00.5+00', 1), ('2026-01-02', '00000000-0000-0000-0000-000000000000', ',', false, '2026-01-01 00:00+00', 1),
				('2027-01-02', '00000000-0000-0000-0000-000000000000', '\', false, '2026-01-01 00:00+00', 1)`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := mapping.Table{Name: "q", Columns: map[mapping.Role][]string{mapping.ID: c.id, mapping.State: {"state"}, mapping.Payload: {"payload"}, mapping.ClaimedAt: {"since"}}, MaxAttempts: 3,
				States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}, backends.StateDead: {Text: "3"}},
				Order:  []mapping.Ordering{{Column: "seq"}}, StuckAfter: time.Hour}
			k := newKit(t, `CREATE TABLE q (`+c.ddl+`, state int DEFAULT 0, payload text, since timestamptz, seq serial);
				INSERT INTO q (`+strings.Join(c.id, ", ")+`) VALUES `+c.rows+`; UPDATE q SET payload = 'p' || seq`, map[string]mapping.Table{"q": m})
			k.everyPath(c.want)
		})
	}
}

func (k *kit) everyPath(want []string) {
	jobs := k.claim("q", 5)
	if len(jobs) != 3 {
		k.Fatalf("%+v", jobs)
	}
	var ids []string
	for i, j := range jobs {
		ids = append(ids, j.ID)
		if string(j.Payload) != fmt.Sprintf("p%d", i+1) || want != nil && j.ID != want[i] {
			k.Errorf("the job %d is %+v, want the id %q", i, j, want)
		}
	}
	states := func(want string) {
		k.Helper()
		k.wantRows("SELECT string_agg(state::text, '' ORDER BY seq) FROM q", want)
	}
	k.write(backends.Extend{Leases: leases(jobs...)}, 0)
	k.write(backends.Nack{Leases: leases(jobs[1]), Error: "later", HasDelay: true, Delay: time.Hour}, 0)
	states("101")
	if more := k.claim("q", 5); len(more) != 0 {
		k.Errorf("its back-off is not over: %+v", more)
	}
	k.peek(backends.Peek{State: backends.StateScheduled, Max: 9}, ids[1]+":scheduled:1 ")
	k.peek(backends.Peek{IDs: []string{ids[2], "no,such\\", ids[0], "", "1", "1,2,3,4,5,6", "x"}}, ids[2]+":claimed:1 "+ids[0]+":claimed:1 ")
	k.peek(backends.Peek{State: backends.StateClaimed, After: ids[0]}, ids[2]+":claimed:1 ")
	k.command(backends.Command{Kind: backends.Reclaim, IDs: ids[1:]}, 1)
	k.write(backends.Ack{Leases: leases(jobs[2])}, 1)
	k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
	states("200")
	last := k.one("q")
	if last.ID != ids[2] {
		k.Errorf("%+v, want %s", last, ids[2])
	}
	k.sql("UPDATE qsidecar.qsidecar_leases SET due_at = 1 WHERE token_sidecar IS NOT NULL")
	if r := k.maintain(backends.Maintenance{}); r.Reaped[backends.CauseLeaseEnded] != 1 {
		k.Errorf("%+v", r)
	}
	last = k.one("q")
	k.write(backends.Nack{Leases: leases(last), Dead: true}, 0)
	states("203")
	k.command(backends.Command{Kind: backends.Retry, IDs: []string{ids[2], ids[0], "x"}}, 1)
	states("200")
	k.sql("UPDATE q SET state = 1, since = now() - interval '2 hours' WHERE seq = 3")
	if r := k.maintain(backends.Maintenance{}); len(r.MadeReady) != 1 {
		k.Errorf("%+v", r)
	}
	states("200")
	k.command(backends.Command{Kind: backends.Delete, IDs: []string{ids[1], "x", "1,2"}}, 1)
	k.sql("UPDATE q SET state = 2")
	k.maintain(backends.Maintenance{Prune: true})
	k.command(backends.Command{Kind: backends.Purge, State: backends.StateDone}, 2)
	k.wantRows("SELECT item FROM qsidecar.qsidecar_leases")
}

// TestManyOfAKey has more jobs than one statement can name.
func TestManyOfAKey(t *testing.T) {
	t.Parallel()
	m := mapping.Table{Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"a", "b"}, mapping.State: {"state"}, mapping.Payload: {"b"}}, MaxAttempts: 3,
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}, backends.StateDead: {Text: "3"}}}
	k := newKit(t, `CREATE TABLE q (a int, b int, state int NOT NULL, PRIMARY KEY (a, b)); INSERT INTO q SELECT n / 10, n % 10, 0 FROM generate_series(1, 1000) n`, map[string]mapping.Table{"q": m})
	jobs := k.claim("q", 900)
	if len(jobs) != 900 || jobs[899].ID != "90,0" || string(jobs[898].Payload) != "9" {
		t.Fatalf("%d jobs, the last %+v", len(jobs), jobs[len(jobs)-1])
	}
	k.write(backends.Ack{Leases: leases(jobs[:300]...)}, 0)
	k.write(backends.Nack{Leases: leases(jobs[300:600]...), Dead: true}, 0)
	k.command(backends.Command{Kind: backends.Retry, All: true}, 300)
	k.command(backends.Command{Kind: backends.Purge, State: backends.StateDone}, 300)
	k.command(backends.Command{Kind: backends.Purge, State: backends.StateReady}, 400)
	k.wantRows("SELECT count(*)::text FROM q", "300")
	k.write(backends.Ack{Leases: leases(jobs[600:]...)}, 0)
}

// TestLongKeys: a row whose id would be too long is left alone, and the others are claimed.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	m := mapping.Table{Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"a", "b"}, mapping.State: {"state"}}, MaxAttempts: 3,
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}}}
	k := newKit(t, `CREATE TABLE q (a int, b text, state int NOT NULL DEFAULT 0, PRIMARY KEY (a, b));
		INSERT INTO q SELECT 1, repeat('x', n) FROM generate_series(252, 255) n`, map[string]mapping.Table{"q": m})
	if jobs := k.claim("q", 9); len(jobs) != 2 || len(jobs[1].ID) != 255 {
		t.Errorf("%d jobs", len(jobs))
	}
	k.wantRows("SELECT length(b)::text FROM q WHERE state = 0 ORDER BY 1", "254", "255")
	found := k.findings("table")
	if !strings.Contains(found, "id is longer than 255 bytes") {
		t.Errorf("check reports %s", found)
	}
}

// TestCompositeEnqueue: the parts of a key come from constants and headers, and one from the database.
func TestCompositeEnqueue(t *testing.T) {
	t.Parallel()
	m := mapping.Table{Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"tenant", "name", "seq"}, mapping.State: {"state"}, mapping.Headers: {"name"}}, MaxAttempts: 3,
		Where:  map[string]mapping.Value{"tenant": {Text: "7"}},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}}}
	k := newKit(t, `CREATE TABLE q (tenant int, name text, seq serial, state int NOT NULL, PRIMARY KEY (tenant, name, seq))`, map[string]mapping.Table{"q": m})
	r := k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Headers: map[string]string{"name": "a,b"}}, {Queue: "q", Headers: map[string]string{"name": "c"}}}}, 0)
	if got := fmt.Sprint(r.Stored[0].ID, " ", r.Stored[1].ID); got != `7,a\,b,1 7,c,2` {
		t.Error(got)
	}
	k.write(backends.Ack{Leases: leases(k.claim("q", 2)...)}, 0)
	k.wantRows("SELECT state::text FROM q", "2", "2")
}

// findings are the findings of a topic, as one text.
func (k *kit) findings(topic string) (all string) {
	k.Helper()
	found, err := k.Examine(k.Context(), nil)
	if err != nil {
		k.Fatal(err)
	}
	for _, f := range found {
		if f.Topic == topic {
			all += f.Text + "\n"
		}
	}
	return all
}

// TestEscapedKeys: a key that is too long with its separators escaped does not affect other jobs.
func TestEscapedKeys(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := mapping.Table{Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"w", "n"}, mapping.State: {"state"}},
			States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}}, Order: []mapping.Ordering{{Column: "n"}}}
		k := on.newKit(t, `CREATE TABLE q (w varchar(200), n int, state int DEFAULT 0, PRIMARY KEY (w, n));
			INSERT INTO q (w, n) VALUES ('`+strings.Repeat(",", 130)+`', 1), ('`+strings.Repeat(",", 120)+`', 2), ('fine', 3)`, map[string]mapping.Table{"q": m})
		for _, want := range []string{strings.Repeat(`\,`, 120) + ",2", "fine,3"} {
			if j := k.one("q"); j.ID != want {
				t.Errorf("%q, want %q", j.ID, want)
			}
		}
		found, err := k.Examine(t.Context(), nil)
		if err != nil || !slices.ContainsFunc(found, func(f backends.Finding) bool {
			return f.Severity == backends.SeverityError && strings.Contains(f.Text, "longer than 255 bytes")
		}) {
			t.Errorf("%+v, %v", found, err)
		}
	})
}
