package config

import (
	"slices"
	"strings"
	"testing"
)

// TestSettings checks that all settings are listed, also the defaults, and no password in any spelling.
func TestSettings(t *testing.T) {
	const secret = "hunter2!"
	env := func(name string) (string, bool) { return "postgres://app:" + secret + "@db/app", name == "URL" }
	for _, url := range []string{"postgres://app:" + secret + "@db/app", "${URL}", "postgres://db/app?password=" + secret, "postgres://db/app?sslmode=require&password=" + secret} {
		text := "databases: {main: {url: \"" + url + "\", replica_url: \"" + url + "\", password_file: /run/secrets/db}}\nqueues: {mail: {}, sms: {timeout: 5m}}\n"
		c, err := Parse("c.yaml", []byte(text), env)
		if err != nil {
			t.Fatal(err)
		}
		all := Settings(&c)
		for _, want := range []string{"databases.main.password_file: /run/secrets/db", "queues.mail: {}", "queues.sms.timeout: 5m", "defaults.max_attempts: 20", "admin.access: read"} {
			if !slices.Contains(all, want) {
				t.Errorf("%s: %q isn't listed in\n%s", url, want, strings.Join(all, "\n"))
			}
		}
		if slices.Contains(all, "databases.main: {}") || slices.Contains(all, "queues.sms: {}") {
			t.Errorf("%s: a section with keys is listed as empty: %q", url, all)
		}
		if strings.Contains(strings.Join(all, "\n"), secret) {
			t.Errorf("%s: the password is shown in\n%s", url, strings.Join(all, "\n"))
		}
	}
}
