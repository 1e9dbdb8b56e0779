package adopted

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// claiming is a claim of adopted queues, in one transaction.
type claiming struct {
	backends.Claim
	s    *Store
	res  backends.ClaimResult
	left int64 // bytes that may still be given
}

// candidate is a row that a claim locked.
type candidate struct {
	item            string
	size            int64
	attempts        int64 // the column's; 0: there is none
	limit           int64 // the row's own of attempts; 0: there is no column
	priority        int64
	enqueued, fence int64
	claimedAt       string // what the claim writes there; empty: nothing
	now             int64
	payload         []byte
	headers         map[string]string
	lease           *lease
}

// run takes jobs from one queue after another until the slots are full.
func (c *claiming) run(ctx context.Context, sql backends.SQL) error {
	c.res = backends.ClaimResult{}
	c.left = c.MaxBytes
	for _, p := range c.Queues {
		for len(c.res.Jobs) < len(c.Slots) && !c.res.More {
			again, err := c.take(ctx, sql, p)
			if err != nil {
				return err
			}
			if !again {
				break
			}
		}
	}
	return nil
}

// take takes what it can get from a queue with one look. again: rows were in the
// way that are so no longer.
func (c *claiming) take(ctx context.Context, sql backends.SQL, p backends.Policy) (again bool, err error) {
	t := c.s.tables[p.Queue]
	want := len(c.Slots) - len(c.res.Jobs)
	rows, err := t.candidates(ctx, sql, p, min(want, t.most()))
	if err != nil || len(rows) == 0 {
		return false, err
	}
	var fit, large []*candidate
	for _, r := range rows {
		switch {
		case c.MaxPayload > 0 && r.size > c.MaxPayload:
			large = append(large, r)
		case c.MaxBytes > 0 && r.size > c.left && (c.Strict || len(c.res.Jobs)+len(fit) > 0):
			c.res.More = true
		default:
			fit = append(fit, r)
			c.left -= r.size
			continue
		}
		if c.res.More {
			break
		}
	}
	all := slices.Concat(fit, large)
	fit, locked, err := t.complete(ctx, sql, all, len(fit))
	if err != nil {
		return false, err
	}
	x := &settling{s: c.s}
	for _, r := range large {
		if r.lease == nil {
			continue
		}
		if err := c.bury(t, x, r, p); err != nil {
			return false, err
		}
	}
	c.give(t, x, fit, p)
	if err := x.flush(ctx, sql); err != nil {
		return false, err
	}
	for _, e := range x.ends {
		if e.statement.Matched != max(e.rows, 1) {
			return false, backends.Refused(fmt.Errorf("a row of %s that a claim had locked was not changed by it: a trigger or a rule of the table keeps it from that", t.name))
		}
		if e.fell {
			c.res.Failed.Add(t.queue, e.why, e.dead)
		}
	}
	gone := len(all) - len(fit) - locked // rows that are in the way no longer
	return gone > 0 || len(rows) < want && len(rows) == t.most() && locked < len(rows), nil
}

// bury has a job that is too large be dead.
func (c *claiming) bury(t *table, x *settling, r *candidate, p backends.Policy) error {
	l := t.begin(r, p, backends.Slot{}, t.mark())
	l.attempts-- // nobody gets it
	_, err := x.end(t, l, backends.Disposition{State: backends.StateDead, Attempts: l.attempts, Losses: l.losses,
		Cause: backends.CauseTooLarge, Message: backends.TooLarge(r.size, c.MaxPayload)}, backends.CauseTooLarge, t.waits())
	return err
}

// give puts the candidates into slots.
func (c *claiming) give(t *table, x *settling, fit []*candidate, p backends.Policy) {
	var leases []*lease
	mark := t.mark() // one for all, as its own consumers do
	for _, r := range fit {
		leases = append(leases, c.gives(t, r, p, mark))
	}
	x.claims(t, leases)
}

// gives puts one into the next slot.
func (c *claiming) gives(t *table, r *candidate, p backends.Policy, mark string) *lease {
	slot := c.Slots[len(c.res.Jobs)]
	l := t.begin(r, p, slot, mark)
	c.res.Jobs = append(c.res.Jobs, backends.Job{
		ID: r.item, Handle: handle(l.id), Queue: t.queue, Token: slot.Token, Payload: r.payload, Attempt: l.attempts, MaxAttempts: l.limit,
		Fence: l.fence, Priority: int16(max(-32768, min(r.priority, 32767))), EnqueuedAt: time.UnixMilli(r.enqueued).UTC(),
		Timeout: p.Timeout, Headers: r.headers, LastError: l.lastError(),
	})
	return l
}

// looking is the statement that locks up to n rows that may be claimed, in the order
// of claims.
func (t *table) looking(p backends.Policy, n int) *backends.Statement {
	g := t.g
	size := "0"
	for i, c := range t.payload {
		if i == 0 {
			size = ""
		} else {
			size += " + "
		}
		size += "coalesce(" + g.ByteLength(c) + ", 0)"
	}
	columns := []string{g.ToText(size)}
	for _, role := range []Role{Attempts, Priority} {
		if c, has := t.one[role]; has {
			columns = append(columns, g.ToText(g.Name(c.Name)))
		} else {
			columns = append(columns, "NULL")
		}
	}
	if c, has := t.one[CreatedAt]; has {
		columns = append(columns, g.ToText(t.millis(c)))
	} else {
		columns = append(columns, "NULL")
	}
	if c, has := t.one[ClaimedAt]; has {
		columns = append(columns, g.ToText(t.clock(c)))
	} else {
		columns = append(columns, "NULL")
	}
	columns = append(append(columns, g.ToText(g.NowMillis()), g.ToText(g.Fence())), t.keyTexts()...)
	if _, has := t.one[OwnLimit]; has {
		columns = append(columns, g.ToText(t.limit(p.MaxAttempts)))
	}
	where := t.claimable(p.MaxAttempts) + " AND NOT " + g.Paused(g.TextArg(2))
	text := g.SelectLocked(outputs(columns...), t.name, where, t.order(), 1, true)
	if h, ok := g.(backends.HintDialect); ok {
		text = h.SelectClaim(outputs(columns...), t.name, where, t.order(), 1, t.index, t.sought)
	}
	return &backends.Statement{Text: text, Args: []any{int64(n), t.queue}}
}

// candidates locks rows that may be claimed, in the order of claims.
func (t *table) candidates(ctx context.Context, sql backends.SQL, p backends.Policy, n int) (rows []*candidate, err error) {
	look := t.looking(p, n)
	look.Row = func(cells [][]byte) error {
		r := &candidate{item: t.item(cells[7:]), claimedAt: string(cells[4])}
		if len(r.item) > maxID {
			return backends.Refused(fmt.Errorf("the row %q of %s cannot be claimed: a job's id is at most %d bytes, with its escapes", r.item, t.name, maxID))
		}
		for i, to := range map[int]*int64{0: &r.size, 3: &r.enqueued, 5: &r.now, 6: &r.fence} {
			if err := number(cells[i], to); err != nil {
				return fmt.Errorf("the row %s of %s: %w", r.item, t.name, err)
			}
		}
		if _, has := t.one[OwnLimit]; has {
			counted(cells[len(cells)-1], &r.limit)
		}
		counted(cells[1], &r.attempts)
		counted(cells[2], &r.priority)
		if cells[3] == nil {
			r.enqueued = r.now
		}
		if n := len(rows); n > 0 {
			r.fence = max(r.fence, rows[n-1].fence+1) // where one look gets one number
		}
		rows = append(rows, r)
		return nil
	}
	err = sql.Do(ctx, look)
	return rows, err
}

// complete reads the payloads of the first fit rows, and what is remembered of all.
// It returns those of the first that may be claimed: what is remembered may have
// changed since they were found. A row that may not has no lease. locked is of how many
// others have what is remembered locked: they are left for another time.
func (t *table) complete(ctx context.Context, sql backends.SQL, rows []*candidate, fit int) (ok []*candidate, locked int, err error) {
	g := t.g
	items := make([]string, len(rows))
	byItem := make(map[string]*candidate, len(rows))
	for i, r := range rows {
		items[i] = r.item
		byItem[r.item] = r
		r.lease = &lease{id: newID(), queue: t.queue, item: r.item}
	}
	// SQL Server finds what differs in blanks at its end, too.
	of := func(item string) *candidate {
		if r := byItem[item]; r != nil {
			return r
		}
		i := slices.IndexFunc(rows, func(r *candidate) bool { return strings.TrimRight(r.item, " ") == strings.TrimRight(item, " ") })
		if i < 0 {
			return &candidate{} // no candidate has this item
		}
		return rows[i]
	}
	where := "l.queue = " + g.TextArg(1) + " AND " + g.AnyOf(2, itemColumn)
	text := recall(g, where, "", true)
	if t.Hold { // who has the job's row has what is remembered of it, and this may take long
		text = "SELECT " + leaseColumns(g) + " FROM " + g.SidecarTable(leasesTable) + " l WHERE " + where
	}
	leases := &backends.Statement{
		Text: text,
		Args: []any{t.queue, items},
		Row: func(cells [][]byte) error {
			l, err := readLease(cells)
			if err == nil {
				r := of(l.item)
				r.lease, l.item = l, r.item
			}
			return err
		},
	}
	asks := append(t.contents(items[:fit], byItem), leases)
	there := map[*candidate]bool{}
	if _, past := g.(backends.HintDialect); past && !t.Hold {
		asks = append(asks, &backends.Statement{
			Text: g.SelectUnlocked(outputs(g.ToText("l.item")), g.SidecarTable(leasesTable)+" l", where), Args: leases.Args,
			Row: func(cells [][]byte) error { there[of(string(cells[0]))] = true; return nil },
		})
	}
	if err := sql.Do(ctx, asks...); err != nil {
		return nil, 0, err
	}
	for i, r := range rows {
		switch {
		case there[r] && !r.lease.stored:
			r.lease = nil
			locked++
		case r.lease.notBefore > r.now:
			r.lease = nil
		case i < fit:
			ok = append(ok, r)
		}
	}
	return ok, locked, nil
}

// contents reads what a worker gets.
func (t *table) contents(items []string, byItem map[string]*candidate) []*backends.Statement {
	if len(items) == 0 || len(t.payload)+len(t.headers) == 0 {
		return nil
	}
	columns := t.keyTexts()
	for _, c := range append(append([]backends.Column{}, t.payload...), t.headers...) {
		columns = append(columns, t.g.AsBytes(c))
	}
	return t.amongst(items, func(w *writing, where string) *backends.Statement {
		return &backends.Statement{
			Text: "SELECT " + outputs(columns...) + " FROM " + t.name + " WHERE " + where, Args: w.args,
			Row: func(cells [][]byte) (err error) {
				r := byItem[t.item(cells)]
				cells = cells[len(t.key):]
				if r.payload, err = t.payloadOf(cells[:len(t.payload)]); err != nil {
					return err
				}
				r.headers = t.headersOf(cells[len(t.payload):])
				return nil
			},
		}
	})
}

// payloadOf is one column as it is, or several as the JSON text of a map.
func (t *table) payloadOf(cells [][]byte) ([]byte, error) {
	switch len(cells) {
	case 0:
		return nil, nil
	case 1:
		return append([]byte{}, cells[0]...), nil
	}
	m := make(map[string]any, len(cells))
	for i, c := range t.payload {
		m[c.Name] = partOf(c, cells[i])
	}
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	if err := to.Encode(m); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// partOf is a column's value as JSON has it: where it has none for that (the number
// NaN, a JSON column of an engine that does not look into them), its text.
func partOf(c backends.Column, cell []byte) any {
	truth := truths[strings.ToLower(string(cell))]
	switch {
	case cell == nil:
		return nil
	case c.Kind == backends.BytesColumn:
		return bytes.Clone(cell) // as base64
	case c.Kind == backends.BoolColumn && truth != "":
		return truth == "true"
	case (c.Kind == backends.JSONColumn || c.Kind == backends.NumberColumn) && json.Valid(cell):
		return json.RawMessage(bytes.Clone(cell))
	}
	return string(cell)
}

// begin writes the claim into the candidate's lease. mark is what it shows in the
// token's column.
func (t *table) begin(r *candidate, p backends.Policy, slot backends.Slot, mark string) *lease {
	l := r.lease
	l.now, l.claimedAt, l.fence, l.notBefore = r.now, r.now, max(r.fence, l.fence+1), 0
	if _, has := t.one[Attempts]; has {
		l.attempts = int(r.attempts)
	}
	l.attempts++
	l.limit, l.backoff, l.backoffMax = cmp.Or(int(r.limit), p.MaxAttempts), p.Backoff.Milliseconds(), p.BackoffMax.Milliseconds()
	l.host, l.number, l.owner = int64(slot.Token.Host), int64(slot.Token.Number), int64(slot.Token.Host)
	l.leaseMS, l.deadline = max(slot.Lease, 0).Milliseconds(), 0
	if p.Timeout > 0 {
		l.deadline = r.now + p.Timeout.Milliseconds()
	}
	l.dueAt = l.due(r.now)
	l.worker = slot.Worker
	l.shown = map[Role]string{}
	if _, has := t.one[ClaimedAt]; has {
		l.shown[ClaimedAt] = r.claimedAt
	}
	if c, has := t.one[Worker]; has {
		l.shown[Worker] = workerText(c, slot.Worker)
	}
	if _, has := t.one[token]; has {
		l.shown[token] = mark
	}
	return l
}

// workerText is what stands in the worker's column.
func workerText(c backends.Column, worker string) string {
	if worker == "" {
		worker = "qsidecar"
	}
	return heldBy(c, worker)
}

// mark is the number or text that a claim shows in the token's column, where there is
// one.
func (t *table) mark() string {
	switch {
	case t.Token == nil:
		return ""
	case t.Token.From == t.Token.To && t.Token.Text != "":
		return t.Token.Text
	}
	return strconv.FormatInt(t.Token.From+rand.Int64N(t.Token.To-t.Token.From+1), 10)
}
