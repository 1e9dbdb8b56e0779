package guess

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// timeForm is how a column holds times if its type isn't a time type.
type timeForm int

const (
	notTime  timeForm = iota
	someUnit          // whole numbers, of which no row has one
	inSeconds
	inMillis
	inText
)

// dateText is a text that holds a time.
var dateText = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}.*)?$`)

// The numbers of seconds since 1970 from 1973 on, and of milliseconds until 5138.
const (
	leastSeconds = 100_000_000
	leastMillis  = 100_000_000_000
	mostMillis   = 100_000_000_000_000
)

// findTimes finds the columns of whole numbers and of texts that hold times: their names
// match, and they hold nothing else.
func (g *guesser) findTimes(ctx context.Context) error {
	candidates := columns{info: g.Info}
	for _, c := range g.Info.Columns {
		number := c.Kind == backends.NumberColumn && (c.Most == 0 || c.Most >= leastSeconds)
		if timeName.MatchString(c.Name) && !g.used[c.Name] && (number || c.TimeText) {
			candidates.values = append(candidates.values, c)
		}
	}
	if len(candidates.values) == 0 {
		return nil
	}
	s, err := takeSample(ctx, g.engine, candidates)
	if err != nil {
		return err
	}
	for _, c := range candidates.values {
		g.times[c.Name] = formOf(c, s.values(c.Name))
	}
	return nil
}

func formOf(c backends.Column, values []*value) timeForm {
	form := someUnit
	if c.TimeText {
		form = inText
	}
	for _, v := range values {
		n, err := strconv.ParseInt(v.text, 10, 64)
		is := notTime
		switch {
		case c.TimeText && dateText.MatchString(v.text):
			is = inText
		case c.TimeText || err != nil:
		case n >= leastSeconds && n < leastMillis:
			is = inSeconds
		case n >= leastMillis && n < mostMillis:
			is = inMillis
		}
		if is == notTime || form != someUnit && form != is {
			return notTime
		}
		form = is
	}
	return form
}

// kindOf is the column's kind, by what it holds.
func (g *guesser) kindOf(c backends.Column) backends.ColumnKind {
	if g.times[c.Name] != notTime {
		return backends.TimeColumn
	}
	return c.Kind
}

// timeUnit finds what the numbers count that hold times; false: none has a role. A column that
// counts another unit than the first one loses its role.
func (g *guesser) timeUnit() (counted bool) {
	forms := map[timeForm]bool{}
	for _, form := range []timeForm{inSeconds, inMillis, someUnit} {
		for _, role := range []mapping.Role{mapping.CreatedAt, mapping.RunAt, mapping.ClaimedAt, mapping.FinishedAt, mapping.FailedAt} {
			c, has := g.column(role)
			if !has || g.times[c.Name] != form {
				continue
			}
			if forms[form] = true; form == inMillis && forms[inSeconds] {
				delete(g.Table.Columns, role)
				g.hint("columns."+string(role), "", "the column %s has milliseconds, but other columns have seconds, and all must have the same unit", c.Name)
			}
		}
	}
	switch {
	case forms[inSeconds]:
		g.Table.Unit = mapping.Seconds
		g.note("times", false, "since 1970, as in the sampled rows")
	case forms[inMillis]:
		g.Table.Unit = mapping.Milliseconds
		g.note("times", false, "since 1970, as in the sampled rows")
	case forms[someUnit]:
		g.Table.Unit = mapping.Seconds
		g.note("times", true, "since 1970; no sampled row has a time that shows the unit, so set milliseconds if it counts those")
	}
	return g.Table.Unit > 0
}

// timeZone asks about columns of times without a zone, and finds the unit of numbers.
func (g *guesser) timeZone() {
	if g.timeUnit() || g.isSQLite() {
		return
	}
	for _, role := range []mapping.Role{mapping.CreatedAt, mapping.ClaimedAt, mapping.FinishedAt, mapping.RunAt} {
		c, has := g.column(role)
		if has && (strings.HasPrefix(c.Type, "timestamp") && strings.Contains(c.Type, "without time zone") || strings.HasPrefix(c.Type, "datetime")) {
			g.hint("times", "utc", "%s has no time zone: do its own consumers write UTC? Without this, sidecars use the server's time zone", c.Name)
			return
		}
	}
}
