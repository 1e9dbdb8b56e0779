package guess

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// kinds: a queue has one kind of job.
func (g *guessing) kinds(s *sample) {
	if g.kind.Name == "" {
		return
	}
	key := "where." + g.kind.Name
	values := s.values(g.kind.Name)
	if len(values) == 0 || len(values) > mostValues {
		delete(g.Notes, key)
		g.hint(key, "", "has the column %s a value for each queue? %d were seen", g.kind.Name, len(values))
		return
	}
	g.Table.Where[g.kind.Name] = adopted.Value{Text: values[0].text}
	var all []string
	for _, v := range values {
		all = append(all, strconv.Quote(v.text))
	}
	note := g.Notes[key]
	if note.Text += "; it has " + strings.Join(all, ", "); len(all) > 1 {
		note.Text += ": a queue like this one for each that sidecars are to serve"
	}
	g.Notes[key] = note
}

// attempts: what their column counts, and how many there may be.
func (g *guessing) attempts(s *sample) {
	c, has := g.column(adopted.Attempts)
	if !has {
		return
	}
	name := plain(c.Name)
	g.Table.Deliveries = !strings.Contains(name, "fail") && !strings.Contains(name, "err") && !strings.Contains(name, "retr")
	g.note("counts", true, "by the column's name")
	most := int64(0)
	for _, v := range s.values(c.Name) {
		if n, err := strconv.ParseInt(v.text, 10, 64); err == nil && v.rows > 0 {
			most = max(most, n)
		}
	}
	if most >= 2 && most <= 100 {
		g.Table.MaxAttempts = int(most)
		g.note("max_attempts", true, "the most that the rows looked at show")
		return
	}
	g.hint("max_attempts", "20", "with how many is a row dead for its own consumers?")
}

// settling: how a claim shows, and what becomes of a row whose job is done. noHold:
// why the server cannot keep a row locked instead; nil: it can.
func (g *guessing) settling(noHold error) {
	_, claimed := g.Table.States[backends.StateClaimed]
	_, done := g.Table.States[backends.StateDone]
	defer g.dies()
	switch {
	case g.token.Name != "" && (g.state.Name == "" || claimed):
		g.reserve()
	case g.token.Name != "":
		g.hint("token", fmt.Sprintf("{column: %s, value: …}", g.token.Name), "do its own consumers find the rows that they took by it? Then a number that none of them uses")
	}
	marked := !claimed && g.Table.Token == nil && g.marked()
	if !claimed && g.Table.Token == nil && !marked {
		g.hold(noHold)
	}
	switch ended := has(g, adopted.FinishedAt); {
	case done || g.state.Name != "" || g.Table.Token == nil && !marked:
	case ended:
		g.hint("on_ack", "delete", "no state says that a row is done: are such rows deleted? Or {archive: TABLE}")
	default:
		g.Table.OnAck = adopted.Delete
		g.note("on_ack", true, "nothing in a row says that it is done; or {archive: TABLE}")
	}
	if has(g, adopted.ClaimedAt) && (claimed || marked) {
		g.hint("stuck_after", "1h", "since when a row that its own consumers claimed counts as left behind; absent: never")
	}
	for _, c := range g.Info.Columns {
		if name := plain(c.Name); strings.HasPrefix(name, "deleted") || strings.HasPrefix(name, "isdeleted") {
			value := "null"
			if !c.Nullable {
				value = "false"
			}
			g.hint("where."+c.Name, value, "do its own consumers pass over such rows?")
		}
	}
}

func has(g *guessing, role adopted.Role) bool {
	_, is := g.column(role)
	return is
}

// claimName matches columns that hold a time only while a worker has the row.
var claimName = regexp.MustCompile(`claim|taken|lock|reserv|pick|leas`)

// marked: the time of the claim tells rows that are being worked on from those that wait. A
// time of another name may stay in a row that waits again: then it is left to decide.
func (g *guessing) marked() bool {
	c, has := g.column(adopted.ClaimedAt)
	if !has || g.state.Name != "" && g.state.Kind != backends.BoolColumn {
		return false
	}
	if c.Nullable && claimName.MatchString(plain(c.Name)) {
		g.note("columns.claimed_at", true, "a row that has it is being worked on: its own consumers have to pass over it, and to clear it when a row waits again")
		return true
	}
	delete(g.Table.Columns, adopted.ClaimedAt)
	delete(g.Notes, "columns.claimed_at")
	if c.Nullable {
		g.hint("columns.claimed_at", c.Name, "is it NULL in every row that waits, and do its own consumers pass over rows that have it?")
	}
	return false
}

// dies: a row with the time of its death is dead, where no state says so.
func (g *guessing) dies() {
	_, dead := g.Table.States[backends.StateDead]
	if c, has := g.column(adopted.FailedAt); has && !dead && c.Nullable {
		g.note("columns.failed_at", true, "a row that has it is dead")
	} else if has && !dead {
		delete(g.Table.Columns, adopted.FailedAt)
	}
}

// hold: nothing in a row says that it is being worked on. That its own consumers keep it locked
// is for people to say: where they don't, hold: transaction would have both work a job.
func (g *guessing) hold(cannot error) {
	const why = "nothing in a row says that it is being worked on"
	if cannot != nil {
		g.hint("hold", "", "%s: name the state or the column that does. Where its own consumers keep it locked all the while, sidecars cannot here: %v", why, cannot)
		return
	}
	g.hint("hold", "transaction", "%s: where its own consumers keep it locked all the while, say so; else name the state or the column that does", why)
}

// archive looks for a table beside this one that rows may move to.
func (g *guessing) archive(ctx context.Context, engine adopted.Adopter) error {
	for _, suffix := range []string{"_archive", "_archived", "_done", "_history"} {
		to, err := engine.Describe(ctx, g.Table.Schema, g.Table.Name+suffix)
		if err != nil {
			return err
		}
		common := 0
		for _, c := range to.Columns {
			if _, both := g.Info.Column(c.Name); both {
				common++
			}
		}
		if 2*common < len(g.Info.Columns) || to.Kind != "table" {
			continue
		}
		if g.Table.OnAck == adopted.Delete {
			g.Table.OnAck, g.Table.ArchiveSchema, g.Table.Archive = adopted.Archive, g.Table.Schema, to.Name
			g.note("on_ack.archive", true, "it has %d columns of this table; or on_ack: delete", common)
		} else {
			g.hint("on_ack", "{archive: "+to.Name+"}", "it has %d columns of this table: do its own consumers move rows there?", common)
		}
		return nil
	}
	return nil
}

// limit: each row has its own.
func (g *guessing) limit() {
	c, has := g.column(adopted.OwnLimit)
	if has && strings.Contains(plain(c.Name), "retr") {
		g.note("columns.max_attempts", true, "by its name. With so many attempts a row is dead: where its own consumers do not count the first one, they make one more")
	}
	if has && g.Table.MaxAttempts == 0 {
		g.drop("max_attempts")
		if c.Nullable {
			g.hint("max_attempts", "20", "of rows whose %s is NULL", c.Name)
		}
	}
}

// clock: a time without a zone may be anybody's, and a number needs a unit.
func (g *guessing) clock(engine string) {
	if g.unit() {
		return
	}
	for _, role := range []adopted.Role{adopted.CreatedAt, adopted.ClaimedAt, adopted.FinishedAt, adopted.RunAt} {
		c, has := g.column(role)
		if has && engine != "sqlite" && (strings.HasPrefix(c.Type, "timestamp") && strings.Contains(c.Type, "without time zone") || strings.HasPrefix(c.Type, "datetime")) {
			g.hint("times", "utc", "%s and the like name no zone: do its own consumers write UTC there, and not the server's time?", c.Name)
			return
		}
	}
}

// channel: do its own producers tell of new jobs?
func (g *guessing) channel() {
	switch all := g.Info.Channels; len(all) {
	case 0:
		g.hint("notify", "", "where its own producers NOTIFY of new jobs, name the channel: else sidecars look about once a second")
	case 1:
		g.Table.Notify = all[0]
		g.note("notify", true, "a trigger of the table names it")
	default:
		g.hint("notify", all[0], "the table's triggers name the channels %s: which one tells of new jobs?", strings.Join(all, ", "))
	}
}

// reserve gives the sidecars numbers of the token's column.
func (g *guessing) reserve() {
	from, to := int64(8_000_001), int64(8_388_607) // beyond what a process's number can be on Linux, and in 24 bits all the same
	if most := g.token.Most; most > 0 && most < to {
		from, to = most-most/32, most
	} else if most == 1<<24-1 {
		from, to = 16_500_001, most
	}
	g.Table.Token = &adopted.Token{Column: g.token.Name, From: from, To: to}
	g.note("token.column", true, "by its name")
	g.note("token.range", true, "these numbers have to be the sidecars' alone: see that none of its own consumers uses them")
}

// order: that of an index that claims can read, or the oldest first.
func (g *guessing) order() {
	if c, has := g.column(adopted.Priority); has {
		if g.priorities(c) {
			return
		}
		g.hint("order", "", "the higher priority first, then the oldest: where its own consumers go another way, list the columns")
		return
	}
	fixed := []string{g.state.Name, g.kind.Name}
	if g.state.Name == "" {
		fixed = []string{g.token.Name}
	}
	for _, x := range g.Info.Indexes {
		var rest []adopted.Ordering
		first := false
		for i, c := range x.Columns {
			if slices.Contains(fixed, c.Name) {
				first = first || c.Name == fixed[0]
				if i > len(fixed) || len(rest) > 0 {
					first = false
				}
				continue
			}
			rest = append(rest, adopted.Ordering{Column: c.Name, Descending: c.Descending})
		}
		partial := strings.Contains(strings.ToLower(x.Only), strings.ToLower(fixed[0])) && fixed[0] != ""
		if (first || partial) && len(rest) > 0 && g.ordering(rest) {
			g.Table.Order = rest
			g.note("order", true, "as the index %s has it", x.Name)
			return
		}
	}
	if c, has := g.column(adopted.CreatedAt); has {
		g.Table.Order = append(g.Table.Order, adopted.Ordering{Column: c.Name})
	}
	for _, name := range g.Table.Columns[adopted.ID] {
		g.Table.Order = append(g.Table.Order, adopted.Ordering{Column: name})
	}
	g.note("order", true, "the oldest first; the newest: with desc behind each")
}

// priorities: an index that begins with the priority and then has a time or the key is in the
// order of claims.
func (g *guessing) priorities(priority backends.Column) bool {
	fixed := []string{g.state.Name, g.kind.Name, g.token.Name}
	for _, x := range g.Info.Indexes {
		var by []adopted.Ordering
		for _, c := range x.Columns {
			if len(by) > 0 || !slices.Contains(fixed, c.Name) {
				by = append(by, adopted.Ordering{Column: c.Name, Descending: c.Descending})
			}
		}
		if len(by) < 2 || by[0].Column != priority.Name || !g.ordering(by[1:]) {
			continue
		}
		for _, name := range g.Table.Columns[adopted.ID] {
			if !slices.ContainsFunc(by, func(o adopted.Ordering) bool { return o.Column == name }) {
				by = append(by, adopted.Ordering{Column: name})
			}
		}
		g.Table.Order = by
		first := "lower"
		if by[0].Descending {
			first = "higher"
		}
		g.note("order", true, "as the index %s has it: the %s priority first", x.Name, first)
		return true
	}
	return false
}

// ordering: jobs may well be worked in the order of these columns, which have a time
// or a key.
func (g *guessing) ordering(by []adopted.Ordering) bool {
	return slices.ContainsFunc(by, func(o adopted.Ordering) bool {
		c, _ := g.Info.Column(o.Column)
		return g.kindOf(c) == backends.TimeColumn || slices.Contains(g.Table.Columns[adopted.ID], o.Column)
	})
}

// rest are the columns without a role.
func (g *guessing) rest() {
	var names, needed []string
	for _, c := range g.Info.Columns {
		if _, fixed := g.Table.Where[c.Name]; fixed || g.used[c.Name] && c.Name != g.kind.Name {
			continue
		}
		names = append(names, c.Name)
		if !c.Nullable && !c.Default && !c.Generated {
			needed = append(needed, c.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	text := "without a role: " + strings.Join(names, ", ")
	if len(needed) > 0 {
		text += "; an INSERT has to fill " + strings.Join(needed, ", ") + ", so that jobs cannot be enqueued here"
	}
	g.hint("columns", "", "%s", text)
}
