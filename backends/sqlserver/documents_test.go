package sqlserver

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// readBack reads a document as OPENJSON does with the types that store_keyed.sql names. A field that is missing or
// null is NULL. A number keeps all its digits.
func readBack(t interface{ Fatal(...any) }, document mssql.NVarCharMax) []map[string]any {
	d := json.NewDecoder(strings.NewReader(string(document)))
	d.UseNumber()
	var rows []map[string]any
	if err := d.Decode(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

func integer(t interface{ Fatal(...any) }, v any) int64 {
	n, err := v.(json.Number).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// checkJobs checks that jobs come out of a document and its blob unchanged.
func checkJobs(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, jobs []backends.NewJob) {
	var payloads blob
	rows := make([]jobRow, len(jobs))
	for i := range jobs {
		r, err := newJobRow(i, &core.NewJob{NewJob: &jobs[i]}, &payloads)
		if err != nil {
			if !backends.IsRefused(err) {
				t.Fatal(err)
			}
			return
		}
		rows[i] = r
	}
	stored := payloads.bytes()
	if stored == nil {
		t.Fatal("a blob that is NULL")
	}
	for i, r := range readBack(t, document(rows)) {
		j := &jobs[i]
		start, size := integer(t, r["start"]), integer(t, r["size"])
		// SUBSTRING(@blob, start + 1, size)
		if got := stored[start : start+size]; !bytes.Equal(got, j.Payload) {
			t.Fatalf("the payload %x came back as %x", j.Payload, got)
		}
		if integer(t, r["n"]) != int64(i) || integer(t, r["priority"]) != int64(j.Priority) {
			t.Fatalf("%+v came back as %v", j, r)
		}
		if key, ok := r["key"]; ok != (j.Key != "") || ok && key != j.Key {
			t.Fatalf("the key %q came back as %v", j.Key, key)
		}
		if text, ok := r["headers"]; ok != (len(j.Headers) > 0) {
			t.Fatalf("the headers %q came back as %v", j.Headers, text)
		} else if ok {
			var headers map[string]string
			if err := json.Unmarshal([]byte(text.(string)), &headers); err != nil || !maps.Equal(headers, j.Headers) {
				t.Fatalf("the headers %q came back as %q: %v", j.Headers, headers, err)
			}
		}
		for field, want := range map[string]time.Duration{"delay_ms": j.Delay, "timeout_ms": j.Timeout} {
			got, ok := r[field]
			if ok != (want > 0) || ok && (time.Duration(integer(t, got))*time.Millisecond < min(want, longest) || time.Duration(integer(t, got))*time.Millisecond >= min(want, longest)+time.Millisecond) {
				t.Fatalf("%s of %v came back as %v", field, want, got)
			}
		}
	}
}

// TestLeaseDocuments shows that the numbers of a lease come out as the table has them.
func TestLeaseDocuments(t *testing.T) {
	t.Parallel()
	token := backends.Token{Sidecar: math.MaxUint64, Number: 1 << 63}
	row := &core.Row{ID: 7, Token: token}
	for _, r := range readBack(t, document([]leaseRow{rowOfClaim(0, row), rowOfLease(0, core.Lease{ID: 7, Sidecar: -1, Number: math.MinInt64})})) {
		if integer(t, r["id"]) != 7 || integer(t, r["sidecar"]) != -1 || integer(t, r["number"]) != math.MinInt64 {
			t.Errorf("%v", r)
		}
	}
}

// TestDocuments shows that documents come out unchanged, as OPENJSON reads them.
func TestDocuments(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "a", " ", "a ", "ключ", "😀", `"\'`, "<&>\u2028", "\u0001", "é\n\t"}))
	job := rapid.Custom(func(t *rapid.T) backends.NewJob {
		return backends.NewJob{
			Queue: rapid.StringMatching(`[A-Za-z0-9_:/][A-Za-z0-9._:/-]{0,127}`).Draw(t, "queue"), Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
			Priority: rapid.Int16().Draw(t, "priority"), Key: text.Draw(t, "key"), KeyTTL: time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "ttl")),
			Delay:   time.Duration(rapid.Int64Range(-5, math.MaxInt64).Draw(t, "delay")),
			Timeout: time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "timeout")),
			Headers: rapid.MapOf(text, text).Draw(t, "headers"), MaxAttempts: rapid.IntRange(0, 32767).Draw(t, "max"),
		}
	})
	rapid.Check(t, func(t *rapid.T) { checkJobs(t, rapid.SliceOfN(job, 0, 5).Draw(t, "jobs")) })
}

// FuzzDocuments is TestDocuments with bytes of any kind.
func FuzzDocuments(f *testing.F) {
	f.Add("q", []byte("payload"), int16(-1), "key", "name", "value", int64(1))
	f.Add("", []byte{}, int16(math.MinInt16), "\xff", "\x00", "\u2028", int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, queue string, payload []byte, priority int16, key, name, value string, delay int64) {
		if strings.ToValidUTF8(name+value, "") != name+value {
			return // the wire has no such texts
		}
		checkJobs(t, []backends.NewJob{
			{Queue: queue, Payload: payload, Priority: priority, Key: key, Delay: time.Duration(delay), Headers: map[string]string{name: value}},
			{Queue: queue, Payload: payload},
		})
	})
}

// TestKeysThatAreNoTexts shows that keys are refused that a document would turn into other keys.
func TestKeysThatAreNoTexts(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"\xff", "a\x00", "\xed\xa0\x80"} {
		if _, err := newJobRow(0, &core.NewJob{NewJob: &backends.NewJob{Queue: "q", Key: key}}, new(blob)); !backends.IsRefused(err) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// TestInstants shows that instants are rounded up to microseconds, in UTC, in the years that the
// server has.
func TestInstants(t *testing.T) {
	t.Parallel()
	for at, want := range map[time.Time]string{
		time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC):                 "2026-02-03T04:05:06.000007",
		time.Date(2026, 2, 3, 4, 5, 6, 7001, time.UTC):                 "2026-02-03T04:05:06.000008",
		time.Date(2026, 12, 31, 23, 59, 59, 999999001, time.UTC):       "2027-01-01T00:00:00.000000",
		time.Date(2026, 2, 3, 0, 0, 0, 0, time.FixedZone("", -5*3600)): "2026-02-03T05:00:00.000000",
		time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC):                   "9999-12-31T23:59:59.999999",
		{}: "0001-01-01T00:00:00.000000",
	} {
		if got := instant(at); got != want {
			t.Errorf("%v: %s, want %s", at, got, want)
		}
	}
}

// TestLongSpans shows that DATEADD gets at most 2^31 - 1 of any unit.
func TestLongSpans(t *testing.T) {
	t.Parallel()
	if got := ms(math.MaxInt64); got/1000 > math.MaxInt32 || got < (10*366*24*time.Hour).Milliseconds() {
		t.Errorf("for ever is %d ms", got)
	}
	if ms(-time.Second) != 0 || ms(time.Nanosecond) != 1 {
		t.Error("rounding")
	}
}

// TestChunks shows that no statement has more than a thousand rows, and that none is left out.
func TestChunks(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, maxRows - 1, maxRows, maxRows + 1, 3 * maxRows} {
		seen := 0
		chunks(make([]int, n), func(from int, rows []int) {
			if from != seen || len(rows) > maxRows || len(rows) == 0 {
				t.Errorf("%d: a piece of %d from %d on", n, len(rows), from)
			}
			seen += len(rows)
		})
		if seen != n {
			t.Errorf("%d of %d", seen, n)
		}
	}
}
