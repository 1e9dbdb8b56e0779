package permission

import (
	"testing"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

func TestGlobs(t *testing.T) {
	for _, x := range []struct {
		pattern, name string
		want          bool
	}{
		{"mail", "mail", true}, {"mail", "mail2", false}, {"", "", true}, {"*", "", true}, {"*", "a/b", true},
		{"mail-*", "mail-", true}, {"mail-*", "mail-eu/x", true}, {"mail-*", "mail", false},
		{"*-eu", "mail-eu", true}, {"*-eu", "-eu", true}, {"*-eu", "mail-eu2", false},
		{"a*b*c", "abc", true}, {"a*b*c", "aXbYbc", true}, {"a*b*c", "acb", false}, {"ab*ba", "aba", false}, {"a**b", "ab", true},
	} {
		if got := matches(x.pattern, x.name); got != x.want {
			t.Errorf("globs(%q, %q) = %v", x.pattern, x.name, got)
		}
	}
}

func TestRulesByGroup(t *testing.T) {
	p := &unixsocket.Peer{UID: 7, Groups: []uint32{100, 200}}
	for _, x := range []struct {
		rule Rule
		want bool
	}{
		{Rule{}, true}, {Rule{Groups: []uint32{200}}, true}, {Rule{Groups: []uint32{300}}, false},
		{Rule{Users: []uint32{8}, Groups: []uint32{100}}, true}, {Rule{Users: []uint32{8}}, false}, {Rule{Users: []uint32{7}, Groups: []uint32{1}}, true},
	} {
		if x.rule.appliesTo(p) != x.want {
			t.Errorf("%+v fits %v: %v", x.rule, p, !x.want)
		}
	}
}
