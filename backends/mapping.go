package backends

import (
	"fmt"
	"strings"
)

// Mapping names the table and the columns that hold the jobs. Statements are written once, with roles in
// braces, and rendered with a Mapping. The managed table has one such mapping, an adopted table has another.
type Mapping struct {
	Table   string
	Columns map[string]string // role → column
	States  map[State]string  // state → its value in the state column
	Indexes map[string]string // role → an index that a statement must use; can be empty
}

// Quoting is how an engine writes names, texts and hints. Every name in a statement goes through Name: nothing
// else quotes.
type Quoting struct {
	Name func(identifier string) string
	Text func(literal string) string
	Use  func(index string) string // the clause after a table's name that makes a query use an index
}

// Render replaces each role of a statement: {jobs} by the table, {column} by the column of that role, {=state}
// by the state's value, and {@index} by the clause that names the index, or by nothing if the mapping has none.
// An unknown role is an error that names it.
func (m Mapping) Render(d Quoting, statement string) (string, error) {
	var out strings.Builder
	rest := statement
	for {
		before, after, found := strings.Cut(rest, "{")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		role, tail, closed := strings.Cut(after, "}")
		if !closed {
			return "", fmt.Errorf("statement %q: a brace is not closed", statement)
		}
		text, err := m.fill(d, role)
		if err != nil {
			return "", fmt.Errorf("statement %q: %w", statement, err)
		}
		out.WriteString(text)
		rest = tail
	}
}

func (m Mapping) fill(d Quoting, role string) (string, error) {
	switch {
	case role == "jobs":
		return d.Name(m.Table), nil
	case strings.HasPrefix(role, "="):
		if v, ok := m.States[State(role[1:])]; ok {
			return d.Text(v), nil
		}
	case strings.HasPrefix(role, "@"):
		if v, ok := m.Indexes[role[1:]]; ok {
			return d.Use(v), nil
		}
		return "", nil
	default:
		if v, ok := m.Columns[role]; ok {
			return d.Name(v), nil
		}
	}
	return "", fmt.Errorf("table %s has nothing in the role %q", m.Table, role)
}
