package guess

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// The states of a config, in its order.
var order = []backends.State{backends.StateReady, backends.StateClaimed, backends.StateDone, backends.StateDead}

// words are what people call the states.
var words = map[backends.State][]string{
	backends.StateReady:   {"ready", "waiting", "wait", "new", "pending", "queued", "enqueued", "open", "todo", "available", "unprocessed", "created", "scheduled", "n", "w", "q"},
	backends.StateClaimed: {"claimed", "processing", "inprogress", "running", "active", "working", "started", "taken", "locked", "reserved", "busy", "executing", "leased", "a", "b"},
	backends.StateDone:    {"done", "completed", "complete", "finished", "success", "succeeded", "successful", "processed", "ok", "closed", "sent", "handled", "c", "d"},
	backends.StateDead:    {"dead", "error", "failed", "failure", "failing", "aborted", "rejected", "discarded", "exhausted", "e", "x"},
}

// wordFor is the state that people call so; empty: none.
func wordFor(text string) backends.State {
	for _, s := range order {
		if slices.Contains(words[s], plain(text)) {
			return s
		}
	}
	return ""
}

// states tells which value means what.
func (g *guessing) states(s *sample) {
	if g.state.Name == "" {
		return
	}
	values := s.values(g.state.Name)
	if g.state.Kind == backends.BoolColumn {
		if !slices.ContainsFunc(values, func(v *seen) bool { return truth(v.text) == "" }) {
			g.truths()
			return
		}
		g.state.Kind = backends.NumberColumn // by its type's name alone it is a truth
	}
	if len(values) > mostValues {
		g.hint("states", "", "the column %s has %d values or more, which is many for a state: is another one meant?", g.state.Name, len(values))
		values = values[:mostValues]
	}
	listed := g.listed(g.state)
	for _, text := range listed {
		if !slices.ContainsFunc(values, func(v *seen) bool { return v.text == text }) {
			values = append(values, &seen{text: text})
		}
	}
	first := constant(g.state.Given)
	if first != "" && !slices.ContainsFunc(values, func(v *seen) bool { return v.text == first }) {
		values = append(values, &seen{text: first})
	}
	if first != "" {
		g.is(backends.StateReady, first, false, "the column's default%s", rowsOf(values, first, s))
	}
	for _, v := range values {
		if state := wordFor(v.text); g.state.Kind == backends.TextColumn && state != "" {
			g.is(state, v.text, true, "by the word%s", rowsOf(values, v.text, s))
		}
	}
	g.byRows(s, values)
	if g.state.Kind == backends.NumberColumn {
		g.byOrder(s, values)
	}
	g.unsure(s, values)
}

// is says that the value means the state, unless one of the two is known by now.
func (g *guessing) is(state backends.State, text string, guessed bool, format string, args ...any) bool {
	if _, known := g.Table.States[state]; known || g.means(text) != "" {
		return false
	}
	g.Table.States[state] = adopted.Value{Text: text}
	g.note("states."+string(state), guessed, format, args...)
	return true
}

// means is the state that a value was found to mean.
func (g *guessing) means(text string) backends.State {
	for state, v := range g.Table.States {
		if v.Text == text && !v.Null {
			return state
		}
	}
	return ""
}

// rowsOf tells how many rows show a value.
func rowsOf(values []*seen, text string, s *sample) string {
	for _, v := range values {
		if v.text == text && v.rows > 0 {
			return fmt.Sprintf("; %d of the %d rows looked at", v.rows, s.rows)
		}
	}
	return "; no row looked at shows it"
}

// truths: the column says that a job is done, or that it is not.
func (g *guessing) truths() {
	ready, done := "false", "true"
	for _, part := range []string{"pending", "waiting", "active", "open", "ready", "unprocessed", "todo"} {
		if strings.Contains(plain(g.state.Name), part) {
			ready, done = done, ready
		}
	}
	guessed, how := true, "by the column's name"
	if first := constant(g.state.Given); truth(first) == ready {
		guessed, how = false, "the column's default"
	}
	g.is(backends.StateReady, ready, guessed, "%s", how)
	g.is(backends.StateDone, done, true, "by the column's name")
}

// truth is true or false, for what an engine calls so.
func truth(text string) string {
	switch strings.ToLower(text) {
	case "true", "t", "1", "b'1'":
		return "true"
	case "false", "f", "0", "b'0'":
		return "false"
	}
	return ""
}

// byRows tells what a value means by what its rows have, where that says it: rows that
// are done may well show who had them, too.
func (g *guessing) byRows(s *sample, values []*seen) {
	for _, v := range values {
		has := func(role adopted.Role) bool {
			c, ok := g.column(role)
			return ok && 2*v.set[c.Name] > v.rows
		}
		switch said := rowsOf(values, v.text, s); {
		case v.rows == 0:
		case has(adopted.Error):
			g.is(backends.StateDead, v.text, true, "most of its rows have an error%s", said)
		case has(adopted.FinishedAt):
			g.is(backends.StateDone, v.text, true, "most of its rows have a time when they were finished%s", said)
		}
	}
	var taken []*seen
	for _, v := range values {
		if g.taken(v) && g.means(v.text) == "" {
			taken = append(taken, v)
		}
	}
	if len(taken) == 1 {
		g.is(backends.StateClaimed, taken[0].text, true, "most of its rows show who has them, or since when%s", rowsOf(values, taken[0].text, s))
	}
}

// taken: most rows of the value show who has them, or had.
func (g *guessing) taken(v *seen) bool {
	all := []string{g.token.Name}
	for _, role := range []adopted.Role{adopted.Worker, adopted.ClaimedAt} {
		c, _ := g.column(role)
		all = append(all, c.Name)
	}
	return slices.ContainsFunc(all, func(name string) bool { return name != "" && 2*v.set[name] > v.rows })
}

// byOrder: numbers mostly go up by one as a job goes on. A gap says nothing.
func (g *guessing) byOrder(s *sample, values []*seen) {
	by := map[int64]*seen{}
	var least *int64
	for _, v := range values {
		n, err := strconv.ParseInt(v.text, 10, 64)
		if err != nil {
			continue
		}
		if by[n] = v; v.rows > 0 && (least == nil || n < *least) {
			least = &n
		}
	}
	if _, known := g.Table.States[backends.StateReady]; !known && least != nil && (*least == 0 || *least == 1) {
		text := by[*least].text
		g.is(backends.StateReady, text, true, "the least of the numbers%s", rowsOf(values, text, s))
	}
	n, err := strconv.ParseInt(g.Table.States[backends.StateReady].Text, 10, 64)
	if err != nil {
		return
	}
	for _, state := range order[1:3] {
		n++
		v := by[n]
		if v == nil || g.means(v.text) != state && !g.is(state, v.text, true, "the next number%s", rowsOf(values, v.text, s)) {
			return
		}
	}
}

// unsure says which states are not known, and which values mean none.
func (g *guessing) unsure(s *sample, values []*seen) {
	var rest []string
	for _, v := range values {
		if g.means(v.text) == "" {
			rest = append(rest, fmt.Sprintf("%q%s", v.text, rowsOf(values, v.text, s)))
		}
	}
	if n := s.null[g.state.Name]; n > 0 {
		rest = append(rest, fmt.Sprintf("NULL; %d of the %d rows looked at", n, s.rows))
	}
	for _, state := range order {
		if _, known := g.Table.States[state]; known {
			continue
		}
		if has(g, adopted.Attempts) && state == backends.StateDead {
			continue // the attempts say it
		}
		g.hint("states."+string(state), "", "%s", map[backends.State]string{
			backends.StateReady:   "what does " + g.state.Name + " say of a job that waits?",
			backends.StateClaimed: "what does " + g.state.Name + " say of a job that is being worked on?",
			backends.StateDone:    "what does " + g.state.Name + " say of a job that is done? Without one, on_ack has to be delete or an archive",
			backends.StateDead:    "what does " + g.state.Name + " say of a job that failed for good? Without one its row waits again, and only sidecars pass it over",
		}[state])
	}
	if len(rest) > 0 {
		g.hint("states", "", "rows in other states are left alone: %s", strings.Join(rest, ", "))
	}
}

// casts stand behind a constant on PostgreSQL.
var casts = regexp.MustCompile(`(::[a-zA-Z_ "]+(\([0-9, ]*\))?)+$`)

// constant is what an engine's text of a default stands for; empty: an expression.
func constant(given string) string {
	text := casts.ReplaceAllString(strings.Trim(given, "()"), "")
	if quoted := strings.Trim(text, "'"); len(quoted) == len(text)-2 {
		return strings.ReplaceAll(quoted, "''", "'")
	}
	if strings.EqualFold(text, "NULL") || strings.ContainsAny(text, "()'") {
		return ""
	}
	return text
}

// one is a literal in a CHECK condition.
var one = regexp.MustCompile(`\\?'((?:[^'\\]|'')*)\\?'|-?\b[0-9]+\b`)

// listed are the values that a column's type or a CHECK condition allows.
func (g *guessing) listed(c backends.Column) (all []string) {
	if c.Values != nil {
		return c.Values
	}
	list := regexp.MustCompile(`(?i)(?:^|[^a-z0-9_])` + regexp.QuoteMeta(c.Name) + "[\"`\\])]*(?:::[a-z ]+)?\\)*\\s*(?:=\\s*ANY\\s*\\(+\\s*ARRAY\\s*\\[|IN\\s*\\()([^)\\]]*)")
	for _, check := range g.Info.Checks {
		m := list.FindStringSubmatch(check)
		if m == nil {
			continue
		}
		for _, v := range one.FindAllStringSubmatch(m[1], -1) {
			text := strings.ReplaceAll(v[1], "''", "'")
			if v[1] == "" {
				text = strings.Trim(v[0], `\'`)
			}
			all = append(all, text)
		}
	}
	return all
}
