package config

import (
	"net/url"
	"strings"
)

// Traces is the section `traces`: where the spans of jobs are sent by OpenTelemetry.
type Traces struct {
	Endpoint string `yaml:"endpoint"` // empty: nowhere
}

// tracesPath is what the exporter adds to the endpoint.
const tracesPath = "/v1/traces"

func (t *Traces) check(bad reportFunc) {
	const path = "traces.endpoint"
	if t.Endpoint == "" {
		return
	}
	t.Endpoint = strings.TrimRight(t.Endpoint, "/")
	u, err := url.Parse(t.Endpoint)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		bad(path, "this should be the URL of a collector's OTLP receiver for HTTP, such as http://127.0.0.1:4318")
	case u.User != nil:
		bad(path, "the URL must not contain a password: leave the part before the @ out, and set the environment variable OTEL_EXPORTER_OTLP_HEADERS")
	case u.RawQuery != "" || u.Fragment != "":
		bad(path, "the URL must end with its host, port or path: leave the part from ? or # on out")
	case strings.HasSuffix(u.Path, tracesPath):
		bad(path, "the sidecar adds %s itself: leave it out", tracesPath)
	}
}
