package config

import (
	"strings"
	"testing"
)

func TestTracesEndpoints(t *testing.T) {
	for text, want := range map[string]string{
		"http://127.0.0.1:4318": "http://127.0.0.1:4318", "https://otel.example.org/otlp/": "https://otel.example.org/otlp", `""`: "",
	} {
		c, err := Parse("c.yaml", []byte("traces: {endpoint: "+text+"}"), noEnv)
		if err != nil || c.Traces.Endpoint != want {
			t.Errorf("%q is read as %q, %v", text, c.Traces.Endpoint, err)
		}
	}
	for text, want := range map[string]string{
		"127.0.0.1:4318":                  "this should be the URL of a collector's OTLP receiver for HTTP",
		"grpc://127.0.0.1:4317":           "this should be the URL",
		"http:///x":                       "this should be the URL",
		"http://user:secret@a":            "the URL must not contain a password",
		"http://a?key=b":                  "the URL must end with its host, port or path",
		"http://127.0.0.1:4318/v1/traces": "the sidecar adds /v1/traces itself",
	} {
		_, err := Parse("c.yaml", []byte("traces: {endpoint: '"+text+"'}"), noEnv)
		if err == nil || !strings.Contains(err.Error(), "traces.endpoint: "+want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
