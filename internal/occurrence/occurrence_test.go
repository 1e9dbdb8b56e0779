package occurrence

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func times(t *testing.T, r Rule) *Times {
	t.Helper()
	x, err := Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestChangesOfTheClock: cases that people can check with a calendar.
func TestChangesOfTheClock(t *testing.T) {
	for _, c := range []struct {
		about, zone, cron, after string
		want                     []string
	}{
		{"a fixed time in the gap", "Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"several of them run once", "Europe/Berlin", "0,30 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		{"the first time after the gap", "Europe/Berlin", "0 3 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"}},
		{"an interval over the gap", "Europe/Berlin", "*/30 * * * *", "2026-03-29T00:00:00Z", []string{"2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"}},
		{"each hour over the gap", "Europe/Berlin", "30 * * * *", "2026-03-29T00:00:00Z", []string{"2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-03-29T02:30:00Z"}},
		{"every other hour over the gap", "Europe/Berlin", "0 */2 * * *", "2026-03-28T23:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"}},
		{"a fixed time of the repeated hour", "Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"an interval of the repeated hour", "Europe/Berlin", "*/30 2 * * *", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:00:00Z"}},
		{"a gap at midnight", "America/Asuncion", "0 0 * * *", "2024-10-05T12:00:00Z", []string{"2024-10-06T04:00:00Z", "2024-10-07T03:00:00Z"}},
		{"half an hour is skipped", "Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"half an hour is repeated", "Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"no change", "Asia/Kathmandu", "0 6 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T00:15:00Z"}},
		{"29 February after a century", "", "0 0 29 2 *", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"the last Friday", "", "0 6 * * 5L", "2026-01-01T00:00:00Z", []string{"2026-01-30T06:00:00Z", "2026-02-27T06:00:00Z"}},
		{"the third Friday", "", "0 6 * * FRI#3", "2026-01-01T00:00:00Z", []string{"2026-01-16T06:00:00Z"}},
		{"the last day", "", "0 6 L * *", "2026-01-31T06:00:00Z", []string{"2026-02-28T06:00:00Z"}},
		{"a day of the month or of the week", "", "0 0 13 * 5", "2026-01-01T00:00:00Z", []string{"2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z"}},
		{"names", "", "0 0 1 JAN,jul *", "2026-01-01T00:00:00Z", []string{"2026-07-01T00:00:00Z"}},
		{"@weekly", "Europe/Berlin", "@weekly", "2026-07-01T00:00:00Z", []string{"2026-07-04T22:00:00Z"}},
	} {
		x, at := times(t, Rule{Cron: c.cron, Zone: c.zone}), instant(t, c.after)
		for i, want := range c.want {
			if at = x.Next(at); at.Format(time.RFC3339) != want {
				t.Errorf("%s: run %d of %q is at %s, want %s", c.about, i+1, c.cron, at.Format(time.RFC3339), want)
			}
		}
	}
}

// TestAgainstPython compares the occurrences around changes of clocks with those of a walk over each minute with Python's
// zoneinfo, which has the same time zones.
func TestAgainstPython(t *testing.T) {
	ranges := [][3]string{}
	for zone, days := range map[string][]string{
		"Europe/Berlin":       {"2026-03-29", "2026-10-25"},
		"America/New_York":    {"2026-03-08", "2026-11-01"},
		"Australia/Lord_Howe": {"2026-04-05", "2026-10-04"},
		"Africa/Casablanca":   {"2026-02-15", "2026-03-22"},
		"Asia/Kathmandu":      {"1986-01-01", "2026-03-29"},
		"America/Asuncion":    {"2024-03-24", "2024-10-06"},
		"UTC":                 {"2026-03-29"},
	} {
		for _, day := range days {
			at := instant(t, day+"T00:00:00Z")
			ranges = append(ranges, [3]string{zone, at.AddDate(0, 0, -1).Format("2006-01-02T15:04"), at.AddDate(0, 0, 2).Format("2006-01-02T15:04")})
		}
	}
	expressions := []string{
		"* * * * *", "*/15 * * * *", "*/7 * * * *", "30 * * * *", "5-59/10 * * * *", "0 */2 * * *", "15 */1 * * *", "0 0 * * *", "1 0 * * *", "30 0 * * *", "59 23 * * *",
		"0 1 * * *", "30 1 * * *", "45 1 * * *", "0 2 * * *", "15 2 * * *", "30 2 * * *", "59 2 * * *", "0 3 * * *", "1 3 * * *", "0,30 2 * * *",
		"*/10 2 * * *", "*/20 1-3 * * *", "10-50/20 1,2,3 * * *", "30 2 * * 0", "30 2 29 * *", "30 2 29 3 1", "0 0-23/3 * * *", "5 4 1-7 * 7", "20 2 * 3,10 *",
	}
	got := map[string][]string{}
	for _, r := range ranges {
		first, last := instant(t, r[1]+":00Z"), instant(t, r[2]+":00Z")
		for _, e := range expressions {
			x := times(t, Rule{Cron: e, Zone: r[0]})
			for at := x.Next(first.Add(-time.Second)); !at.After(last); at = x.Next(at) {
				key := r[0] + "|" + e
				got[key] = append(got[key], at.Format(time.RFC3339))
			}
		}
	}
	want := map[string][]string{}
	for line := range strings.FieldsSeq(strings.ReplaceAll(walk(t, ranges, expressions), " ", "_")) {
		part := strings.Split(strings.ReplaceAll(line, "_", " "), "|")
		zone := strings.ReplaceAll(part[0], " ", "_")
		want[zone+"|"+part[2]] = append(want[zone+"|"+part[2]], part[1])
	}
	if len(want) < 6*len(expressions) {
		t.Errorf("the walk found only %d pairs of a zone and an expression", len(want))
	}
	for key := range want {
		if diff := cmp.Diff(want[key], got[key]); diff != "" {
			t.Errorf("%s (-Python +Go):\n%s", key, diff)
		}
		delete(got, key)
	}
	for key := range got {
		t.Errorf("%s runs, and Python's walk never does: %v", key, got[key])
	}
}

func walk(t *testing.T, ranges [][3]string, expressions []string) string {
	t.Helper()
	dir := t.TempDir()
	r, err := zip.OpenReader("../timezones/zoneinfo.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.CopyFS(dir, r); err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(ranges)
	b, _ := json.Marshal(expressions)
	cmd := exec.CommandContext(t.Context(), "python3", "testdata/walk.py", string(a), string(b))
	cmd.Env = append(os.Environ(), "PYTHONTZPATH="+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python3: %v", err)
	}
	return string(out)
}

// TestEvery: intervals are aligned to 1970, and a splay moves all times by the same.
func TestEvery(t *testing.T) {
	x := times(t, Rule{Every: 15 * time.Minute})
	at := instant(t, "2026-03-29T00:59:59Z")
	for _, want := range []string{"2026-03-29T01:00:00Z", "2026-03-29T01:15:00Z"} {
		if at = x.Next(at); at.Format(time.RFC3339) != want {
			t.Errorf("at %v, want %s", at, want)
		}
	}
	for _, r := range []Rule{{Every: time.Hour}, {Cron: "0 * * * *"}, {Cron: "30 2 * * *", Zone: "Europe/Berlin"}} {
		plain := times(t, r)
		r.Splay, r.Name = 5*time.Minute, "daily-report"
		splayed := times(t, r)
		shift := splayed.Next(at).Sub(splayed.Nominal(splayed.Next(at)))
		if shift <= 0 || shift >= r.Splay {
			t.Errorf("%+v: the shift is %v", r, shift)
		}
		p, s := at, at.Add(shift)
		for range 500 {
			p, s = plain.Next(p), splayed.Next(s)
			if !s.Equal(p.Add(shift)) || !splayed.Nominal(s).Equal(p) {
				t.Fatalf("%+v: %v and %v", r, p, s)
			}
		}
	}
}

func TestBadRules(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		want string
	}{
		{Rule{}, "set cron or every"},
		{Rule{Cron: "@daily", Every: time.Hour}, "both"},
		{Rule{Every: time.Millisecond}, "whole seconds"},
		{Rule{Every: 1500 * time.Millisecond}, "whole seconds"},
		{Rule{Every: time.Hour, Zone: "UTC"}, "tz"},
		{Rule{Every: time.Hour, Splay: -time.Second}, "splay"},
		{Rule{Cron: "0 6 * * *", Zone: "Europe/Nowhere"}, "IANA"},
		{Rule{Cron: "0 6 * *"}, "4 fields"},
		{Rule{Cron: "0 0 6 * * *"}, "6 fields"},
		{Rule{Cron: "60 * * * *"}, "60"},
		{Rule{Cron: "0 0 30 2 *"}, "never"},
		{Rule{Cron: "1,,2 * * * *"}, "list"},
		{Rule{Cron: "*-5 * * * *"}, "list"},
		{Rule{Cron: "@every 5m"}, "use every"},
		{Rule{Cron: "@reboot"}, "@daily"},
		{Rule{Cron: "CRON_TZ=Asia/Tokyo 0 6 * * *"}, "use tz"},
		{Rule{Cron: "H * * * *"}, "H"},
	} {
		if _, err := Parse(c.rule); err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(c.want)) {
			t.Errorf("%+v: %v, want %q", c.rule, err, c.want)
		}
	}
}

// TestNextChange: the page shows the changes of the clock that move a schedule's times.
func TestNextChange(t *testing.T) {
	from := instant(t, "2026-01-01T00:00:00Z")
	var got []string
	for _, cron := range []string{"30 2 * * *", "0 6 * * *", "30 2 1 6 *", "30 2 * 10 *", "30 * 1-29 3 *"} {
		c, found := times(t, Rule{Cron: cron, Zone: "Europe/Berlin"}).NextChange(from, from.AddDate(1, 0, 0))
		got = append(got, fmt.Sprintf("%v %v %s", found, c.Skipped, c.At.UTC().Format(time.DateOnly)))
	}
	if want := []string{"true true 2026-03-29", "false false 0001-01-01", "false false 0001-01-01", "true false 2026-10-25", "false false 0001-01-01"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestEndOfALeapYear checks the last day of leap years that only the rule of a zone describes, which Go ends at its own beginning.
func TestEndOfALeapYear(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"} {
		hourly := times(t, Rule{Cron: "0 * * * *", Zone: zone})
		for _, year := range []int{2000, 2028, 2096, 2400} {
			at := time.Date(year, 12, 29, 0, 0, 0, 0, time.UTC)
			for range 5 * 24 {
				next := hourly.Next(at)
				if next.Sub(at) != time.Hour && next.Sub(at) != time.Hour/2 { // half an hour: a zone whose offset has one
					t.Fatalf("%s: after %v comes %v", zone, at, next)
				}
				at = next
				if c, found := hourly.NextChange(at, at.AddDate(0, 1, 0)); found {
					t.Fatalf("%s: after %v the clock changes at %v", zone, at, c.At)
				}
			}
		}
	}
}
