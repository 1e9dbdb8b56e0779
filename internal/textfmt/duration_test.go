package textfmt

import (
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "500ms": 500 * time.Millisecond, "10s": 10 * time.Second, "5m": 5 * time.Minute,
		"2h": 2 * time.Hour, "7d": 7 * 24 * time.Hour, "1h30m": 90 * time.Minute, "1d12h": 36 * time.Hour,
	} {
		got, err := ParseDuration(s)
		if err != nil || got != want {
			t.Errorf("%s is %v, %v; want %v", s, got, err, want)
		}
		if back, err := ParseDuration(FormatDuration(want)); err != nil || back != want {
			t.Errorf("%v is written %q, which is read as %v, %v", want, FormatDuration(want), back, err)
		}
	}
	for _, s := range []string{"", "10", "s", "-1s", "1 s", "1.5h", "1y", "9999999999999d", "99999999999999999999s", "106752d"} {
		if d, err := ParseDuration(s); err == nil {
			t.Errorf("%q is read as %v", s, d)
		}
	}
	if d, err := ParseDuration("106751d"); err != nil || d != 106751*24*time.Hour {
		t.Errorf("106751d: %v, %v", d, err)
	}
}
