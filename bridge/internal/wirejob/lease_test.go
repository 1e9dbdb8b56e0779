package wirejob

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
)

func TestFormatLease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := backends.Lease{
			Job: rapid.StringN(1, 80, 255).Draw(t, "job"),
			Token: backends.Token{
				Sidecar: backends.Identity(rapid.Uint64().Draw(t, "host")),
				Number:  rapid.Uint64().Draw(t, "number"),
			},
		}
		text := FormatLease("0123456789a", want)
		if len(text) > 512 || strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
			t.Fatalf("lease %q: too long or outside of its alphabet", text)
		}
		db, got, ok := ParseLease(text)
		if !ok || db != "0123456789a" || got != want {
			t.Fatalf("%q: got %v %v %v, want %v", text, db, got, ok, want)
		}
	})
}

func FuzzParseLease(f *testing.F) {
	f.Add(FormatLease("0123456789a", backends.Lease{Job: "17", Token: backends.Token{Sidecar: 1, Number: 2}}))
	f.Add(FormatLease("0123456789a", backends.Lease{Job: "a.b", Token: backends.Token{Sidecar: 1, Number: 2}}))
	f.Add("1...")
	f.Add("1.0123456789a.AAAAAAAAAAEAAAAAAAAAAg._MQ") // the job 1, encoded although it is all digits
	f.Fuzz(func(t *testing.T, s string) {
		db, l, ok := ParseLease(s)
		if ok && FormatLease(db, l) != s {
			t.Errorf("%q is read as %v, which is written %q: two texts for one lease", s, l, FormatLease(db, l))
		}
	})
}
