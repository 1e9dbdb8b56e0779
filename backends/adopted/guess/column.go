package guess

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// What speaks for a column as the state, by weight. Listed values that people call states outweigh
// the best name alone: a column `state` may be of an address.
const (
	exactName = 100 // less its rank among the names
	partName  = 70
	truthName = 40
	listWords = 150 // its type or a CHECK lists values that people call states
	listOnly  = 10
	wordGiven = 10 // its default is one
	inIndex   = 5
)

// stateLike is a column that may be the state.
type stateLike struct {
	backends.Column
	weight int
	listed bool
	why    string // what speaks for it beside its whole name
}

// stateColumn finds the column that says a job's state: by its name, the values that its type
// or a CHECK lists, its default and its index. One that holds times, or too many values, is none.
func (g *guessing) stateColumn(ctx context.Context, engine adopted.Adopter) error {
	var all []stateLike
	ask := asking{info: g.Info}
	for _, c := range g.Info.Columns {
		if like := g.likeState(c); like.weight > 0 {
			all, ask.values = append(all, like), append(ask.values, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	s, err := look(ctx, engine, ask)
	if err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b stateLike) int { return b.weight - a.weight })
	all = slices.DeleteFunc(all, func(c stateLike) bool { return holdsTimes(s.values(c.Name)) })
	few := slices.IndexFunc(all, func(c stateLike) bool { return c.listed || len(s.values(c.Name)) <= mostValues })
	if len(all) == 0 {
		return nil
	}
	best := all[max(few, 0)] // one with too many values is shown with a question
	g.state = best.Column
	g.take(adopted.State, best.Column)
	if best.why != "" {
		g.note("columns.state", true, "%s", best.why)
	}
	return nil
}

func (g *guessing) likeState(c backends.Column) (like stateLike) {
	like.Column = c
	if g.used[c.Name] || c.Generated || !slices.Contains(stateNames.kinds, c.Kind) || g.times[c.Name] != notTime || timeName.MatchString(c.Name) {
		return like
	}
	name := plain(c.Name)
	part := func(part string) bool { return strings.Contains(name, part) }
	if rank := slices.Index(stateNames.exact, name); rank >= 0 {
		like.weight = exactName - rank
	} else if rank := slices.IndexFunc(stateNames.parts, part); rank >= 0 {
		like.weight = partName - rank
	} else if c.Kind == backends.BoolColumn && (slices.Contains(truthNames.exact, name) || slices.ContainsFunc(truthNames.parts, part)) {
		like.weight = truthName
	}
	byName := like.weight
	if list := g.listed(c); len(list) > 1 && len(list) <= mostValues {
		like.listed = true
		known := map[backends.State]bool{}
		for _, text := range list {
			known[wordFor(text)] = true
		}
		delete(known, "")
		switch {
		case len(known) > 1 && c.Kind == backends.TextColumn:
			like.weight += listWords
		case byName > 0:
			like.weight += listOnly
		}
	}
	if first := constant(c.Given); like.weight > 0 && wordFor(first) == backends.StateReady && c.Kind == backends.TextColumn {
		like.weight += wordGiven
	}
	if like.weight > 0 && slices.ContainsFunc(g.Info.Indexes, func(x backends.Index) bool {
		return slices.ContainsFunc(x.Columns, func(i backends.IndexColumn) bool { return i.Name == c.Name })
	}) {
		like.weight += inIndex
	}
	if byName == 0 {
		like.why = "by the values that it may have"
	}
	return like
}

// timeName is a column's that says when, not how far.
var timeName = regexp.MustCompile(`(?i:date|time|timestamp|_at|_on|_dt|_ts)$|[a-z](At|On|Dt)$`)

// timeText is a date, or a number of seconds since 1970 of this century.
var timeText = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}|^[0-9]{9,}(\.[0-9]+)?$`)

// holdsTimes: a value of the column is a time. No state is called so.
func holdsTimes(values []*seen) bool {
	return slices.ContainsFunc(values, func(v *seen) bool { return timeText.MatchString(v.text) })
}
