package claim

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// claimGroup is what the rows of one UPDATE have in common.
type claimGroup struct {
	host                int64
	max, timeout, lease int64
	keep                int64 // if it is done, in ms
	uncounted, prefetch bool
}

// claimRows are the rows of one UPDATE in the order of their ids, and the values for each row.
type claimRows struct {
	id, number []int64
	worker     []string
}

// assign assigns rows to the next slots.
func (c *claim) assign(t Tx, p backends.Policy, rows []ready) {
	if len(rows) == 0 {
		return
	}
	*t.Wrote = true
	slots := c.Slots[len(c.res.Jobs):]
	c.updateRows(t, p, rows, slots)
	large := map[int64]int{} // indexes of c.res.Jobs by id
	for i, r := range rows {
		r.Token, r.Attempt, r.MaxAttempts = slots[i].Token, int(r.attempts)+1, int(cmp.Or(r.max, int64(p.MaxAttempts)))
		r.Alone = slots[i].Alone(r.Attempt, r.MaxAttempts, int(r.losses))
		r.Fence = NextFence(r.Fence, *t.Now)
		r.Timeout = cmp.Or(core.FromMS(r.timeout), p.Timeout)
		if r.startBefore != 0 {
			r.StartWithin = time.Duration(min(int64(r.startBefore-*t.Now), int64(math.MaxInt64/time.Microsecond))) * time.Microsecond
		}
		if r.large {
			large[r.id] = len(c.res.Jobs)
		}
		c.res.Jobs = append(c.res.Jobs, r.Job)
	}
	if len(large) > 0 {
		t.Each(func(r *session.Result) { c.res.Jobs[large[r.Int(0)]].Payload = r.Bytes(1) },
			c.f.SQL.Payloads, session.IDs(slices.Sorted(maps.Keys(large))))
	}
}

// updateRows queues the UPDATEs of rows, one for each group.
func (c *claim) updateRows(t Tx, p backends.Policy, rows []ready, slots []backends.Slot) {
	groups := map[claimGroup]*claimRows{}
	var order []claimGroup
	by := make([]int, len(rows)) // indexes of rows in the order of their ids
	for i := range by {
		by[i] = i
	}
	slices.SortFunc(by, func(a, b int) int { return cmp.Compare(rows[a].id, rows[b].id) })
	for _, i := range by {
		r, slot := &rows[i], slots[i]
		limit := cmp.Or(r.max, int64(p.MaxAttempts))
		alone := slot.Alone(int(r.attempts)+1, int(limit), int(r.losses))
		a := claimGroup{
			host: int64(slot.Token.Sidecar), max: limit, timeout: cmp.Or(r.timeout, core.MS(p.Timeout)), lease: max(core.MS(slot.Lease), 0), keep: max(core.MS(p.RetainDone), r.retain),
			uncounted: slot.Uncounted(int(r.unrecorded), int(limit), alone), prefetch: slot.Prefetch || alone,
		}
		worker := slot.Worker
		if slot.Prefetch || alone {
			worker = "" // no worker has it yet
		}
		g := groups[a]
		if g == nil {
			g = &claimRows{}
			groups[a], order = g, append(order, a)
		}
		g.id, g.number, g.worker = append(g.id, r.id), append(g.number, int64(slot.Token.Number)), append(g.worker, worker)
	}
	for _, a := range order {
		c.update(t, p, a, groups[a])
	}
}

// NextFence returns a number after a row's fence. Only an INSERT by hand can store a fence so large
// that no higher number fits. The next number after it is the time. The statement take computes the same.
func NextFence(fence int64, now session.Instant) int64 {
	if fence >= 1<<62-1 {
		return int64(now)
	}
	return max(fence+1, int64(now))
}

func (c *claim) update(t Tx, p backends.Policy, a claimGroup, g *claimRows) {
	deadline := t.Now.After(a.timeout)
	due := session.Earlier(t.Now.After(a.lease), deadline)
	if a.prefetch {
		due = 0 // no worker has it yet
	}
	workers := session.OrNull(g.worker[0])
	if slices.ContainsFunc(g.worker, func(w string) bool { return w != g.worker[0] }) {
		of := session.Texts(g.worker)
		workers = session.Part{SQL: "NULLIF(ELT(INTERVAL(id, " + session.List(g.id) + "), " + of.SQL + "), '')", Args: of.Args}
	}
	t.Add(c.f.SQL.Take, int64(c.sidecar), *t.Now, int64(*t.Now), 1-session.Flag(a.uncounted), session.Flag(a.uncounted),
		a.max, core.MS(p.Backoff), core.MS(p.BackoffMax), session.Positive(a.keep), session.Positive(core.MS(p.RetainDead)),
		session.Positive(a.lease), deadline, due, a.host, table.Among(g.id, g.number), workers, session.IDs(g.id))
}

// failTooLarge makes jobs dead whose payload exceeds MaxPayload, so that no sidecar with this configuration can
// deliver them. It leaves the rows of their keys alone, because a claim must not wait for one: the next cleaning
// records there that the jobs ended.
func (c *claim) failTooLarge(t Tx, p backends.Policy, rows []ready) {
	for _, r := range rows {
		*t.Wrote = true
		c.res.Failed.Add(p.Queue, backends.CauseTooLarge, true)
		message := backends.TooLarge(r.size, c.MaxPayload)
		fence := NextFence(r.Fence, *t.Now)
		expires := t.Now.After(core.MS(p.RetainDead))
		t.Add(c.f.SQL.Bury,
			r.attempts+1, fence, cmp.Or(r.max, int64(p.MaxAttempts)), session.Positive(core.MS(p.RetainDead)), *t.Now, expires, message, r.id)
		t.Add(c.f.SQL.InsertFailures, r.id, fence, r.attempts+1, string(backends.CauseTooLarge), message, *t.Now)
		if expires != 0 {
			t.Add(c.f.SQL.InsertPrunable, expires, r.id)
		}
		if r.group != "" {
			t.Add(c.f.SQL.NoteGroup, p.Queue, []byte(r.group))
		}
	}
}

// expire ends jobs whose time to start is over. Like failTooLarge it leaves the rows of their keys alone, so a job with a key
// becomes dead even if it has to be deleted. Retention deletes it soon.
func (c *claim) expire(t Tx, p backends.Policy, rows []ready) {
	for _, r := range rows {
		*t.Wrote = true
		c.res.Failed.Add(p.Queue, backends.CauseExpired, !r.removed)
		if r.group != "" {
			t.Add(c.f.SQL.NoteGroup, p.Queue, []byte(r.group))
		}
		if r.removed && r.Key == "" {
			t.Add(c.f.SQL.DeleteDone, session.IDs([]int64{r.id}))
			if r.LastError != "" {
				t.Add(c.f.SQL.DeleteFailures, session.IDs([]int64{r.id}))
			}
			continue
		}
		keep := core.MS(p.RetainDead)
		if r.removed {
			keep = 1
		}
		fence, expires := NextFence(r.Fence, *t.Now), t.Now.After(keep)
		t.Add(c.f.SQL.Expire, fence, session.Positive(keep), *t.Now, expires, backends.ExpiredMessage, r.id)
		t.Add(c.f.SQL.InsertFailures, r.id, fence, r.attempts, string(backends.CauseExpired), backends.ExpiredMessage, *t.Now)
		if expires != 0 {
			t.Add(c.f.SQL.InsertPrunable, expires, r.id)
		}
	}
	if c.expired += len(rows); c.expired >= core.MostExpired {
		c.res.More = true
	}
}
