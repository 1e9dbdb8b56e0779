package schedules

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// table is the name of the table. A column without a value is NULL.
const table = "qsidecar_schedules"

// The columns. A row is read in this order.
var (
	definition = []string{"name", "queue", "cron", "every_ms", "zone", "splay_ms", "headers", "priority", "missed", "overlap", "source", "version", "adopted"}
	state      = []string{"paused", "next_at", "last_at", "last_job"}
	numbers    = map[string]bool{"every_ms": true, "splay_ms": true, "priority": true, "version": true, "adopted": true, "paused": true, "next_at": true, "last_at": true}
	payload    = backends.Column{Name: "payload", Type: "bytea", Kind: backends.BytesColumn}
	queueIn    = backends.Column{Name: "queue", Type: "text", Kind: backends.TextColumn}
)

// row is a schedule and what only the table shows.
type row struct {
	backends.Schedule
	adopted bool // its queue is in an adopted table of the sidecar that declared it
}

// columns is the select list of a query that scan reads, from the table as s. whole: with what belongs to the jobs alone.
func columns(d backends.Dialect, whole bool) string {
	var all []string
	for _, names := range [][]string{definition, state} {
		for _, c := range names {
			if whole || c != "headers" {
				all = append(all, d.ToText("s."+c))
			}
		}
	}
	if whole {
		all = append(all, "s."+payload.Name)
	}
	for i := range all {
		all[i] = fmt.Sprintf("%s AS qsidecar_%d", all[i], i+1)
	}
	return strings.Join(all, ", ")
}

func from(d backends.Dialect) string { return d.SidecarTable(table) + " s" }

func scan(cells [][]byte, whole bool) (r row, err error) {
	n := 0
	text := func() string { n++; return string(cells[n-1]) }
	number := func() (v int64) {
		if n++; cells[n-1] != nil && err == nil {
			if v, err = strconv.ParseInt(string(cells[n-1]), 10, 64); err != nil {
				err = fmt.Errorf("%s, column %d: %w", table, n, err)
			}
		}
		return v
	}
	r.Name, r.Queue, r.Cron, r.Every, r.Zone, r.Splay = text(), text(), text(), span(number()), text(), span(number())
	headers := ""
	if whole {
		headers = text()
	}
	r.Priority, r.Missed, r.Overlap, r.Source, r.Version, r.adopted = int16(number()), backends.MissedPolicy(text()), backends.OverlapPolicy(text()), text(), number(), number() != 0
	r.Paused, r.NextAt, r.LastAt, r.LastJob = number() != 0, instant(number()), instant(number()), text()
	if whole {
		r.Payload = append([]byte{}, cells[n]...)
	}
	if headers != "" && err == nil {
		if err = json.Unmarshal([]byte(headers), &r.Headers); err != nil {
			err = fmt.Errorf("%s, the headers of %s: %w", table, r.Name, err)
		}
	}
	return r, err
}

// values are the row's, in the order of the columns.
func (r *row) values() []any {
	var headers any
	if len(r.Headers) > 0 {
		text, _ := json.Marshal(r.Headers) // of texts
		headers = string(text)
	}
	return []any{
		r.Name, r.Queue, textOrNull(r.Cron), orNull(r.Every.Milliseconds()), textOrNull(r.Zone), orNull(r.Splay.Milliseconds()), headers, int64(r.Priority),
		string(r.Missed), string(r.Overlap), textOrNull(r.Source), r.Version, bit(r.adopted),
		bit(r.Paused), millis(r.NextAt), millis(r.LastAt), textOrNull(r.LastJob), r.Payload,
	}
}

// args are the arguments of values, from number n on, with their columns.
func args(d backends.Dialect) (names, values []string) {
	for _, list := range [][]string{definition, state} {
		for _, c := range list {
			n := len(names) + 1
			arg := d.TextArg(n)
			if numbers[c] {
				arg = d.IntArg(n)
			}
			names, values = append(names, c), append(values, arg)
		}
	}
	return append(names, payload.Name), append(values, d.Arg(len(values)+1, payload))
}

func (r *row) insert(d backends.Dialect) *backends.Statement {
	names, values := args(d)
	return &backends.Statement{
		Text: "INSERT INTO " + d.SidecarTable(table) + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")", Args: r.values(),
	}
}

func (r *row) update(d backends.Dialect) *backends.Statement {
	names, values := args(d)
	var sets []string
	for i := range names[1:] {
		sets = append(sets, names[i+1]+" = "+values[i+1])
	}
	return &backends.Statement{Text: "UPDATE " + d.SidecarTable(table) + " SET " + strings.Join(sets, ", ") + " WHERE name = " + values[0], Args: r.values()}
}

func (r *row) delete(d backends.Dialect) *backends.Statement {
	return &backends.Statement{Text: "DELETE FROM " + d.SidecarTable(table) + " WHERE name = " + d.TextArg(1), Args: []any{r.Name}}
}

// advance is the compare-and-set of the next time: it matches no row if the time is another one by now.
func (r *row) advance(d backends.Dialect, next time.Time) *backends.Statement {
	return &backends.Statement{
		Text: "UPDATE " + d.SidecarTable(table) + " SET next_at = " + d.IntArg(1) + " WHERE name = " + d.TextArg(2) + " AND next_at = " + d.IntArg(3),
		Args: []any{millis(next), r.Name, r.NextAt.UnixMilli()},
	}
}

// made stores what the last job was.
func (r *row) made(d backends.Dialect, at time.Time, job string) *backends.Statement {
	return &backends.Statement{
		Text: "UPDATE " + d.SidecarTable(table) + " SET last_at = " + d.IntArg(1) + ", last_job = " + d.TextArg(2) + " WHERE name = " + d.TextArg(3),
		Args: []any{at.UnixMilli(), job, r.Name},
	}
}

func span(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func instant(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

func orNull(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

func textOrNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
