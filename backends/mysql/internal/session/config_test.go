package session

import (
	"log/slog"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"mysql://app@db/jobs":                              "mysql://app@db:3306/jobs",
		"mysql://app:hunter2@db:3307/jobs":                 "mysql://app@db:3307/jobs",
		"mysql://app@[::1]:3307/jobs?tls=true":             "mysql://app@[::1]:3307/jobs",
		"mysql://app@localhost/jobs?socket=/run/m.s":       "mysql://app@localhost/jobs?socket=/run/m.s",
		"mysql://app@db/":                                  "",
		"mysql://db/jobs":                                  "",
		"mysql://app:hunter2@db/jobs/more":                 "",
		"mysql://app:hunter2@db/jobs?ssl=1":                "",
		"mysql://app:hunter2@db/jobs?tls=perhaps":          "",
		"mysql://app:hunter2@db/jobs?ca=/no/such/file":     "",
		"mysql://app:hunt%zz@db/jobs":                      "",
		"app:hunter2@tcp(db)/jobs":                         "",
		"mysql://app:hunter2@a,b:3307,[::1]/jobs?tls=true": "mysql://app@a:3306,b:3307,[::1]:3306/jobs",
		"mysql://app:hunter2@a,/jobs":                      "", "mysql://app:hunter2@a,b/c/d": "", "mysql://app:hunter2@a,b:x/jobs": "", "mysql://app:hunter2@a,b/jobs?socket=/s": "",
	} {
		c, err := Configure(url, "", slog.New(slog.DiscardHandler))
		switch {
		case want == "" && err == nil:
			t.Errorf("%s was accepted as %s", url, Place(c))
		case want == "" && strings.Contains(err.Error(), "hunt"):
			t.Errorf("%s: %v: that shows the password", url, err)
		case want != "" && (err != nil || Place(c) != want):
			t.Errorf("%s: %v, %v", url, c, err)
		}
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct{ maria, skips, refused bool }{
		"8.0.13": {skips: true}, "9.7.4-2": {skips: true}, "8.0.36-28.1": {skips: true}, "8.0.12": {refused: true}, "5.7.44-log": {refused: true},
		"10.5.23-MariaDB-0+deb11u1": {maria: true}, "5.5.5-10.6.0-MariaDB-log": {maria: true, skips: true}, "11.4.2-MariaDB": {maria: true, skips: true},
		"10.2.44-MariaDB": {maria: true, refused: true}, "PostgreSQL": {refused: true},
	} {
		v, err := parseVersion(text, c.maria)
		if (err != nil) != c.refused || err == nil && v.SkipLocked != c.skips {
			t.Errorf("%s: %+v, %v", text, v, err)
		}
	}
}
