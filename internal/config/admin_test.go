package config

import (
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
	} {
		if _, err := Parse("c.yaml", []byte(text), noEnv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
