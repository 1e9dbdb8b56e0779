package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestYAMLIsBounded checks that a file that the YAML parser can't parse in bounded memory and
// time is rejected before the parse, with the line.
func TestYAMLIsBounded(t *testing.T) {
	const n, wide = 30_000, 10_000 // entries; characters of a line
	keys := func(format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	stairs := func() string {
		var b strings.Builder
		for i := range 1000 {
			b.WriteString(strings.Repeat(" ", i) + "a:\n")
		}
		return b.String()
	}
	for name, x := range map[string]struct{ text, want string }{
		"lists":                  {"listen:\n" + strings.Repeat("[", wide), "c.yaml:2:16: maps and lists are nested too deep"},
		"closed lists":           {strings.Repeat("[", wide) + strings.Repeat("]", wide), "c.yaml:1:17: maps"},
		"lists on lines":         {strings.Repeat("[\n", n), "c.yaml:17:1: maps"},
		"maps":                   {"queues:\n " + strings.Repeat("{a: ", wide), "c.yaml:2:32: maps"},
		"keys in brackets":       {"[" + strings.Repeat("a: ", wide), "c.yaml:1:48: maps"},
		"colons in brackets":     {"[" + strings.Repeat(": ", wide), "c.yaml:1:32: maps"},
		"question marks":         {strings.Repeat("? ", wide), "c.yaml:1:33: maps"},
		"bracketed questions":    {"[" + strings.Repeat("? ", wide), "c.yaml:1:32: maps"},
		"dashes":                 {strings.Repeat("- ", wide), "c.yaml:1:33: maps"},
		"keys on a line":         {strings.Repeat("a: ", wide), "c.yaml:1:50: maps"},
		"colons":                 {strings.Repeat(": ", wide), "c.yaml:1:33: maps"},
		"deeper and deeper":      {stairs(), "c.yaml:17:"},
		"tags":                   {"a: " + strings.Repeat("!a ", wide), "c.yaml:1:132: anchors, aliases and tags are not used"},
		"anchors":                {"a: " + strings.Repeat("&a ", wide), "c.yaml:1:196: anchors"},
		"aliases":                {"a: " + strings.Repeat("*a ", wide), "c.yaml:1:196: anchors"},
		"keys":                   {keys("k%d: 1\n"), "c.yaml:20001:"},
		"keys without values":    {"queues:\n" + keys("  k%d:\n"), "c.yaml:20002:"},
		"keys of a flow map":     {"{" + keys("k%d: 1,\n") + "}", "c.yaml:20001:"},
		"elements":               {keys("- %d\n"), "c.yaml:20001:1: this map or list has more than 20000 entries"},
		"elements in brackets":   {"[" + keys("%d,\n") + "]", "c.yaml:20001:6: this"},
		"more than can be lexed": {"[" + strings.Repeat("1,\n", 500_000), "c.yaml: the file has more than 1000000"},
		"a long line":            {"a: 1\nb: " + strings.Repeat("x", 64<<10), "c.yaml:2:1: this line has more than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("c.yaml", []byte(x.text), noEnv)
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%.300v\nwant %s", err, x.want)
			}
			if text := fmt.Sprint(err); len(text) > 2000 {
				t.Errorf("the error has %d bytes", len(text))
			}
		})
	}
}

// TestYAMLWithinItsLimits checks that the limits leave a large config alone.
func TestYAMLWithinItsLimits(t *testing.T) {
	var b strings.Builder
	b.WriteString("# [[[[[[ {{{{{{\nqueues:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "  q%d: {max_attempts: 3, backoff: {initial: 1s, max: 1m}}\n  r%d:\n    # - - - - - -\n    max_attempts: 3\n    backoff:\n      initial: 1s\n", i, i)
	}
	b.WriteString("  'brackets':\n    error_text: \"" + strings.Repeat("[", 1000) + "\"\n")
	_, err := Parse("c.yaml", []byte(b.String()), noEnv)
	if problems := Problems(err); len(problems) != 1 || !strings.Contains(problems[0], `unknown key "error_text"`) {
		t.Errorf("%.500v, want only the unknown key", err)
	}
}
