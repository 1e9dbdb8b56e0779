package diagnose

import (
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// token matches what can contain a parenthesis that isn't one: texts, names and comments.
var token = regexp.MustCompile(`^(?s:'(?:[^']|'')*'|"(?:[^"]|"")*"|` + "`(?:[^`]|``)*`" + `|\[[^]]*\]|--[^\n]*|/\*.*?\*/|[A-Za-z_][A-Za-z0-9_$]*)`)

// tokens splits SQL into names, texts, comments, and single other characters.
func tokens(sql string) (all []string) {
	for sql != "" {
		t := token.FindString(sql)
		if t == "" {
			t = sql[:1]
		}
		all, sql = append(all, t), sql[len(t):]
	}
	return all
}

// checksOf returns the CHECKs of a CREATE TABLE. SQLite's catalogue has only its text.
func checksOf(sql string) (found []backends.Constraint) {
	all := tokens(sql)
	for i := 0; i < len(all); i++ {
		if !strings.EqualFold(all[i], "CHECK") {
			continue
		}
		condition, end := parenthesized(all, i+1)
		if condition == "" {
			continue
		}
		k := backends.Constraint{Kind: backends.CheckConstraint, Text: condition, Name: "CHECK (" + strings.Join(strings.Fields(condition), " ") + ")"}
		before := slices.DeleteFunc(slices.Clone(all[:i]), func(t string) bool { return strings.TrimSpace(t) == "" })
		if n := len(before); n >= 2 && strings.EqualFold(before[n-2], "CONSTRAINT") {
			k.Name = strings.Trim(before[n-1], "\"`[]'")
		}
		found, i = append(found, k), end
	}
	return found
}

// computedOf is the expression of a generated column of a CREATE TABLE; empty: it wasn't found.
func computedOf(sql, column string) string {
	all := tokens(sql)
	depth, mine := 0, false
	for i, t := range all {
		switch {
		case t == "(":
			depth++
		case t == ")":
			depth--
		case t == "," && depth == 1:
			mine = false
		case depth == 1 && mine && strings.EqualFold(t, "AS"):
			text, _ := parenthesized(all, i+1)
			return text
		case depth == 1 && strings.EqualFold(strings.Trim(t, "\"`[]"), column):
			mine = true
		}
	}
	return ""
}

// parenthesized is the text in the parentheses that begin at or after the token; empty: none begin there.
func parenthesized(all []string, at int) (text string, end int) {
	depth, from := 0, 0
	for i := at; i < len(all); i++ {
		switch all[i] {
		case "(":
			if depth++; depth == 1 {
				from = i + 1
			}
		case ")":
			if depth--; depth == 0 {
				return strings.Join(all[from:i], ""), i
			}
		default:
			if depth == 0 && strings.TrimSpace(all[i]) != "" {
				return "", at
			}
		}
	}
	return "", at
}

// addKey adds a row about a column of a foreign key: the key's id, the column, the other table, and the column there. A
// column that isn't named is that of the primary key.
func (x *Engine) addKey(info *backends.TableInfo, kind backends.ConstraintKind, r []string, cascades bool) {
	name := x.Dialect().Name
	k := backends.Constraint{Kind: kind, Name: "FOREIGN KEY of " + r[1] + " to " + r[2], Table: x.Dialect().Table("main", r[2]), Cascades: cascades}
	if kind == backends.ReferencedBy {
		k.Name = "FOREIGN KEY of " + r[2] + "." + r[3]
	}
	if r[1] == "" || r[3] == "" {
		return // the other table's primary key isn't looked up
	}
	k.Columns, k.Others = []string{name(r[1])}, []string{name(r[3])}
	info.Constraints = append(info.Constraints, k)
}

// addKey adds a unique index to the constraints.
func (i *index) addKey(info *backends.TableInfo, name func(string) string) {
	if !i.unique || slices.ContainsFunc(info.Unique, func(key []string) bool {
		return len(key) == len(i.Columns) && key[0] == i.Columns[0].Name && i.sql == ""
	}) {
		return
	}
	k := backends.Constraint{Kind: backends.UniqueKey, Name: i.Name, Text: i.Only}
	if all := tokens(i.sql); i.expression {
		at := slices.Index(all, "(")
		text, _ := parenthesized(all, max(at, 0))
		k.Columns = []string{text}
		if strings.Contains(text, ",") || text == "" {
			return // several parts, of which some are expressions
		}
	} else {
		for _, c := range i.Columns {
			k.Columns = append(k.Columns, name(c.Name))
		}
	}
	info.Constraints = append(info.Constraints, k)
}
