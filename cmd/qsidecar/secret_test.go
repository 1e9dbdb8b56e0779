package main

import (
	"strings"
	"testing"
)

func TestPasswords(t *testing.T) {
	for s, want := range map[string]bool{
		"postgres://app@db/app": false, "postgres://app:x@db/app": true, "postgres://app:p%zz@db/app": true,
		"postgres://db/app?user=a&password=b": true, "sqlserver://db?Pwd=x": true, "mysql://:x@db/": true,
		"sqlite:/var/a:b@c": false, "sqlite:///var/a:b@c": false, "postgres://db:5432/app": false,
		"postgres://a@db1:5432,db2:5432/app?target_session_attrs=read-write": false,
		"postgres://app:x@db1:5432,db2:5432/app":                             true,
		"postgres://app:se/cret@db/app":                                      true, "postgres://app:12/cret@db/app": true, "postgres://app:12#ret@db/app": true,
		"postgres://app:12?ret@db/app": true, "postgres://db/app?pass%77ord=b": true, "postgres://app:secret/app": true,
		"postgres://a@[::1]:5432/app": false, "postgres://db/app?user=me@corp": false,
	} {
		if got := hasPassword(s); got != want {
			t.Errorf("%s: %v, want %v", s, got, want)
		}
	}
}

func TestAddressesThatAreCertain(t *testing.T) {
	for _, s := range []string{
		"postgres://app@db/app", "postgres://app:x@db:5432/app", "postgres:///app?host=/run/postgresql", "postgres://a@db1:1,db2:2/app?target_session_attrs=read-write",
		"postgres://a:p@ss@db/app", "postgres://a:p%2F%23@db/app", "mysql://a@localhost/jobs?socket=/run/m.s", "sqlserver://a@db:1433/INST?database=x&app+name=y",
		"sqlserver://a@db?app%20name=y", "postgres://a@[::1]:5432/app", "postgres://a@[::1]/app", "postgres://a:b:c@db/app", "postgres://db", "postgres://db/app?user=me@corp",
	} {
		if err := checkAddress(s); err != nil {
			t.Errorf("%s is refused: %v", s, err)
		}
	}
	for _, s := range []string{
		"postgres:app", "postgres://app:se/cret@db/app", "postgres://app:12/cret@db/app", "postgres://app:12#ret@db/app", "postgres://app:12?ret@db/app",
		"postgres://app:p%zz@db/app", "postgres://app:secret/app", "postgres://app:99999/app", "postgres://db/app?a%zz=1", "postgres://db/app%zz", "postgres://a@db/app#x",
	} {
		if err := checkAddress(s); err == nil {
			t.Errorf("%s is taken", s)
		}
	}
}

// hostilePasswords are where URLs and YAML end, or seem to.
var hostilePasswords = []string{"hunter2", "hun/ter2", "hun@ter2", "hun:ter2", "hun#ter2", "hun?ter2", "hun%zzter2", "hun ter2", "hun,ter2", "hun}ter2", "12/hunter2", "12?hunter2"}

// TestConfigErrorsShowNoPassword: a password in a file must not get into a log by way of an
// error, however the file is wrong.
func TestConfigErrorsShowNoPassword(t *testing.T) {
	for _, word := range hostilePasswords {
		for _, engine := range []string{"postgres", "mysql", "sqlserver", "oracle"} {
			url := engine + "://app:" + word + "@db/app"
			for _, text := range []string{
				"databases: {main: {url: '" + url + "', hots: 1}}",
				"databases: {main: {hots: 1, url: '" + url + "'}}",
				"databases: {main: {hots: 1, url: " + url + "}}",
				"databases:\n  main:\n    url: " + url + "\n    hots: 1",
				"databases:\n  main:\n    url: \"" + url + "\n    hots: 1",
				"databases:\n  main: " + url + "\nhots: 1",
				"databases:\n  main: {url: '" + url + "', host_lease: 1ms}\nhots: 1",
				"databases:\n  main: {url: '" + engine + "://app:" + strings.TrimPrefix(word, "12/") + "/app'}\nhots: 1", // 12/… is a port and a path there
				"databases:\n  main: {url: '" + engine + "://db/app?user=app&password=" + word + "'}\nhots: 1",
				"databases:\n  main: {url: '" + engine + "://app@db/app', password: '" + word + "'}\nhots: 1",
				"databases:\n  main: {url: '" + engine + "://app@db/app', password: '" + word + "'\nhots: 1",
				"databases:\n  main:\n    url: " + engine + "://app@db/app\n    password: " + word + "\nhots: 1",
				"databases:\n  main: {url: '" + word + "'}\nhots: 1",
				"databases:\n  main:\n    \"url\": " + word + "\nhots: 1",
				"databases:\n  main: {url: '${SECRET_URL}', host_lease: '${SECRET}'}\nhots: 1",
				"databases:\n  main: {url: '${SECRET}', max_connections: '${SECRET}', schema: '${SECRET}'}\nhots: 1",
			} {
				_, err := parseConfig("c.yaml", []byte(text+"\n"), func(name string) (string, bool) {
					v, ok := map[string]string{"SECRET": word, "SECRET_URL": url}[name]
					return v, ok
				})
				if err == nil {
					t.Errorf("taken: %s", text)
					continue
				}
				if strings.Contains(err.Error(), "ter2") {
					t.Errorf("%s\nis answered %v", text, err)
				}
			}
		}
	}
}

func TestMaskedLeavesTheRest(t *testing.T) {
	for line, want := range map[string]string{
		`  main: {url: "postgres://app@db/app", host_lease: 1ms}`:   `  main: {url: "postgres://app@db/app", host_lease: 1ms}`,
		`  main: {host_lease: 1ms, url: "postgres://app:x@db/app"}`: `  main: {host_lease: 1ms, url: "postgres://…`,
		`    password_file: /run/secrets/db`:                        `    password_file: /run/secrets/db`,
		`    password: /run/secrets/db`:                             `    password: …`,
		`    url: ${DATABASE}`:                                      `    url: ${DATABASE}`,
		`    url: /var/lib/x.db`:                                    `    url: …`,
		`    url: sqlite:/var/lib/a:b@c`:                            `    url: sqlite:/var/lib/a:b@c`,
		`a database is written sqlite:PATH, postgres://USER@HOST/DATABASE or sqlserver://USER@HOST?database=NAME`: `a database is written sqlite:PATH, postgres://USER@HOST/DATABASE or sqlserver://USER@HOST?database=NAME`,
		`listen: [{socket: /run/q.sock, allow: [{users: [a@corp]}]}]`:                                             `listen: [{socket: /run/q.sock, allow: [{users: [a@corp]}]}]`,
	} {
		if got := maskedLine(line); got != want {
			t.Errorf("%s\nis shown as\n%s\nwant\n%s", line, got, want)
		}
	}
}
