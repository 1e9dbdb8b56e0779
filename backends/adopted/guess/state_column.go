package guess

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// The weights of the signs that a column is the state. Listed values that are common names of states
// outweigh the best name alone: a column `state` can be part of an address.
const (
	exactName   = 100 // less its rank among the names
	partName    = 70
	truthName   = 40
	listsStates = 150 // its type or a CHECK lists common names of states
	listsValues = 10
	defaultWord = 10 // its default is such a name
	inIndex     = 5
)

// stateCandidate is a column that can be the state.
type stateCandidate struct {
	backends.Column
	weight int
	listed bool
	why    string // what made it a candidate, if not its name
}

// findStateColumn finds the column that shows a job's state: by its name, the values that its type
// or a CHECK lists, its default and its index. Columns with times or too many values are
// excluded.
func (g *guesser) findStateColumn(ctx context.Context) error {
	var all []stateCandidate
	candidates := columns{info: g.Info}
	for _, c := range g.Info.Columns {
		if candidate := g.weighState(c); candidate.weight > 0 {
			all, candidates.values = append(all, candidate), append(candidates.values, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	s, err := takeSample(ctx, g.engine, candidates)
	if err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b stateCandidate) int { return b.weight - a.weight })
	all = slices.DeleteFunc(all, func(c stateCandidate) bool {
		return slices.ContainsFunc(s.values(c.Name), func(v *value) bool { return timeValue.MatchString(v.text) })
	})
	if len(all) == 0 {
		return nil
	}
	few := slices.IndexFunc(all, func(c stateCandidate) bool { return c.listed || len(s.values(c.Name)) <= mostValues })
	best := all[max(few, 0)] // stateValues asks about one with too many values
	g.state = best.Column
	g.assign(mapping.State, best.Column)
	if best.why != "" {
		g.note("columns.state", true, "%s", best.why)
	}
	return nil
}

func (g *guesser) weighState(c backends.Column) (s stateCandidate) {
	s.Column = c
	if g.used[c.Name] || c.Generated || !slices.Contains(stateNames.kinds, c.Kind) || g.times[c.Name] != notTime || timeName.MatchString(c.Name) {
		return s
	}
	rank, exact := stateNames.rank(c.Name)
	switch truthRank, _ := truthNames.rank(c.Name); {
	case exact:
		s.weight = exactName - rank
	case rank >= 0:
		s.weight = partName - (rank - len(stateNames.exact))
	case c.Kind == backends.BoolColumn && truthRank >= 0:
		s.weight = truthName
	}
	if s.weight == 0 {
		s.why = "from the values that it can have"
	}
	if list := g.listedValues(c); len(list) > 1 && len(list) <= mostValues {
		s.listed = true
		known := map[backends.State]bool{}
		for _, text := range list {
			known[stateNamed(text)] = true
		}
		delete(known, "")
		switch {
		case len(known) > 1 && c.Kind == backends.TextColumn:
			s.weight += listsStates
		case s.weight > 0:
			s.weight += listsValues
		}
	}
	if s.weight == 0 {
		return s
	}
	if stateNamed(defaultOf(c)) == backends.StateReady && c.Kind == backends.TextColumn {
		s.weight += defaultWord
	}
	if slices.ContainsFunc(g.Info.Indexes, func(x backends.Index) bool {
		return slices.ContainsFunc(x.Columns, func(i backends.IndexColumn) bool { return i.Name == c.Name })
	}) {
		s.weight += inIndex
	}
	return s
}

// timeName matches the names of columns with times.
var timeName = regexp.MustCompile(`(?i:date|time|timestamp|_at|_on|_dt|_ts)$|[a-z](At|On|Dt)$`)

// timeValue matches a date, or a number of seconds since 1970 of this century.
var timeValue = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}|^[0-9]{9,}(\.[0-9]+)?$`)

// typeCasts stand behind a constant on PostgreSQL.
var typeCasts = regexp.MustCompile(`(::[a-zA-Z_ "]+(\([0-9, ]*\))?)+$`)

// defaultOf is the constant that is a column's default; empty: it has none, or an expression.
func defaultOf(c backends.Column) string {
	text := typeCasts.ReplaceAllString(strings.Trim(c.Given, "()"), "")
	if quoted := strings.Trim(text, "'"); len(quoted) == len(text)-2 {
		return strings.ReplaceAll(quoted, "''", "'")
	}
	if strings.EqualFold(text, "NULL") || strings.ContainsAny(text, "()'") {
		return ""
	}
	return text
}

// literal matches a literal in a CHECK condition.
var literal = regexp.MustCompile(`\\?'((?:[^'\\]|'')*)\\?'|-?\b[0-9]+\b`)

// listedValues are the values that a column's type or a CHECK condition allows.
func (g *guesser) listedValues(c backends.Column) (all []string) {
	if c.Values != nil {
		return c.Values
	}
	list := regexp.MustCompile(`(?i)(?:^|[^a-z0-9_])` + regexp.QuoteMeta(c.Name) + "[\"`\\])]*(?:::[a-z ]+)?\\)*\\s*(?:=\\s*ANY\\s*\\(+\\s*ARRAY\\s*\\[|IN\\s*\\()([^)\\]]*)")
	for _, check := range g.Info.Checks {
		m := list.FindStringSubmatch(check)
		if m == nil {
			continue
		}
		for _, v := range literal.FindAllStringSubmatch(m[1], -1) {
			text := strings.ReplaceAll(v[1], "''", "'")
			if v[1] == "" {
				text = strings.Trim(v[0], `\'`)
			}
			all = append(all, text)
		}
	}
	return all
}
