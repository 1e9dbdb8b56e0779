package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAdminAddresses(t *testing.T) {
	for text, want := range map[string]adminAddress{
		"": "", "9464": "127.0.0.1:9464", ":9464": "127.0.0.1:9464", "0.0.0.0:9464": "0.0.0.0:9464", "[::1]:9": "[::1]:9",
		"localhost:9": "localhost:9", "/run/a.sock": "/run/a.sock", "./a": "./a",
	} {
		var got adminAddress
		if err := got.parse(text); err != nil || got != want {
			t.Errorf("%q is read as %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"localhost", "99999", "a:b:c", "1.2.3.4", "::1:9464", "9464x", "-1"} {
		var got adminAddress
		if err := got.parse(text); err == nil {
			t.Errorf("%q is read as %q", text, got)
		}
	}
	for place, want := range map[adminAddress]bool{"": false, "127.0.0.1:1": false, "[::1]:1": false, "localhost:1": false, "/run/a": false,
		"0.0.0.0:1": true, "[::]:1": true, "10.0.0.1:1": true, "example.org:1": true} {
		if place.isPublic() != want {
			t.Errorf("%q is open: %v, want %v", place, place.isPublic(), want)
		}
	}
}

func TestAdminConfigErrors(t *testing.T) {
	for text, want := range map[string]string{
		"admin: {listen: nowhere}":                            "admin.listen: \"nowhere\" is not an address",
		"admin: {pprof: on}":                                  "admin.pprof: it needs an admin.listen",
		"admin: {port: 1}":                                    "unknown key \"port\"",
		"listen: [{socket: /a/b}]\nadmin: {listen: /a/b}":     "admin.listen: /a/b is a socket that workers connect to",
		"admin: {listen: /a, mode: '0999'}":                   "admin.mode",
		"admin: {listen: 9464, pprof: maybe}":                 "admin.pprof: it must be on or off",
		"admin:\n  listen: 9464\n  listen: 9465\n  pprof: on": "listen",
		"admin: {listen: 9464, access: write}":                "admin.access: changes need a token: set admin.token_file or admin.users",
		"admin: {listen: 9464, access: all}":                  "admin.access: \"all\" is not one of off, read, write",
		"admin: {listen: 9464, payloads: some}":               "admin.payloads: \"some\" is not one of show, hide",
		"admin: {listen: '0.0.0.0:9464'}":                     "admin.listen: other hosts can reach 0.0.0.0:9464",
		"admin: {base_url: 'https://ops.example'}":            "admin.base_url: it needs an admin.listen",
		"admin: {listen: 9464, base_url: ops.example}":        "admin.base_url: \"ops.example\" is not an http or https URL",
	} {
		if _, err := Parse("c.yaml", []byte(text), noEnv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestAdminIsAccepted(t *testing.T) {
	for _, text := range []string{
		"admin: {listen: '0.0.0.0:9464', access: off}",
		"admin: {listen: '0.0.0.0:9464', token_file: /t}",
		"admin: {listen: '0.0.0.0:9464', token_file: /t, access: write, payloads: hide}",
		"admin: {listen: /a, access: read}",
	} {
		if _, err := Parse("c.yaml", []byte(text), noEnv); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReadToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for text, want := range map[string]string{
		"0123456789abcdef\n": "", "  0123456789abcdef": "", "": "at least 16", "0123456789abcde\n": "at least 16",
		"0123456789abcdef 0": "without spaces", "0123456789abcdef\n0": "one line", "0123456789abcdefä": "ASCII",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tokens, err := Admin{TokenFile: file}.ReadTokens()
		token := tokens[""]
		if want == "" && (err != nil || token != "0123456789abcdef") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %q, %v; want %q", text, token, err, want)
		}
	}
	if _, err := (Admin{TokenFile: file + "x"}).ReadTokens(); err == nil || !strings.Contains(err.Error(), "admin.token_file cannot be read") {
		t.Errorf("a missing file: %v", err)
	}
}

// TestUsers checks the names of users and their tokens.
func TestUsers(t *testing.T) {
	dir := t.TempDir()
	for name, token := range map[string]string{"ada": "token-of-ada-0123", "bob": "token-of-bob-0123", "eve": "token-of-ada-0123", "short": "short"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		users []string
		want  string // an error; empty: none
	}{
		{[]string{"ada", "bob"}, ""}, {[]string{"ada", "eve"}, "admin.users.eve: another user has the same token"},
		{[]string{"ada", "short"}, "admin.users.short: "}, {[]string{"missing"}, "admin.users.missing cannot be read"},
	} {
		a := Admin{Users: map[string]string{}}
		for _, name := range c.users {
			a.Users[name] = filepath.Join(dir, name)
		}
		tokens, err := a.ReadTokens()
		if c.want == "" && (err != nil || len(tokens) != 2 || tokens["bob"] != "token-of-bob-0123") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, %v; want %q", c.users, tokens, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"admin: {listen: 9464, access: write, users: {ada: /t}}": "", "admin: {listen: '0.0.0.0:9464', users: {ada@example.com: /t}}": "",
		"admin: {listen: 9464, users: {'a da': /t}}": "is not a user's name", "admin: {listen: 9464, users: {ada: ''}}": "the path of a file with a token",
	} {
		if _, err := Parse("c.yaml", []byte(text), noEnv); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

func TestBaseURL(t *testing.T) {
	for text, want := range map[string][2]string{ // origin, prefix
		"": {"", ""}, "https://ops.example": {"https://ops.example", ""}, "https://Ops.Example/": {"https://ops.example", ""},
		"https://ops.example:443/qsidecar/": {"https://ops.example", "/qsidecar"}, "http://ops.example:80": {"http://ops.example", ""},
		"http://ops.example:443/a/B.c": {"http://ops.example:443", "/a/B.c"}, "https://[::1]:8443/q": {"https://[::1]:8443", "/q"},
		"https://ops.example:/queues": {"https://ops.example", "/queues"},
	} {
		var b baseURL
		if err := b.parse(text); err != nil || b.Origin() != want[0] || b.Prefix() != want[1] {
			t.Errorf("%q: origin %q, prefix %q, %v; want %q", text, b.Origin(), b.Prefix(), err, want)
		}
	}
	for _, text := range []string{"ops.example", "/qsidecar", "ftp://ops.example", "https://", "https://:443", "https://ada@ops.example", "https://ops.example/?q", "https://ops.example?",
		"https://ops.example/#", "https://ops.example/a//b", "https://ops.example/../a", "https://ops.example/a%2Fb", "https://ops.example/ä", "https://öps.example",
		"https://ops.example/queue", "https://ops.example/api/qsidecar", "https://ops.example:x"} {
		var b baseURL
		if err := b.parse(text); err == nil {
			t.Errorf("%q is read as %q", text, b)
		}
	}
}
