package guess

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// states are those that a config names, in its order.
var states = []backends.State{backends.StateReady, backends.StateClaimed, backends.StateDone, backends.StateDead}

// stateWords are common names of the states.
var stateWords = map[backends.State][]string{
	backends.StateReady:   {"ready", "waiting", "wait", "new", "pending", "queued", "enqueued", "open", "todo", "available", "unprocessed", "created", "scheduled", "n", "w", "q"},
	backends.StateClaimed: {"claimed", "processing", "inprogress", "running", "doing", "active", "working", "started", "taken", "locked", "reserved", "busy", "executing", "leased", "a", "b"},
	backends.StateDone:    {"done", "completed", "complete", "finished", "success", "succeeded", "successful", "processed", "ok", "closed", "sent", "handled", "c", "d"},
	backends.StateDead:    {"dead", "error", "failed", "failure", "failing", "aborted", "rejected", "discarded", "exhausted", "e", "x"},
}

// stateQuestions ask for the values of states that were not found, of a column.
var stateQuestions = map[backends.State]string{
	backends.StateReady:   "which value of %s marks a job as ready?",
	backends.StateClaimed: "which value of %s marks a job as claimed?",
	backends.StateDone:    "which value of %s marks a job as done? If there is none, set on_ack to delete or to an archive",
	backends.StateDead:    "which value of %s marks a job as dead, because it has no attempts left? If there is none, its row stays ready and only sidecars skip it",
}

// stateNamed is the state with that common name; empty: none.
func stateNamed(text string) backends.State {
	for _, s := range states {
		if slices.Contains(stateWords[s], plain(text)) {
			return s
		}
	}
	return ""
}

// stateValues finds the states that the values of the state column stand for.
func (g *guesser) stateValues(s *sample) {
	if g.state.Name == "" {
		return
	}
	values := s.values(g.state.Name)
	if g.state.Kind == backends.BoolColumn {
		if !slices.ContainsFunc(values, func(v *value) bool { return truth(v.text) == "" }) {
			g.truthValues()
			return
		}
		g.state.Kind = backends.NumberColumn // it is a boolean by its type's name alone
	}
	if len(values) > mostValues {
		g.hint("states", "", "the column %s has at least %d different values, which is many for a state: does another column show the state?", g.state.Name, len(values))
		values = values[:mostValues]
	}
	initial := defaultOf(g.state)
	for _, text := range append(slices.Clone(g.listedValues(g.state)), initial) {
		if text != "" && !slices.ContainsFunc(values, func(v *value) bool { return v.text == text }) {
			values = append(values, &value{text: text})
		}
	}
	if initial != "" {
		g.setState(backends.StateReady, initial, false, "the column's default%s", rowsOf(values, initial, s))
	}
	for _, v := range values {
		if state := stateNamed(v.text); g.state.Kind == backends.TextColumn && state != "" {
			g.setState(state, v.text, true, "from the value's name%s", rowsOf(values, v.text, s))
		}
	}
	g.statesByRows(s, values)
	if g.state.Kind == backends.NumberColumn {
		g.statesByNumber(s, values)
	}
	g.unknownStates(s, values)
}

// setState gives the state that value, unless one of the two is known already.
func (g *guesser) setState(state backends.State, text string, guessed bool, format string, args ...any) bool {
	if _, known := g.Table.States[state]; known || g.meaning(text) != "" {
		return false
	}
	g.Table.States[state] = mapping.Value{Text: text}
	g.note("states."+string(state), guessed, format, args...)
	return true
}

// meaning is the state that a value stands for; empty: it is unknown.
func (g *guesser) meaning(text string) backends.State {
	for state, v := range g.Table.States {
		if v.Text == text && !v.Null {
			return state
		}
	}
	return ""
}

// rowsOf is how many rows have a value, for people.
func rowsOf(values []*value, text string, s *sample) string {
	for _, v := range values {
		if v.text == text && v.rows > 0 {
			return fmt.Sprintf(" (%d of %d sampled rows)", v.rows, s.rows)
		}
	}
	return " (no sampled row has it)"
}

// truthValues finds whether true means ready or done.
func (g *guesser) truthValues() {
	ready, done := "false", "true"
	for _, part := range []string{"pending", "waiting", "active", "open", "ready", "unprocessed", "todo"} {
		if strings.Contains(plain(g.state.Name), part) {
			ready, done = done, ready
		}
	}
	guessed, how := true, fromName
	if truth(defaultOf(g.state)) == ready {
		guessed, how = false, "the column's default"
	}
	g.setState(backends.StateReady, ready, guessed, "%s", how)
	g.setState(backends.StateDone, done, true, fromName)
}

// truth is true or false for how an engine writes a boolean, a MySQL BIT among them; else it is
// empty.
func truth(text string) string {
	return mapping.Truth(strings.TrimSuffix(strings.TrimPrefix(text, "b'"), "'"))
}

// statesByRows finds the meaning of a value by what most of its rows have. Rows that are done can
// still show which worker had them.
func (g *guesser) statesByRows(s *sample, values []*value) {
	var claimed []*value
	for _, v := range values {
		has := func(role mapping.Role) bool {
			c, _ := g.column(role)
			return 2*v.set[c.Name] > v.rows
		}
		switch rows := rowsOf(values, v.text, s); {
		case v.rows == 0:
		case has(mapping.Error):
			g.setState(backends.StateDead, v.text, true, "most rows with this value have an error%s", rows)
		case has(mapping.FinishedAt):
			g.setState(backends.StateDone, v.text, true, "most rows with this value have a finish time%s", rows)
		}
		if has(mapping.Worker) || has(mapping.ClaimedAt) || 2*v.set[g.token.Name] > v.rows {
			claimed = append(claimed, v)
		}
	}
	claimed = slices.DeleteFunc(claimed, func(v *value) bool { return g.meaning(v.text) != "" })
	if len(claimed) == 1 {
		g.setState(backends.StateClaimed, claimed[0].text, true, "most rows with this value have a worker, a claim time or a token%s", rowsOf(values, claimed[0].text, s))
	}
}

// statesByNumber finds the meaning of numbers: they mostly go up by one from state to state. After
// a gap it stops.
func (g *guesser) statesByNumber(s *sample, values []*value) {
	by := map[int64]*value{}
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
		g.setState(backends.StateReady, text, true, "the lowest number%s", rowsOf(values, text, s))
	}
	n, err := strconv.ParseInt(g.Table.States[backends.StateReady].Text, 10, 64)
	if err != nil {
		return
	}
	for _, state := range []backends.State{backends.StateClaimed, backends.StateDone} {
		n++
		v := by[n]
		if v == nil || g.meaning(v.text) != state && !g.setState(state, v.text, true, "the number after the previous state's%s", rowsOf(values, v.text, s)) {
			return
		}
	}
}

// unknownStates lists the states without a value, and the values without a state.
func (g *guesser) unknownStates(s *sample, values []*value) {
	var rest []string
	for _, v := range values {
		if g.meaning(v.text) == "" {
			rest = append(rest, fmt.Sprintf("%q%s", v.text, rowsOf(values, v.text, s)))
		}
	}
	if n := s.null[g.state.Name]; n > 0 {
		rest = append(rest, fmt.Sprintf("NULL (%d of %d sampled rows)", n, s.rows))
	}
	for _, state := range states {
		_, known := g.Table.States[state]
		if !known && !(state == backends.StateDead && g.has(mapping.Attempts)) { // the attempts show the dead
			g.hint("states."+string(state), "", stateQuestions[state], g.state.Name)
		}
	}
	if len(rest) > 0 {
		g.hint("states", "", "sidecars ignore rows with other states: %s", strings.Join(rest, ", "))
	}
}
