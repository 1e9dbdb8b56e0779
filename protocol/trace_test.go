package protocol

import (
	"regexp"
	"strings"
	"testing"
)

const aTrace, aParent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

func TestTraceID(t *testing.T) {
	for _, s := range []string{
		"00-" + aTrace + "-" + aParent + "-01", "00-" + aTrace + "-" + aParent + "-00", "00-" + aTrace + "-" + aParent + "-ff",
		"01-" + aTrace + "-" + aParent + "-01", "cc-" + aTrace + "-" + aParent + "-01-what-the-future-will-be-like", "fe-" + aTrace + "-" + aParent + "-01-",
	} {
		if id, ok := TraceID(s); !ok || id != aTrace {
			t.Errorf("%s: %q, %v", s, id, ok)
		}
	}
	good := "00-" + aTrace + "-" + aParent + "-01"
	bad := []string{
		"", "00", good + " ", " " + good, good + "-", good + "-00", "ff" + good[2:], strings.ToUpper(good), strings.Replace(good, "-", "_", 1),
		"00-" + strings.Repeat("0", 32) + "-" + aParent + "-01", "00-" + aTrace + "-" + strings.Repeat("0", 16) + "-01",
		"cc" + good[2:] + ".what", "00-" + aTrace + "-" + aParent + "-0g", "0g" + good[2:], "00-" + aTrace[1:] + "-" + aParent + "-001",
	}
	for i := range good {
		bad = append(bad, good[:i]+"x"+good[i+1:], good[:i]+good[i+1:])
	}
	for _, s := range bad {
		if id, ok := TraceID(s); ok {
			t.Errorf("%q is read as %s", s, id)
		}
	}
}

func TestTraceContext(t *testing.T) {
	long := strings.Repeat("x", MaxTraceState+1)
	for _, c := range []struct {
		headers       map[string]string
		parent, state string
	}{
		{nil, "", ""},
		{map[string]string{"traceparent": "p"}, "p", ""},
		{map[string]string{"traceparent": "p", "tracestate": long[1:]}, "p", long[1:]},
		{map[string]string{"traceparent": "p", "tracestate": long}, "p", ""},
		{map[string]string{"tracestate": "s"}, "", ""},
	} {
		if parent, state := TraceContext(c.headers); parent != c.parent || state != c.state {
			t.Errorf("%v: %q, %q", c.headers, parent, state)
		}
	}
}

// FuzzTraceID compares TraceID with the grammar.
func FuzzTraceID(f *testing.F) {
	f.Add("00-" + aTrace + "-" + aParent + "-01")
	f.Add("cc-" + aTrace + "-" + aParent + "-01-more")
	f.Add("00-" + strings.Repeat("0", 32) + "-" + aParent + "-01")
	f.Add("ff-" + aTrace + "-" + aParent + "-01")
	grammar := regexp.MustCompile(`\A([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}((?s:-.*)?)\z`)
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := TraceID(s)
		m := grammar.FindStringSubmatch(s)
		want := m != nil && m[1] != "ff" && (m[1] != "00" || m[4] == "") && strings.Trim(m[2], "0") != "" && strings.Trim(m[3], "0") != ""
		if ok != want || ok && id != m[2] {
			t.Errorf("%q: %q, %v; want %v", s, id, ok, want)
		}
	})
}
