package mysql

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// alike is what the rows of one UPDATE have in common.
type alike struct {
	host                int64
	max, timeout, lease int64
	uncharged           bool
}

// taking is one UPDATE: its rows in the order of their ids, and the values for each row.
type taking struct {
	id, number []int64
	worker     []string
}

// take assigns rows to the next slots.
func (c *claiming) take(t *tx, p backends.Policy, rows []ready) error {
	if len(rows) == 0 {
		return nil
	}
	t.wrote = true
	groups := map[alike]*taking{}
	var order []alike
	var large []int64
	slots := c.Slots[len(c.res.Jobs):]
	by := make([]int, len(rows)) // indexes of rows in the order of their ids
	for i := range by {
		by[i] = i
	}
	slices.SortFunc(by, func(a, b int) int { return cmp.Compare(rows[a].id, rows[b].id) })
	for _, i := range by {
		r, slot := &rows[i], slots[i]
		limit := cmp.Or(r.max, int64(p.MaxAttempts))
		a := alike{
			host: int64(slot.Token.Host), max: limit, timeout: cmp.Or(r.timeout, core.MS(p.Timeout)), lease: max(core.MS(slot.Lease), 0),
			uncharged: slot.Uncounted(int(r.unrecorded), int(limit)),
		}
		worker := slot.Worker
		if slot.Prefetch {
			worker = "" // no worker has it yet
		}
		g := groups[a]
		if g == nil {
			g = &taking{}
			groups[a], order = g, append(order, a)
		}
		g.id, g.number, g.worker = append(g.id, r.id), append(g.number, int64(slot.Token.Number)), append(g.worker, worker)
		if r.large {
			large = append(large, r.id)
		}
	}
	for _, a := range order {
		c.update(t, p, a, groups[a])
	}
	first := len(c.res.Jobs)
	for i, r := range rows {
		r.Token, r.Attempt, r.MaxAttempts = slots[i].Token, int(r.attempts)+1, int(cmp.Or(r.max, int64(p.MaxAttempts)))
		r.Fence = nextFence(r.Fence, t.now)
		r.Timeout = cmp.Or(core.FromMS(r.timeout), p.Timeout)
		c.res.Jobs = append(c.res.Jobs, r.Job)
	}
	c.fetch(t, first, large)
	return nil
}

// nextFence returns a number after a row's fence. Only an INSERT by hand can store a fence so large
// that no higher number fits. The next number after it is the time. The UPDATE in update computes the same.
func nextFence(fence int64, now instant) int64 {
	if fence >= 1<<62-1 {
		return int64(now)
	}
	return max(fence+1, int64(now))
}

func (c *claiming) update(t *tx, p backends.Policy, a alike, g *taking) {
	deadline := t.now.after(a.timeout)
	t.add("UPDATE "+byID+" SET state = 'claimed', owner = ?, claimed_at = ?, fence = GREATEST(IF(fence < 4611686018427387903, fence + 1, 0), ?), attempts = LEAST(attempts, 32767) + ?, ahead = ?, "+
		"claim_max = ?, backoff_ms = ?, backoff_max_ms = ?, keep_ms = ?, keep_dead_ms = ?, lease_ms = ?, deadline = ?, due_at = ?, token_host = ?, token_number = ",
		int64(c.host), t.now, int64(t.now), 1-flag(a.uncharged), flag(a.uncharged),
		a.max, core.MS(p.Backoff), core.MS(p.BackoffMax), positive(core.MS(p.RetainDone)), positive(core.MS(p.RetainDead)),
		positive(a.lease), deadline, earlier(t.now.after(a.lease), deadline), a.host)
	t.text(among(g.id, g.number) + ", worker = ")
	same := !slices.ContainsFunc(g.worker, func(w string) bool { return w != g.worker[0] })
	if same {
		t.text("?", orNull(g.worker[0]))
	} else {
		t.text("NULLIF(ELT(INTERVAL(id, " + list(g.id) + ")")
		for _, w := range g.worker {
			t.text(", ?", w)
		}
		t.text("), '')")
	}
	t.text(" WHERE id IN (" + list(g.id) + ")")
}

// fetch queues the query for payloads that are not small.
func (c *claiming) fetch(t *tx, first int, large []int64) {
	if len(large) == 0 {
		return
	}
	at := map[int64]int{}
	for i := first; i < len(c.res.Jobs); i++ {
		id, _ := core.Number(c.res.Jobs[i].ID)
		at[id] = i
	}
	t.each(func(r *result) error {
		c.res.Jobs[at[r.int(0)]].Payload = r.bytes(1)
		return nil
	}, "SELECT id, payload FROM qsidecar_jobs WHERE id IN ("+list(large)+")")
}

// bury moves jobs to dead whose payload exceeds MaxPayload, so that no sidecar with this configuration can
// deliver them.
func (c *claiming) bury(t *tx, p backends.Policy, rows []ready) {
	for _, r := range rows {
		t.wrote = true
		c.res.Failed.Add(p.Queue, backends.CauseTooLarge, true)
		message := backends.TooLarge(r.size, c.MaxPayload)
		fence := nextFence(r.Fence, t.now)
		expires := t.now.after(core.MS(p.RetainDead))
		t.add("UPDATE qsidecar_jobs SET state = 'dead', attempts = ?, fence = ?, claim_max = ?, keep_dead_ms = ?, finished_at = ?, expires_at = ?, last_error = ? WHERE id = ?",
			r.attempts+1, fence, cmp.Or(r.max, int64(p.MaxAttempts)), positive(core.MS(p.RetainDead)), t.now, expires, message, r.id)
		if r.Key != "" {
			t.add("UPDATE qsidecar_keys SET state = 'dead' WHERE queue = ? AND `key` = ? AND job = ?", p.Queue, []byte(r.Key), r.id)
		}
		t.add("INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at) VALUES (?, ?, ?, ?, ?, ?)",
			r.id, fence, r.attempts+1, string(backends.CauseTooLarge), message, t.now)
		if expires != 0 {
			t.add("INSERT INTO qsidecar_expiring (expires_at, job) VALUES (?, ?)", expires, r.id)
		}
	}
}

// within returns the condition that rows of a `lane` are in one of the segments, which are in ascending
// order. The server turns it into as many ranges of the index.
func within(segments []cursor.Segment) string {
	var ors []string
	for _, s := range segments {
		ors = append(ors, between(s.From, s.To)...)
	}
	if len(ors) == 0 {
		return "FALSE"
	}
	return "(" + strings.Join(ors, " OR ") + ")"
}

// between returns the conditions for the ranges after from, up to and including to.
func between(from, to cursor.Spot) (ors []string) {
	if from.Urgency == to.Urgency {
		if from.Position < to.Position {
			ors = append(ors, fmt.Sprintf("urgency = %d AND place > %d AND place <= %d", from.Urgency, from.Position, to.Position))
		}
		return ors
	}
	first := from.Urgency // the first urgency whose whole range belongs to the result
	if from.Position > 0 {
		ors = append(ors, fmt.Sprintf("urgency = %d AND place > %d", from.Urgency, from.Position))
		first++
	}
	last := to.Urgency
	if to.Position < cursor.End.Position {
		last--
	}
	if first <= last {
		ors = append(ors, fmt.Sprintf("urgency >= %d AND urgency <= %d", first, last))
	}
	if to.Position < cursor.End.Position && to.Position > 0 {
		ors = append(ors, fmt.Sprintf("urgency = %d AND place <= %d", to.Urgency, to.Position))
	}
	return ors
}
