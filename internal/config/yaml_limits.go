package config

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml/token"
)

// Limits of a YAML file. The YAML parser is recursive, also from key to key of one map, and its
// cost grows with the square of the depth, of the number of keys, and of the length of a line. So
// the limits are checked before it runs.
const (
	maxLine    = 64 << 10  // bytes
	maxDepth   = 16        // brackets, keys and dashes in each other
	maxAliases = 64        // anchors, aliases and tags
	maxEntries = 20_000    // keys of one map, or elements of one list
	maxMarks   = 1_000_000 // characters that can begin or end a token
)

// longLine returns the number of the first line of src that exceeds maxLine; 0: no line does.
func longLine(src string) int {
	n := 0
	for line := range strings.Lines(src) {
		if n++; len(line) > maxLine {
			return n
		}
	}
	return 0
}

// tooManyMarks reports whether the lexer would need too much memory for src.
func tooManyMarks(src string) bool {
	n := 0
	for i := range len(src) {
		switch src[i] {
		case '[', ']', '{', '}', ',', ':', '?', '&', '*', '!', '\n', '\'', '"', '#', '@', '>', '|', '%', '`', '\\':
			n++
		case '-':
			if i+1 < len(src) && (src[i+1] == ' ' || src[i+1] == '\n') {
				n++
			}
		}
	}
	return n > maxMarks
}

// collection is a map or list that contains the token at which the check is.
type collection struct {
	bracket bool // between [ and ], or { and }
	column  int  // of a block's entries; 0 for a key between brackets
	entries int
}

// nesting checks tokens against the limits without recursion.
type nesting struct {
	open      []collection
	anchors   int // anchors, aliases and tags
	lastToken *token.Token
}

// check returns the first token that exceeds a limit, and the reason.
func (n *nesting) check(tokens token.Tokens) (at *token.Token, reason string) {
	for _, tk := range tokens {
		n.add(tk)
		n.lastToken = tk
		switch {
		case len(n.open) > maxDepth:
			return tk, "maps and lists are nested too deep here; a config needs fewer than 10 levels: check the brackets and the indentation"
		case len(n.open) > 0 && n.open[len(n.open)-1].entries > maxEntries:
			return tk, "this map or list has more than 20000 entries: remove some, or run several sidecars"
		case n.anchors > maxAliases:
			return tk, "anchors, aliases and tags are not used in this file: put common settings of queues under defaults"
		}
	}
	return nil, ""
}

func (n *nesting) add(tk *token.Token) {
	switch tk.Type {
	case token.DocumentHeaderType, token.DocumentEndType:
		n.open = n.open[:0]
	case token.SequenceStartType, token.MappingStartType:
		n.open = append(n.open, collection{bracket: true})
	case token.SequenceEndType, token.MappingEndType:
		if n.closeKeys() {
			n.open = n.open[:len(n.open)-1]
		}
	case token.CollectEntryType:
		if n.closeKeys() {
			n.open[len(n.open)-1].entries++
		}
	case token.SequenceEntryType, token.MappingKeyType:
		n.entry(tk.Position.Column)
	case token.MappingValueType:
		column := tk.Position.Column
		if key := n.lastToken; key != nil && key.Type != token.MappingValueType && key.Position.Line == tk.Position.Line {
			column = key.Position.Column
		}
		n.entry(column)
	case token.AnchorType, token.AliasType, token.TagType:
		n.anchors++
	}
}

// closeKeys ends the keys since the last bracket. It returns false if no bracket is open.
func (n *nesting) closeKeys() bool {
	for i, c := range slices.Backward(n.open) {
		if c.bracket {
			n.open = n.open[:i+1]
			return true
		}
	}
	return false
}

// entry adds an entry of a block at that column. Between brackets, each key contains the next
// one up to a comma.
func (n *nesting) entry(column int) {
	last := len(n.open) - 1
	if last >= 0 && (n.open[last].bracket || n.open[last].column == 0) {
		n.open = append(n.open, collection{entries: 1})
		return
	}
	for ; last >= 0 && n.open[last].column > column; last-- {
		n.open = n.open[:last]
	}
	if last < 0 || n.open[last].column < column {
		n.open = append(n.open, collection{column: column})
		last++
	}
	n.open[last].entries++
}
