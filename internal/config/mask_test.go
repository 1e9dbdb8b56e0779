package config

import (
	"strings"
	"testing"
)

// hostilePasswords contain characters that end URLs and YAML values, or seem to.
var hostilePasswords = []string{"hunter2", "hun/ter2", "hun@ter2", "hun:ter2", "hun#ter2", "hun?ter2", "hun%zzter2", "hun ter2", "hun,ter2", "hun}ter2", "12/hunter2", "12?hunter2"}

// TestConfigErrorsShowNoPassword checks that no error of a config shows a password.
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
				"databases:\n  main: {url: '" + url + "', sidecar_timeout: 1ms}\nhots: 1",
				"databases:\n  main: {url: '" + engine + "://app:" + strings.TrimPrefix(word, "12/") + "/app'}\nhots: 1", // 12/… is a port and a path there
				"databases:\n  main: {url: '" + engine + "://db/app?user=app&password=" + word + "'}\nhots: 1",
				"databases:\n  main: {url: '" + engine + "://app@db/app', password: '" + word + "'}\nhots: 1",
				"databases:\n  main: {url: '" + engine + "://app@db/app', password: '" + word + "'\nhots: 1",
				"databases:\n  main:\n    url: " + engine + "://app@db/app\n    password: " + word + "\nhots: 1",
				"databases:\n  main:\n    url: " + engine + "://app@db/app\n    kennwort: " + word,
				"databases:\n  main: {url: '" + engine + "://app@db/app', \"kennwort\": '" + word + "', hots: 1}",
				"databases:\n  main: {url: '" + engine + "://app@db/app', passwort: '" + word + "'}\nhots: 1",
				"databases:\n  main: {url: '" + word + "'}\nhots: 1",
				"databases:\n  main: {url: '" + engine + "://app@db/app', replica_url: '" + url + "', hots: 1}",
				"databases:\n  main: {url: 'postgres://app@db/app', replica_url: '" + word + "'}",
				"databases:\n  main:\n    url: postgres://app@db/app\n    replica_url: " + word + "\n    hots: 1",
				"databases:\n  main:\n    \"url\": " + word + "\nhots: 1",
				"databases:\n  main: {url: '${SECRET_URL}', sidecar_timeout: '${SECRET}'}\nhots: 1",
				"databases:\n  main: {url: '${SECRET}', max_connections: '${SECRET}', schema: '${SECRET}'}\nhots: 1",
			} {
				_, err := Parse("c.yaml", []byte(text+"\n"), func(name string) (string, bool) {
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
		`  main: {url: "postgres://app@db/app", sidecar_timeout: 1ms}`:   `  main: {url: "postgres://app@db/app", sidecar_timeout: 1ms}`,
		`  main: {sidecar_timeout: 1ms, url: "postgres://app:x@db/app"}`: `  main: {sidecar_timeout: 1ms, url: "postgres://…`,
		`    password_file: /run/secrets/db`:                             `    password_file: /run/secrets/db`,
		`    password: /run/secrets/db`:                                  `    password: …`,
		`    url: ${DATABASE}`:                                           `    url: ${DATABASE}`,
		`    replica_url: hunter2`:                                       `    replica_url: …`,
		`    url: /var/lib/x.db`:                                         `    url: …`,
		`    url: sqlite:/var/lib/a:b@c`:                                 `    url: sqlite:/var/lib/a:b@c`,
		`a database is written sqlite:PATH, postgres://USER@HOST/DATABASE or sqlserver://USER@HOST?database=NAME`: `a database is written sqlite:PATH, postgres://USER@HOST/DATABASE or sqlserver://USER@HOST?database=NAME`,
		`listen: [{socket: /run/q.sock, allow: [{users: [a@corp]}]}]`:                                             `listen: [{socket: /run/q.sock, allow: [{users: [a@corp]}]}]`,
	} {
		if got := maskedLine(line); got != want {
			t.Errorf("%s\nis shown as\n%s\nwant\n%s", line, got, want)
		}
	}
}
