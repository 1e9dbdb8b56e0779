package statement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Trial is a step of a job's life as a query: it shows rows as the step would leave them, and changes none.
type Trial struct {
	Doing   string // what changes the rows, for people
	Written []backends.Column
	Deletes bool

	q      *Queue
	before string // a query for the rows before the step
	after  map[string]string
	args   []any
}

// TrialRows is how many waiting rows are tried at most.
const TrialRows = 100

// Trials are the steps of waiting rows with these ids: the claim, and what comes after it. Without ids there is one row, in
// which only the queue's own columns have values.
func (q *Queue) Trials(items []string) ([]*Trial, error) {
	b := &condition.Builder{Table: q.Table}
	waiting := q.trialRows(b, items)
	l := lease.New(q.Queue, "")
	l.Now, l.Limit, l.Attempts = time.Now().UnixMilli(), 3, 1
	if q.ClaimInTx {
		return q.ends(b, waiting, l)
	}
	u := &update{Builder: b}
	u.claim(q, func(role mapping.Role) {
		switch c, _ := q.Column(role); role {
		case mapping.ClaimedAt:
			u.set(c, u.Now(c))
		case mapping.Worker:
			u.set(c, u.Value(c, workerText(c, "")))
		default:
			u.set(c, u.Value(c, q.NewToken()))
		}
	})
	claim := q.trial("claim", u, waiting)
	ends, err := q.ends(b, claim.rows(), l)
	return append([]*Trial{claim}, ends...), err
}

// ends are the steps after the claim.
func (q *Queue) ends(b *condition.Builder, claimed string, l *lease.Lease) (all []*Trial, _ error) {
	builder := func() *update {
		return &update{Builder: &condition.Builder{Table: q.Table, Args: slices.Clone(b.Args)}}
	}
	u := builder()
	if q.OnAck == mapping.Update {
		u.ack(l, nil)
	}
	ack := q.trial("ack", u, claimed)
	ack.Deletes = q.OnAck != mapping.Update
	all = append(all, ack)
	for doing, d := range map[string]backends.Disposition{
		"nack":      {State: backends.StateScheduled, Delay: time.Minute, Attempts: 1, Cause: backends.CauseNacked, Message: "failed"},
		"give back": {State: backends.StateReady},
		"last nack": {State: backends.StateDead, Attempts: 3, Cause: backends.CauseNacked, Message: "failed"},
	} {
		u, kept := builder(), *l
		if err := u.end(q, &kept, d); err != nil {
			return nil, err
		}
		t := q.trial(doing, u, claimed)
		if all = append(all, t); d.State == backends.StateDead && q.HasState(backends.StateDead) {
			again := &update{Builder: &condition.Builder{Table: q.Table, Args: slices.Clone(u.Args)}}
			again.reset(true, nil)
			all = append(all, q.trial("retry", again, t.rows()))
		}
	}
	slices.SortFunc(all, func(a, b *Trial) int { return cmp.Compare(a.Doing, b.Doing) })
	return all, nil
}

// trialRows is a query for the rows before a claim.
func (q *Queue) trialRows(b *condition.Builder, items []string) string {
	var columns []string
	if len(items) > 0 {
		for _, c := range q.Info.Columns {
			columns = append(columns, q.Quote(c))
		}
		return "SELECT " + strings.Join(columns, ", ") + " FROM " + q.SQLName + " WHERE " + b.Rows(items)
	}
	for _, c := range q.Info.Columns {
		v, known := q.Where[c.Name]
		if ready, has := q.States[backends.StateReady]; q.IsIn(mapping.State, c.Name) && has {
			v, known = ready, true
		}
		value := "t." + q.Quote(c)
		if known && !v.Null {
			value = q.typed(c, "t.", q.Constant(c.Name, v))
		} else if q.IsIn(mapping.Attempts, c.Name) {
			value = q.typed(c, "t.", "0")
		}
		columns = append(columns, value+" AS "+q.Quote(c))
	}
	return "SELECT " + strings.Join(columns, ", ") + " FROM (SELECT 1 AS qsidecar_one) o LEFT JOIN " + q.SQLName + " t ON 1 = 0"
}

// typed is an expression with the column's type.
func (q *Queue) typed(c backends.Column, alias, expression string) string {
	return "CASE WHEN 1 = 0 THEN " + alias + q.Quote(c) + " ELSE " + expression + " END"
}

func (q *Queue) trial(doing string, u *update, before string) *Trial {
	u.write() // adds the columns that must not be left out
	t := &Trial{Doing: doing, q: q, before: before, after: map[string]string{}}
	for _, s := range u.sets {
		t.after[s.column.Name] = q.typed(s.column, "", s.expression)
		t.Written = append(t.Written, s.column)
	}
	for _, c := range q.Info.Columns { // what is computed from these
		if c.Computed != "" && slices.ContainsFunc(u.sets, func(s set) bool { return Mentions(c.Computed, s.column.Name) }) {
			t.Written = append(t.Written, c)
		}
	}
	t.args = u.Args
	return t
}

// rows is a query for the rows after the step, with further expressions of the rows before it.
func (t *Trial) rows(more ...string) string {
	var columns, outer []string
	for _, c := range t.q.Info.Columns {
		name := t.q.Quote(c)
		if c.Computed != "" && slices.ContainsFunc(t.Written, func(w backends.Column) bool { return w.Name == c.Name }) {
			outer = append(outer, "("+c.Computed+") AS "+name)
			continue
		}
		outer = append(outer, name)
		if to, written := t.after[c.Name]; written {
			name = to + " AS " + name
		}
		columns = append(columns, name)
	}
	for i, expression := range more {
		columns = append(columns, fmt.Sprintf("%s AS qsidecar_was%d", expression, i))
		outer = append(outer, fmt.Sprintf("qsidecar_was%d", i))
	}
	return "SELECT " + strings.Join(outer, ", ") + " FROM (SELECT " + strings.Join(columns, ", ") + " FROM (" + t.before + ") b) r"
}

// Count counts the rows, and those that meet a condition after the step. more are expressions of the rows before it, which
// the condition names qsidecar_was0 and so on.
func (t *Trial) Count(condition string, more []string, f func(rows, meet int64)) *backends.Statement {
	d := t.q.Dialect
	return &backends.Statement{
		Text: "SELECT " + query.Columns(d.ToText("count(*)"), d.ToText("coalesce(sum(y.qsidecar_meets), 0)")) +
			" FROM (SELECT CASE WHEN " + condition + " THEN 1 ELSE 0 END AS qsidecar_meets FROM (" + t.rows(more...) + ") x) y",
		Args: t.args,
		Row: func(cells [][]byte) error {
			f(query.AnyNumber(cells[0]), query.AnyNumber(cells[1]))
			return nil
		},
	}
}

// Writes reports whether the step changes a column that the SQL mentions.
func (t *Trial) Writes(sql ...string) bool {
	return slices.ContainsFunc(t.Written, func(c backends.Column) bool {
		return slices.ContainsFunc(sql, func(text string) bool { return Mentions(text, c.Name) })
	})
}

// Mentions reports whether SQL seems to name the column.
func Mentions(sql, column string) bool {
	sql, column = strings.ToLower(sql), strings.ToLower(column)
	word := func(b byte) bool { return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 0x80 }
	for at := 0; ; {
		i := strings.Index(sql[at:], column)
		if i < 0 {
			return false
		}
		from, to := at+i, at+i+len(column)
		if (from == 0 || !word(sql[from-1])) && (to == len(sql) || !word(sql[to])) {
			return true
		}
		at = to
	}
}

// WaitingItems finds the ids of some rows that wait.
func (q *Queue) WaitingItems(f func(item string)) *backends.Statement {
	return q.Items(query.And(q.Waiting()...), "", fmt.Sprint(min(TrialRows, q.MaxItems())), f)
}

// LargeItems finds the ids of up to n rows that wait and are larger than a number of bytes.
func (q *Queue) LargeItems(size int64, n int, f func(item string)) *backends.Statement {
	return q.Items(query.And(append(q.Waiting(), fmt.Sprintf("%s > %d", q.contentSize(), size))...), "", fmt.Sprint(n), f)
}

// WaitingSample is what rows that wait have.
type WaitingSample struct {
	Rows, Dead int64
	Set        map[mapping.Role]int64 // rows with a value in a column that a claim overwrites
}

// SampleWaiting reads it of up to n rows. limit is the queue's limit of attempts.
func (q *Queue) SampleWaiting(n, limit int, to *WaitingSample) *backends.Statement {
	d := q.Dialect
	dead := "0"
	if c, has := q.Column(mapping.Attempts); has {
		dead = fmt.Sprintf("CASE WHEN coalesce(%s, 0) >= %s THEN 1 ELSE 0 END", q.Quote(c), q.AttemptLimit(limit))
	}
	columns := []string{d.ToText(dead)}
	roles := q.overwritten()
	for _, role := range roles {
		c, _ := q.Column(role)
		empty := q.Quote(c) + " IS NULL"
		if c.Kind == backends.TextColumn && c.Values == nil {
			empty += " OR " + q.Quote(c) + " = ''"
		}
		columns = append(columns, d.ToText("CASE WHEN "+empty+" THEN 0 ELSE 1 END"))
	}
	to.Set = map[mapping.Role]int64{}
	return &backends.Statement{
		Text: d.SelectFirst(query.Columns(columns...), q.SQLName, query.And(q.Waiting()...), "", fmt.Sprint(n)),
		Row: func(cells [][]byte) error {
			to.Rows++
			to.Dead += query.AnyNumber(cells[0])
			for i, role := range roles {
				to.Set[role] += query.AnyNumber(cells[i+1])
			}
			return nil
		},
	}
}
