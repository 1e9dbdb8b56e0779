package checks

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func TestCompareHosts(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		hosts []Host
		want  string // part of the only finding; empty: there is none
		is    backends.Severity
	}{
		"one host":               {[]Host{{Address: "a", Cluster: "1", Ahead: time.Hour}}, "", 0},
		"equal":                  {[]Host{{Address: "a", Cluster: "1", Margin: ms}, {Address: "b", Cluster: "1", Ahead: 10 * ms, Margin: ms}}, "at most 12ms apart", backends.SeverityInfo},
		"clocks":                 {[]Host{{Address: "a", Ahead: -100 * ms, Margin: ms}, {Address: "b", Ahead: 202 * ms, Margin: ms}}, "host b is 302ms ahead of that of a", backends.SeverityError},
		"clocks not so exact":    {[]Host{{Address: "a", Ahead: -100 * ms, Margin: ms}, {Address: "b", Ahead: 202 * ms, Margin: 2 * ms}}, "at most 305ms apart", backends.SeverityInfo},
		"not reachable":          {[]Host{{Address: "a"}, {Address: "b", Err: errors.New("refused")}}, "b of the url isn't reachable: refused", backends.SeverityWarning},
		"an unknown cluster":     {[]Host{{Address: "a"}, {Address: "b", Cluster: "1"}}, "apart", backends.SeverityInfo},
		"different clusters":     {[]Host{{Address: "a", Cluster: "1", Ahead: ms}, {Address: "b", Cluster: "2"}}, "a and b of the url are of different clusters (1 and 2)", backends.SeverityError},
		"none of them reachable": {[]Host{{Address: "a", Err: errors.New("refused")}}, "a of the url", backends.SeverityWarning},
	} {
		var e Examination
		e.CompareHosts(c.hosts, HostClocks)
		found := ""
		for _, f := range e.Findings {
			if f.Severity == c.is && strings.Contains(f.Text, c.want) {
				found = f.Text
			}
			if f.Severity > c.is || f.Topic != "cluster" || (f.Severity > 0) != (f.Fix != "") {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if (found != "") != (c.want != "") || c.want == "" && len(e.Findings) > 0 {
			t.Errorf("%s: %+v, want %q", name, e.Findings, c.want)
		}
	}
}
