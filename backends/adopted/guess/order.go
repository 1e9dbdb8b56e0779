package guess

import (
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// order guesses the order of claims: that of an index that claims can read, or the oldest first.
func (g *guesser) order() {
	if c, has := g.column(mapping.Priority); has {
		if !g.orderByPriority(c) {
			g.hint("order", "", "without it, the highest priority comes first, and then the oldest row. List the columns if its own consumers use another order")
		}
		return
	}
	fixed := []string{g.state.Name, g.kind.Name}
	if g.state.Name == "" {
		fixed = []string{g.token.Name}
	}
	for _, x := range g.Info.Indexes {
		if rest, reads := indexOrder(x, fixed); reads && g.isOrder(rest) {
			g.Table.Order = rest
			g.note("order", true, "the order of the index %s", x.Name)
			return
		}
	}
	if c, has := g.column(mapping.CreatedAt); has {
		g.Table.Order = append(g.Table.Order, mapping.Ordering{Column: c.Name})
	}
	for _, name := range g.Table.Columns[mapping.ID] {
		g.Table.Order = append(g.Table.Order, mapping.Ordering{Column: name})
	}
	g.note("order", true, "the oldest first; write desc after each column for the newest first")
}

// indexOrder is the order that an index has after the columns that are fixed for a claim. reads:
// claims can read it, since it begins with the first of these, or its condition is about that.
func indexOrder(x backends.Index, fixed []string) (rest []mapping.Ordering, reads bool) {
	for i, c := range x.Columns {
		if !slices.Contains(fixed, c.Name) {
			rest = append(rest, mapping.Ordering{Column: c.Name, Descending: c.Descending})
			continue
		}
		reads = reads || c.Name == fixed[0]
		if i > len(fixed) || len(rest) > 0 {
			reads = false
		}
	}
	return rest, reads || fixed[0] != "" && strings.Contains(strings.ToLower(x.Only), strings.ToLower(fixed[0]))
}

// orderByPriority takes the order of an index that begins with the priority and then has a time or
// the key.
func (g *guesser) orderByPriority(priority backends.Column) bool {
	fixed := []string{g.state.Name, g.kind.Name, g.token.Name}
	for _, x := range g.Info.Indexes {
		var by []mapping.Ordering
		for _, c := range x.Columns {
			if len(by) > 0 || !slices.Contains(fixed, c.Name) {
				by = append(by, mapping.Ordering{Column: c.Name, Descending: c.Descending})
			}
		}
		if len(by) < 2 || by[0].Column != priority.Name || !g.isOrder(by[1:]) {
			continue
		}
		for _, name := range g.Table.Columns[mapping.ID] {
			if !slices.ContainsFunc(by, func(o mapping.Ordering) bool { return o.Column == name }) {
				by = append(by, mapping.Ordering{Column: name})
			}
		}
		g.Table.Order = by
		first := "lower"
		if by[0].Descending {
			first = "higher"
		}
		g.note("order", true, "the order of the index %s: the %s priority first", x.Name, first)
		return true
	}
	return false
}

// isOrder reports whether the columns can be the order of jobs: one is a time or of the key.
func (g *guesser) isOrder(by []mapping.Ordering) bool {
	return slices.ContainsFunc(by, func(o mapping.Ordering) bool {
		c, _ := g.Info.Column(o.Column)
		return g.kindOf(c) == backends.TimeColumn || slices.Contains(g.Table.Columns[mapping.ID], o.Column)
	})
}
