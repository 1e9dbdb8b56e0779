package adopted_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// tableOfKey returns a table whose key has that type, with a row for each id (in SQL), and its mapping.
func tableOfKey(typ string, ids ...string) (string, map[string]mapping.Table) {
	ddl := "CREATE TABLE q (id " + typ + " PRIMARY KEY NOT NULL, state int NOT NULL DEFAULT 0, payload varchar(60) NOT NULL, seq int NOT NULL);"
	for i, id := range ids {
		ddl += fmt.Sprintf("INSERT INTO q (id, payload, seq) VALUES (%s, 'p%d', %[2]d);", id, i)
	}
	return ddl, map[string]mapping.Table{"q": {
		Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: {"payload"}}, MaxAttempts: 3,
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}},
		Order:  []mapping.Ordering{{Column: "seq"}},
	}}
}

// settlesAll checks that jobs with these values of the last column of the key, and no others, are claimed, found by their ids, acked and deleted.
func (k *kit) settlesAll(key []string, ids ...string) {
	k.Helper()
	jobs := k.claim("q", 9)
	var claimed []string
	for _, j := range jobs {
		id := j.ID
		if len(key) > 1 {
			id = strings.ReplaceAll(strings.TrimPrefix(id, string(j.Payload)+","), `\,`, ",")
		}
		claimed = append(claimed, id)
	}
	if !slices.Equal(claimed, ids) {
		k.Fatalf("claimed %q, want %q", claimed, ids)
	}
	for _, j := range jobs {
		for id, want := range map[string]int{j.ID: 1, j.ID + "0": 0} {
			views, err := k.Peek(k.Context(), backends.Peek{Queue: "q", IDs: []string{id}})
			if err != nil || len(views) != want || want == 1 && (views[0].ID != id || string(views[0].Payload) != string(j.Payload)) {
				k.Errorf("peek at %s returns %+v, %v", id, views, err)
			}
		}
		k.write(backends.Ack{Leases: leases(j)}, 0)
		if n, _, err := k.Command(k.Context(), backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{j.ID}}); n != 1 || err != nil {
			k.Errorf("delete of %s: %d jobs, %v", j.ID, n, err)
		}
	}
}

// TestLargeNumberKeys has keys beyond 64 bits, some of which differ only in the last digit.
func TestLargeNumberKeys(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		for typ, ids := range map[string][]string{
			"bigint":        {"9223372036854775807", "-9223372036854775808", "99"},
			"smallint":      {"32767", "-5"},
			"decimal(20,0)": {"9223372036854775807", "9223372036854775808", "9223372036854775809", "99999999999999999999", "-99999999999999999999"},
			"decimal(40,0)": {"9223372036854775808", "123456789012345678901234567890123456788", "123456789012345678901234567890123456789", "-1"},
			"decimal(65,0)": {strings.Repeat("9", 64) + "7", strings.Repeat("9", 64) + "8"},
			"decimal(30,2)": {"123456789012345678901234567.88", "123456789012345678901234567.89", "7.00"},
		} {
			t.Run(typ, func(t *testing.T) {
				ddl, tables := tableOfKey(typ, ids...)
				on.newKit(t, ddl, tables).settlesAll([]string{"id"}, ids...)
			})
		}
	})
}

// TestUnlimitedNumberKeys has keys of PostgreSQL's numeric without a precision, and of a domain. A row with more than
// 255 digits is left alone.
func TestUnlimitedNumberKeys(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"numeric", "serial_number"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			ddl, tables := tableOfKey(typ, "1e300", "'NaN'", "'-Infinity'", "1e45", "1e-41", "-2")
			k := newKit(t, "CREATE DOMAIN serial_number AS numeric; "+ddl, tables)
			k.settlesAll([]string{"id"}, "NaN", "-Infinity", "1"+strings.Repeat("0", 45), "0."+strings.Repeat("0", 40)+"1", "-2")
			k.wantRows("SELECT payload FROM q", "p0")
			if found := k.findings("table"); !strings.Contains(found, "has a job whose id is longer than 255 bytes") {
				t.Errorf("check reports %s", found)
			}
		})
	}
}

// TestUntypedKeys has keys that don't have their column's type, which only SQLite stores. A row that no text finds is
// left alone, and the others are claimed.
func TestUntypedKeys(t *testing.T) {
	t.Parallel()
	for typ, c := range map[string]struct{ ids, want, alone []string }{
		"INT": {
			[]string{"9223372036854775808", "'a,b'", "1.5", "x'31'", "9223372036854775807", "7"},
			[]string{"9.2233720368547758e+18", "a,b", "1.5", "9223372036854775807", "7"}, []string{"1"},
		},
		"DECIMAL(30,2)": {[]string{"12345678901234567890.12", "1.5", "0.125", "2"}, []string{"1.2345678901234567e+19", "1.5", "0.125", "2"}, nil},
		"VARCHAR(9)":    {[]string{"x'31'", "'31'", "7"}, []string{"31", "7"}, []string{"1"}},
		"":              {[]string{"1", "'1'", "x'31'", "1.5"}, []string{"1"}, []string{"1", "1", "1.5"}},
		"DATE":          {[]string{"2460000.5", "'2026-01-02'", "7"}, []string{"2460000.5", "2026-01-02", "7"}, nil},
	} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			for _, columns := range [][]string{{"id"}, {"payload", "id"}} {
				ddl, tables := tableOfKey(typ, c.ids...)
				ddl += "CREATE UNIQUE INDEX both ON q (payload, id);"
				m := tables["q"]
				m.Columns[mapping.ID] = columns
				k := newSQLiteKit(t, ddl, tables)
				k.settlesAll(columns, c.want...)
				k.wantRows("SELECT CAST(id AS TEXT) FROM q ORDER BY seq", c.alone...)
				if found := k.findings("table"); strings.Contains(found, "is not a value of its column's type, so no worker gets it") != (c.alone != nil) {
					t.Errorf("check reports %s", found)
				}
			}
		})
	}
}
