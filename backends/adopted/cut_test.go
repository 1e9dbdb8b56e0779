package adopted_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// cutTable has short texts in every role that takes values of a job.
func cutTable() mapping.Table {
	return mapping.Table{
		Name:    "short",
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.Payload: {"payload"}, mapping.State: {"state"}, mapping.Result: {"result"}, mapping.Headers: {"id", "fixed"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}, backends.StateDead: {Text: "3"}},
	}
}

// cutKey is a key of several columns, one a number. MySQL finds a number by a text that begins with it.
func cutKey() mapping.Table {
	m := cutTable()
	m.Name, m.Columns = "two", map[mapping.Role][]string{mapping.ID: {"n", "id"}, mapping.State: {"state"}, mapping.Payload: {"id"}}
	return m
}

const cutDDL = `CREATE TABLE short (id varchar(6) PRIMARY KEY, payload varchar(10), result varchar(4), fixed char(4), state int NOT NULL DEFAULT 0);
	CREATE TABLE two (n int NOT NULL, id varchar(6) NOT NULL, state int NOT NULL DEFAULT 0, PRIMARY KEY (n, id));
	INSERT INTO two (n, id, state) VALUES (7, 'a', 0)`

// cutter is the part of a kit that the test uses.
type cutter interface {
	backends.Backend
	backends.Inspector
	write(w backends.Write, lost int) backends.WriteResult
	one(queue string) backends.Job
	command(c backends.Command, want int64)
	wantRows(query string, want ...string)
}

// nothingIsCut checks that values that fit are stored, and others refused.
func nothingIsCut(t *testing.T, k cutter) {
	t.Helper()
	job := func(id, payload, fixed string) backends.NewJob {
		return backends.NewJob{Queue: "q", Payload: []byte(payload), Headers: map[string]string{"id": id, "fixed": fixed}}
	}
	for what, j := range map[string]backends.NewJob{
		"payload": job("x", "0123456789A", "x"), "payload with a blank": job("x", "0123456789 ", "x"), "letters of two bytes": job("x", "ääääääääääÄ", "x"),
		"header": job("x", "x", "12345"), "header with a blank": job("x", "x", "1234 "), "key": job("1234567", "x", "x"), "key with a blank": job("123456 ", "x", "x"),
	} {
		if r, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j}}}}); !backends.IsRefused(err) {
			t.Errorf("%s: %v, %+v", what, err, r)
		}
	}
	k.write(backends.Enqueue{Jobs: []backends.NewJob{job("abcdef", "ä123456789", "1234")}}, 0)
	for _, queue := range []string{"q", "two"} {
		j := k.one(queue)
		if queue == "q" {
			for _, result := range []string{"12345", "1234 "} {
				if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases(j), Result: []byte(result)}}}); !backends.IsRefused(err) {
					t.Errorf("the result %q: %v", result, err)
				}
			}
		}
		k.write(backends.Nack{Leases: leases(j), Dead: true}, 0)
		longer := []string{j.ID + "g", j.ID + " ", strings.Repeat(j.ID, 40), strings.ToUpper(j.ID), "7-1,a", "7.0,a", "7-1", ""}
		k.command(backends.Command{Queue: queue, Kind: backends.Retry, IDs: longer}, 0)
		k.command(backends.Command{Queue: queue, Kind: backends.Delete, IDs: longer}, 0)
		k.command(backends.Command{Queue: queue, Kind: backends.Retry, IDs: []string{j.ID}}, 1)
	}
	j := k.one("q")
	k.write(backends.Ack{Leases: leases(j), Result: []byte("1234")}, 0)
	k.wantRows("SELECT concat(id, '|', payload, '|', result, '|', fixed) FROM short", "abcdef|ä123456789|1234|1234")
	k.command(backends.Command{Queue: "q", Kind: backends.Delete, IDs: []string{j.ID}}, 1)
}

// TestNothingIsCut: a value that is longer than its column is refused, and an id does not find a row
// whose key is its beginning.
func TestNothingIsCut(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		nothingIsCut(t, on.newKit(t, cutDDL, map[string]mapping.Table{"q": cutTable(), "two": cutKey()}))
	})
}

// TestNothingIsCutByTypes checks types whose limits PostgreSQL also applies in an explicit cast.
func TestNothingIsCutByTypes(t *testing.T) {
	t.Parallel()
	m := cutTable()
	m.Name, m.Columns = "odd", map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Headers: {"own", "bits", "few", "list", "padded", "word", "own2", "own3", "owns", "owns2", "lists", "fixed", "short"}}
	k := newKit(t, `CREATE DOMAIN own AS varchar(4); CREATE DOMAIN own2 AS own; CREATE DOMAIN own3 AS own2 CHECK (value <> '');
		CREATE DOMAIN owns2 AS own2[]; CREATE DOMAIN lists AS varchar(4)[]; CREATE DOMAIN bits3 AS bit(3); CREATE DOMAIN fixed AS bits3;
		CREATE DOMAIN word AS name; CREATE DOMAIN short AS word;
		CREATE TABLE odd (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state int NOT NULL DEFAULT 0, own own, bits bit(3), few bit varying(3), list varchar(3)[], padded char(3), word name,
			own2 own2, own3 own3, owns own[], owns2 owns2, lists lists, fixed fixed, short short)`,
		map[string]mapping.Table{"q": m})
	for column, values := range map[string][2]string{
		"own": {"1234", "12345"}, "bits": {"101", "1011"}, "few": {"101", "1011"}, "list": {"{abc}", "{abcd}"}, "padded": {"äbc", "äbcd"}, "word": {strings.Repeat("x", 63), strings.Repeat("x", 64)},
		"own2": {"1234", "12345"}, "own3": {"1234", "1234 "}, "owns": {"{1234}", "{12345}"}, "owns2": {"{1234}", "{12345}"}, "lists": {"{1234}", "{12345}"}, "fixed": {"101", "1011"},
		"short": {strings.Repeat("x", 63), strings.Repeat("x", 64)},
	} {
		for i, value := range values {
			r, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Headers: map[string]string{column: value}}}}}})
			if i == 1 {
				if !backends.IsRefused(err) {
					t.Errorf("%s %q: %v", column, value, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", column, err)
			}
			k.wantRows("SELECT "+column+"::text FROM odd WHERE id = "+r.Writes[0].Stored[0].ID, value)
		}
	}
}

// TestSQLiteNothingIsCut: columns of SQLite take texts of any length, also those of numbers. A text
// that begins with a number does not find the row of that number.
func TestSQLiteNothingIsCut(t *testing.T) {
	t.Parallel()
	m := cutTable()
	m.Name, m.Columns = "short", map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: {"payload"}, mapping.Headers: {"count"}}
	k := newSQLiteKit(t, `CREATE TABLE short (id INTEGER PRIMARY KEY, payload VARCHAR(4), count INT, state INT NOT NULL DEFAULT 0);
		CREATE TABLE two (n INT, id VARCHAR(6), state INT NOT NULL DEFAULT 0, PRIMARY KEY (n, id)); INSERT INTO two (n, id) VALUES (7, 'a')`,
		map[string]mapping.Table{"q": m, "two": cutKey()})
	for _, count := range []string{"12 apples", "many", "12"} {
		k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("longer "), Headers: map[string]string{"count": count}}}}, 0)
	}
	k.wantRows("SELECT payload || '|' || count || '|' || typeof(count) FROM short ORDER BY id", "longer |12 apples|text", "longer |many|text", "longer |12|integer")
	k.command(backends.Command{Queue: "two", Kind: backends.Delete, IDs: []string{"7-1,a", "7.0,a", "7x,a", "7,ab", "7,a "}}, 0)
	k.command(backends.Command{Kind: backends.Delete, IDs: []string{"1-1", "1.0", "1x", "12", "01"}}, 0)
	k.command(backends.Command{Kind: backends.Delete, IDs: []string{"1"}}, 1)
}

// oddNumbers has jobs whose attempts and priority are of a type that holds other things than whole
// numbers.
func oddNumbers() mapping.Table {
	m := cutTable()
	m.Name, m.MaxAttempts = "odd", 3
	m.Columns = map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Attempts: {"tries"}, mapping.Priority: {"urgency"}}
	m.Order = []mapping.Ordering{{Column: "id"}}
	return m
}

// claimsOddNumbers checks that no row prevents claims, views and maintenance of the others.
func (k *kit) claimsOddNumbers(claimed, shown string) {
	k.Helper()
	var got string
	jobs := k.claim("q", 20)
	for _, j := range jobs {
		got += fmt.Sprintf("%s:%d:%d ", j.ID, j.Priority, j.Attempt)
	}
	if got != claimed {
		k.Errorf("claimed %s, want %s", got, claimed)
	}
	k.peek(backends.Peek{State: backends.StateClaimed, Max: 20}, shown)
	k.maintain(backends.Maintenance{Waiting: []string{"q"}, Prune: true})
	k.write(backends.Nack{Leases: leases(jobs...), HasDelay: true}, 0)
}

// TestOddNumbers: a row whose attempts or priority is not a whole number is a job like others.
func TestOddNumbers(t *testing.T) {
	t.Parallel()
	k := newKit(t, `CREATE TABLE odd (id int PRIMARY KEY, state int NOT NULL DEFAULT 0, tries numeric DEFAULT 0, urgency numeric);
		INSERT INTO odd (id, urgency, tries) VALUES (1, 1.5, 0), (2, 'NaN', 0), (3, 1e30, 0), (4, -1e30, 0), (5, 5, 1.5), (6, 6, -7), (7, 7, 'NaN'), (8, NULL, NULL)`,
		map[string]mapping.Table{"q": oddNumbers()})
	k.claimsOddNumbers("1:1:1 2:0:1 3:32767:1 4:-32768:1 5:5:2 6:6:-6 8:0:1 ", "1:claimed:0 2:claimed:0 3:claimed:0 4:claimed:0 5:claimed:1 6:claimed:-7 8:claimed:0 ")
}

// TestSQLiteOddNumbers: a column of SQLite holds anything.
func TestSQLiteOddNumbers(t *testing.T) {
	t.Parallel()
	k := newSQLiteKit(t, `CREATE TABLE odd (id INTEGER PRIMARY KEY, state INT NOT NULL DEFAULT 0, tries INT DEFAULT 0, urgency INT);
		INSERT INTO odd (id, urgency, tries) VALUES (1, 1.5, 0), (2, 'high', 0), (3, 1e30, 0), (4, x'ff', 0), (5, 5, 1.5), (6, 6, 'x')`,
		map[string]mapping.Table{"q": oddNumbers()})
	k.claimsOddNumbers("1:1:1 2:0:1 3:32767:1 4:0:1 5:5:2 ", "1:claimed:0 2:claimed:0 3:claimed:0 4:claimed:0 5:claimed:1 ")
}
