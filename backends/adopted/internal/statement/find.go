package statement

import (
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Items reads the ids of the first rows that meet the condition, at most limit (an expression).
func (q *Queue) Items(where, order, limit string, f func(item string), args ...any) *backends.Statement {
	return &backends.Statement{Text: q.Dialect.SelectFirst(query.Columns(q.KeyTexts()...), q.SQLName, where, order, limit), Args: args, Row: q.ReadItems(f)}
}

// LockItems locks rows that meet the condition and reads their ids. Argument n is their number
// (0: all). skip: it skips rows that others have locked.
func (q *Queue) LockItems(where, order string, n int, skip bool, f func(item string), args ...any) *backends.Statement {
	return &backends.Statement{Text: q.Dialect.SelectLocked(query.Columns(q.KeyTexts()...), q.SQLName, where, order, n, skip), Args: args, Row: q.ReadItems(f)}
}

// LockRows locks the rows that the condition finds by their key, in the order of their keys if it waits for locks.
func (q *Queue) LockRows(where string, skip bool, f func(item string), args ...any) *backends.Statement {
	order := ""
	if !skip {
		order = q.KeyOrder()
	}
	return &backends.Statement{Text: q.Dialect.SelectByKey(query.Columns(q.KeyTexts()...), q.SQLName, q.KeyIndex(), where, order, skip), Args: args, Row: q.ReadItems(f)}
}

// UnlockedItems reads the ids of rows that meet the condition. It waits for no lock, and can see
// what others have not committed.
func (q *Queue) UnlockedItems(where string, f func(item string), args ...any) *backends.Statement {
	return &backends.Statement{Text: q.Dialect.SelectUnlocked(query.Columns(q.KeyTexts()...), q.SQLName, where), Args: args, Row: q.ReadItems(f)}
}

// Exists reports whether a row can be claimed now, by any limit of attempts.
func (q *Queue) Exists(found func()) *backends.Statement {
	return &backends.Statement{
		Text: q.countFirst(query.And(q.InState(backends.StateReady)...), 1),
		Row: func(cells [][]byte) error {
			if string(cells[0]) != "0" {
				found()
			}
			return nil
		},
	}
}

// Unfinished finds the rows of the jobs that exist and are not done. They need not meet the queue's where now.
func (q *Queue) Unfinished(items []string, f func(item string)) []*backends.Statement {
	return q.ForItems(items, func(b *condition.Builder, where string) *backends.Statement {
		if done := q.Shows(backends.StateDone); done != nil {
			where += " AND CASE WHEN " + done[0] + " THEN 1 ELSE 0 END = 0"
		}
		return &backends.Statement{
			Text: "SELECT " + query.Columns(q.KeyTexts()...) + " FROM " + q.SQLName + " WHERE " + where, Args: b.Args,
			Row: q.ReadItems(f),
		}
	})
}

// Stuck locks rows that the table's own consumers claimed longer than StuckAfter ago. It ignores
// rows with a lease: those are claimed by sidecars.
func (q *Queue) Stuck(limit int, f func(item string)) *backends.Statement {
	since, _ := q.Column(mapping.ClaimedAt)
	all := append(q.InState(backends.StateClaimed), q.IsOlder(since, 2), q.NoLease("l.token_sidecar IS NOT NULL"))
	return q.LockItems(query.And(all...), q.Quote(since), 1, true, f, int64(limit), q.StuckAfter.Milliseconds())
}

// ForeignTokens finds up to limit rows that show the sidecar's token, and that no sidecar claimed;
// nil: there is no token.
func (q *Queue) ForeignTokens(limit int, f func(item string)) *backends.Statement {
	c, has := q.Column(mapping.TokenRole)
	if !has {
		return nil
	}
	ours := q.Quote(c) + " BETWEEN " + q.Dialect.Constant(fmt.Sprint(q.Token.From), c) + " AND " + q.Dialect.Constant(fmt.Sprint(q.Token.To), c)
	if q.Token.Text != "" {
		ours = q.Equal(c.Name, mapping.Value{Text: q.Token.Text})
	}
	where := append(q.InQueue(), q.Claimed()...)
	where = append(where, ours, "NOT "+q.HasLease("l.token_sidecar IS NOT NULL"))
	return q.Items(query.And(where...), "", fmt.Sprint(limit), f)
}

// NoonInLocalTimes reads which times the columns of local times show at noon, UTC, in January, in July and in Ramadan, in which Morocco
// changes its clock; nil: there are no such columns. Their names are returned, too.
func (q *Queue) NoonInLocalTimes(f func(january, july, ramadan string)) (st *backends.Statement, columns []string) {
	for _, role := range []mapping.Role{mapping.RunAt, mapping.CreatedAt, mapping.ClaimedAt, mapping.FinishedAt, mapping.FailedAt} {
		c, has := q.Column(role)
		if !has || q.UTC || q.TimeUnit(c) > 0 || q.Dialect.FromMillis(c, true, 1) == q.Dialect.FromMillis(c, false, 1) || strings.HasPrefix(c.Type, "datetimeoffset") {
			continue
		}
		columns = append(columns, c.Name)
		st = &backends.Statement{
			Text: "SELECT " + query.Columns(q.Dialect.ToText(q.Dialect.FromMillis(c, false, 1)), q.Dialect.ToText(q.Dialect.FromMillis(c, false, 2)), q.Dialect.ToText(q.Dialect.FromMillis(c, false, 3))),
			Args: []any{time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC).UnixMilli(), time.Date(2026, 7, 15, 12, 0, 0, 0, time.UTC).UnixMilli(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli()},
			Row: func(cells [][]byte) error {
				clock := func(text []byte) string {
					return string(text[min(len(text), len("2026-01-15 ")):min(len(text), len("2026-01-15 12:00"))])
				}
				f(clock(cells[0]), clock(cells[1]), clock(cells[2]))
				return nil
			},
		}
	}
	return st, columns
}

// InvalidID finds a waiting row that no job's id identifies; nil: there can't be one.
func (q *Queue) InvalidID(f func(item string)) *backends.Statement {
	valid := q.ValidID()
	if valid == "" {
		return nil
	}
	return q.Items(query.And(append(q.Waiting(), "NOT ("+valid+")")...), "", "1", f)
}
