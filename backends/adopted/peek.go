package adopted

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// deepest is how far into a state one can page, in jobs.
const deepest = backends.StatsExact

// Peek implements backends.Inspector. In adopted tables jobs come in the order of
// claims, whatever their state, and one can page as far as the 10,000th.
func (s *Store) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	t := s.tables[p.Queue]
	if t == nil {
		return s.Adopter.Peek(ctx, p)
	}
	items := p.IDs
	if len(items) == 0 {
		var err error
		if items, err = s.page(ctx, t, p); err != nil || len(items) == 0 {
			return nil, err
		}
	}
	items, err := s.fitting(ctx, t, items, p.MaxBytes)
	if err != nil || len(items) == 0 {
		return nil, err
	}
	views := map[string]*backends.View{}
	leases := &settling{s: s, leases: map[int64]*lease{}}
	if err := s.Query(ctx, append(t.views(items, views), leases.query("SELECT "+leaseColumns(s.g)+" FROM "+s.g.SidecarTable(leasesTable)+" l WHERE l.queue = "+s.g.TextArg(1)+
		" AND "+s.g.AnyOf(2, itemColumn), t.queue, items))...); err != nil {
		return nil, err
	}
	for _, l := range leases.leases {
		if v := views[l.item]; v != nil {
			l.view(t, v)
		}
	}
	s.holds.show(t.queue, views)
	var all []backends.View
	for _, item := range items {
		if v := views[item]; v != nil && (len(p.IDs) > 0 || v.State == p.State || !t.Hold) {
			all = append(all, *v)
		}
	}
	return all, nil
}

var itemColumn = backends.Column{Name: "item", Type: "text", Kind: backends.TextColumn}

// page finds the ids of a page.
func (s *Store) page(ctx context.Context, t *table, p backends.Peek) (items []string, err error) {
	where := t.in(p.State)
	if where == nil {
		return s.holds.items(t.queue, p)
	}
	limit := int64(p.Max)
	if p.After != "" {
		limit = deepest
	}
	err = s.Query(ctx, &backends.Statement{
		Text: t.g.SelectFirst(outputs(t.keyTexts()...), t.name, strings.Join(where, " AND "), t.order(), t.g.IntArg(1)),
		Args: []any{limit},
		Row:  func(cells [][]byte) error { items = append(items, t.item(cells)); return nil },
	})
	if err != nil || p.After == "" {
		return items, err
	}
	at := slices.Index(items, p.After)
	if at < 0 {
		return nil, backends.ErrNoSuchJob
	}
	items = items[at+1:]
	return items[:min(len(items), p.Max)], nil
}

// fitting cuts a list of ids where the payloads and results of the jobs get more
// than limit, after at least one.
func (s *Store) fitting(ctx context.Context, t *table, items []string, limit int64) ([]string, error) {
	sizes := map[string]int64{}
	var of []string
	columns := slices.Clone(t.payload)
	if c, has := t.one[Result]; has {
		columns = append(columns, c)
	}
	for _, c := range columns {
		of = append(of, "coalesce("+t.g.ByteLength(c)+", 0)")
	}
	if limit <= 0 || len(of) == 0 {
		return items, nil
	}
	err := s.Query(ctx, t.amongst(items, func(w *writing, where string) *backends.Statement {
		return &backends.Statement{
			Text: "SELECT " + outputs(append(t.keyTexts(), t.g.ToText(strings.Join(of, " + ")))...) + " FROM " + t.name + " WHERE " + where, Args: w.args,
			Row: func(cells [][]byte) error {
				var n int64
				err := number(cells[len(t.key)], &n)
				sizes[t.item(cells)] = n
				return err
			},
		}
	})...)
	left := limit
	for i, item := range items {
		if left -= sizes[item]; left < 0 && i > 0 {
			return items[:i], err
		}
	}
	return items, err
}

// views reads what the rows themselves say.
func (t *table) views(items []string, views map[string]*backends.View) []*backends.Statement {
	state := "CASE"
	for _, s := range []backends.State{backends.StateClaimed, backends.StateDone, backends.StateDead, backends.StateScheduled, backends.StateReady} {
		if where := t.in(s); where != nil {
			state += " WHEN " + strings.Join(where, " AND ") + " THEN " + t.g.Text(string(s))
		}
	}
	columns := append(t.keyTexts(), t.g.ToText(state+" END"))
	or := func(role Role, f func(c backends.Column) string) {
		if c, has := t.one[role]; has {
			columns = append(columns, f(c))
		} else {
			columns = append(columns, "NULL")
		}
	}
	ended := FinishedAt
	if _, has := t.one[ended]; !has {
		ended = FailedAt
	}
	for _, role := range []Role{CreatedAt, RunAt, ClaimedAt, ended} {
		or(role, func(c backends.Column) string { return t.g.ToText(t.millis(c)) })
	}
	for _, role := range []Role{Priority, Attempts, Worker} {
		or(role, t.g.AsText)
	}
	or(Result, t.g.AsBytes)
	fixed := len(columns) - len(t.key)
	for _, c := range append(slices.Clone(t.payload), t.headers...) {
		columns = append(columns, t.g.AsBytes(c))
	}
	if _, has := t.one[OwnLimit]; has {
		columns = append(columns, t.g.ToText(t.limit(t.MaxAttempts)))
	}
	return t.amongst(items, func(w *writing, where string) *backends.Statement {
		return &backends.Statement{
			Text: "SELECT " + outputs(columns...) + " FROM " + t.name + " WHERE " + strings.Join(append(t.inQueue(), where), " AND "), Args: w.args,
			Row: func(cells [][]byte) error {
				v, err := t.viewOf(t.item(cells), cells[len(t.key):], fixed)
				if err == nil && v.State != "" { // else it is in none that the mapping knows
					views[v.ID] = v
				}
				return err
			},
		}
	})
}

// viewOf reads a row of views: its own columns, of which so many are fixed, and
// then the payload's and the headers.
func (t *table) viewOf(item string, cells [][]byte, fixed int) (*backends.View, error) {
	v := &backends.View{ID: item, Queue: t.queue, State: backends.State(cells[0]), MaxAttempts: t.MaxAttempts, Worker: string(cells[7])}
	for i, to := range []*time.Time{&v.EnqueuedAt, &v.RunAt, &v.ClaimedAt, &v.FinishedAt} {
		if err := instant(cells[1+i], to); err != nil {
			return nil, err
		}
	}
	var priority, attempts int64
	counted(cells[5], &priority)
	counted(cells[6], &attempts)
	if _, has := t.one[OwnLimit]; has {
		var limit int64
		counted(cells[len(cells)-1], &limit)
		v.MaxAttempts = int(limit)
	}
	v.Priority, v.Attempt = int16(max(-32768, min(priority, 32767))), int(attempts)
	if cells[8] != nil {
		v.Result = append([]byte{}, cells[8]...)
	}
	var err error
	v.Payload, err = t.payloadOf(cells[fixed : fixed+len(t.payload)])
	v.Headers = t.headersOf(cells[fixed+len(t.payload):])
	return v, err
}

// headersOf are the columns in that role that have a value.
func (t *table) headersOf(cells [][]byte) (headers map[string]string) {
	for i, c := range t.headers {
		if cells[i] == nil {
			continue
		}
		if headers == nil {
			headers = map[string]string{}
		}
		headers[c.Name] = string(cells[i])
	}
	return headers
}

func instant(cell []byte, to *time.Time) error {
	if cell == nil {
		return nil
	}
	var ms int64
	err := number(cell, &ms)
	*to = time.UnixMilli(ms).UTC()
	return err
}

// view adds what is remembered of a job.
func (l *lease) view(t *table, v *backends.View) {
	if _, has := t.one[Attempts]; !has {
		v.Attempt = l.attempts
	}
	if l.host != 0 {
		v.Worker, v.ClaimedAt = l.worker, time.UnixMilli(l.claimedAt).UTC()
	}
	if l.notBefore > 0 && l.notBefore < never && v.RunAt.IsZero() {
		v.RunAt = time.UnixMilli(l.notBefore).UTC()
	}
	for _, f := range l.failures {
		v.Failures = append(v.Failures, backends.Failure{Attempt: f.Attempt, Cause: f.Cause, Message: f.Message, At: time.UnixMilli(f.At).UTC()})
	}
}
