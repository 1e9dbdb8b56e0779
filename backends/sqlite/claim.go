package sqlite

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// claiming is one claim in progress.
type claiming struct {
	*tx
	backends.Claim
	sidecar backends.Identity
	left    int64 // bytes that the claim can still return
	res     backends.ClaimResult
	missed  []backends.GateResult
	fair    bool // the present queue has Limits.GroupReady
	expired int  // jobs that it has ended

	careful *core.Careful // nil: it leaves no rows out
}

// candidate is a ready row that the claim considers.
type candidate struct {
	backends.Job
	id, size   int64
	attempts   int64
	tooLarge   bool
	expired    *core.Expired // nil: it can start
	group      string        // in which it has a slot
	jobsLimit  int64         // the job's own max_attempts; 0 if it has none
	unrecorded int64         // how often in a row its sidecar died while it was prefetched
	losses     int64
	retain     int64 // in ms, its own; 0 if it has none
}

// StartClaims implements core.OwnClaimer. The claims run at once.
func (t *tx) StartClaims(sidecar backends.Identity, all []backends.Claim, careful *core.Careful) core.Claims {
	var x claimResults
	for _, c := range all {
		t.do(func() error {
			r, err := t.claim(sidecar, c, careful)
			x = append(x, r)
			return err
		})
	}
	return x
}

// claimResults are the core.Claims of claims that have run.
type claimResults []backends.ClaimResult

// Finish implements core.Claims.
func (c claimResults) Finish(context.Context) ([]backends.ClaimResult, error) { return c, nil }

// Committed implements core.Claims.
func (claimResults) Committed() {}

func (t *tx) claim(sidecar backends.Identity, c backends.Claim, careful *core.Careful) (backends.ClaimResult, error) {
	if c.MaxBytes <= 0 {
		c.MaxBytes = math.MaxInt64
	}
	if c.MaxPayload <= 0 {
		c.MaxPayload = math.MaxInt64
	}
	cl := &claiming{tx: t, Claim: c, sidecar: sidecar, left: c.MaxBytes, careful: careful}
	for _, p := range c.Queues {
		if cl.res.More || len(cl.res.Jobs) == len(c.Slots) {
			break
		}
		paused, gated := false, false
		cl.fair = false
		err := t.query(t.sql.closed, func(r row) error {
			paused, gated, cl.fair = r.int(0) != 0, r.int(1) != 0, r.int(2) != 0
			return nil
		}, p.Queue)
		switch {
		case err != nil || paused:
		case gated && !p.Gated:
			cl.missed = append(cl.missed, backends.GateResult{Queue: p.Queue, Missed: true})
		default:
			err = cl.drain(p)
		}
		if err != nil {
			return backends.ClaimResult{}, err
		}
	}
	if len(cl.missed) > 0 {
		cl.res.Gates, cl.res.More = cl.missed, true
	}
	return cl.res, nil
}

// drain claims from one queue until the queue has no more ready jobs or the claim is full.
func (c *claiming) drain(p backends.Policy) error {
	for {
		want := len(c.Slots) - len(c.res.Jobs)
		if want == 0 || c.res.More {
			return nil
		}
		seen, chosen, err := c.look(p, want)
		if err != nil {
			return err
		}
		for i := range chosen {
			if c.careful != nil && c.careful.Few {
				c.careful.Tried = []int64{chosen[i].id}
			}
			switch e := chosen[i].expired; {
			case e != nil:
				c.expired++
				c.res.Failed.Add(e.Queue, backends.CauseExpired, !e.Remove)
				err = c.expire(e)
			case chosen[i].tooLarge:
				err = c.bury(p, &chosen[i])
			default:
				err = c.take(p, &chosen[i])
			}
			if err != nil {
				return err
			}
		}
		c.res.More = c.res.More || c.expired >= core.MostExpired
		if seen < want || c.careful != nil && c.careful.Few {
			return nil // the queue has no more ready jobs
		}
	}
}

// look reads up to want ready rows in the order of the queue, and chooses those
// that fit into the claim's byte limit.
func (c *claiming) look(p backends.Policy, want int) (seen int, chosen []candidate, err error) {
	limit, read := want, 0
	if c.careful != nil {
		limit += len(c.careful.Except)
	}
	each := func(r row) error {
		if read++; c.careful != nil {
			if _, refused := slices.BinarySearch(c.careful.Except, r.int(0)); refused {
				return nil
			}
			if seen == want {
				return errStop
			}
		}
		seen++
		j := candidate{id: r.int(0), size: r.int(1), attempts: r.int(4), jobsLimit: r.int(6), unrecorded: r.int(12), losses: r.int(13), group: r.text(14), retain: r.int(18)}
		if startBefore := r.int(16); !r.null(16) && startBefore <= c.now {
			j.expired = &core.Expired{ID: j.id, Queue: p.Queue, Remove: r.int(17) != 0, RetainDead: p.RetainDead}
		} else if !r.null(16) {
			j.StartWithin = core.FromMS(startBefore - c.now)
		}
		if j.tooLarge = r.null(2); !j.tooLarge && j.expired == nil {
			if j.size > c.left && (c.Strict || len(c.res.Jobs)+len(chosen) > 0) {
				c.res.More = true
				return errStop
			}
			c.left -= j.size
		}
		j.Job = backends.Job{
			StartWithin: j.StartWithin, ID: core.ID(j.id), Queue: p.Queue, Payload: r.bytes(2), Priority: int16(r.int(3)),
			Fence: max(r.int(5)+1, c.micros), Timeout: r.duration(7), Headers: core.ReadHeaders(r.text(8)), Key: r.text(9),
			LastError: r.text(10), EnqueuedAt: r.time(11), HasProgress: !r.null(15),
		}
		chosen = append(chosen, j)
		return nil
	}
	if !p.LIFO {
		err = c.query(c.sql.readyFIFO, each, c.MaxPayload, p.Queue, limit)
		return seen, chosen, err
	}
	// Newest first: one priority after another, because one index can't be
	// read in both directions at once.
	for below := int64(math.MaxInt64); seen < want && !c.res.More; {
		found := false
		if err := c.query(c.sql.nextPriority, func(r row) error {
			below, found = r.int(0), true
			return nil
		}, p.Queue, below); err != nil || !found {
			return seen, chosen, err
		}
		if err := c.query(c.sql.readyLIFO, each, c.MaxPayload, p.Queue, below, limit-read); err != nil {
			return seen, chosen, err
		}
	}
	return seen, chosen, nil
}

// take claims j for the next slot.
func (c *claiming) take(p backends.Policy, j *candidate) error {
	slot := c.Slots[len(c.res.Jobs)]
	j.Token = slot.Token
	j.Attempt = int(j.attempts) + 1
	j.MaxAttempts = int(cmp.Or(j.jobsLimit, int64(p.MaxAttempts)))
	j.Timeout = cmp.Or(j.Timeout, p.Timeout)
	deadline := after(c.now, j.Timeout)
	charged, ahead, worker, due := j.Attempt, 0, slot.Worker, earlier(after(c.now, slot.Lease), deadline)
	if j.Alone = slot.Alone(j.Attempt, j.MaxAttempts, int(j.losses)); slot.Prefetch || j.Alone {
		worker, due = "", nil // no worker has the job yet
	}
	if slot.Uncounted(int(j.unrecorded), j.MaxAttempts, j.Alone) {
		charged, ahead = charged-1, 1
	}
	if err := c.one(c.sql.take, charged, ahead, j.Fence, j.MaxAttempts, core.MS(p.Backoff), core.MS(p.BackoffMax), positive(max(core.MS(p.RetainDone), j.retain)),
		positive(core.MS(p.RetainDead)), int64(slot.Token.Sidecar), int64(slot.Token.Number), int64(c.sidecar), positive(core.MS(slot.Lease)),
		deadline, due, c.now, text(worker), j.id); err != nil {
		return err
	}
	if c.res.Jobs = append(c.res.Jobs, j.Job); c.fair && j.group != "" {
		c.res.Groups = append(c.res.Groups, backends.Group{Queue: p.Queue, Name: j.group})
	}
	return nil
}

// bury moves a job to dead if its payload exceeds the claim's limit.
func (c *claiming) bury(p backends.Policy, j *candidate) error {
	message := backends.TooLarge(j.size, c.MaxPayload)
	if j.group != "" {
		if err := c.noteGroup(core.Group{Queue: p.Queue, Name: j.group}); err != nil {
			return err
		}
	}
	err := c.one(c.sql.bury, j.attempts+1, j.Fence, cmp.Or(j.jobsLimit, int64(p.MaxAttempts)), positive(core.MS(p.RetainDead)),
		c.now, after(c.now, p.RetainDead), message, j.id)
	if err != nil {
		return err
	}
	err = c.failed(j.id, j.attempts+1, backends.CauseTooLarge, message)
	c.res.Failed.Add(p.Queue, backends.CauseTooLarge, true)
	if err != nil || j.Key == "" {
		return err
	}
	_, err = c.exec(c.sql.endKey, string(backends.StateDead), p.Queue, j.Key, j.id)
	return err
}

// Expire implements core.Expirer.
func (t *tx) Expire(jobs []core.Expired) {
	for i := range jobs {
		t.do(func() error { return t.expire(&jobs[i]) })
	}
}

func (t *tx) expire(e *core.Expired) error {
	var queue, key, group string
	var attempts, fence int64
	keep := core.MS(e.RetainDead)
	if err := t.query(t.sql.expiring, func(r row) error {
		queue, attempts, fence, key, group = r.text(0), r.int(1), max(r.int(2)+1, t.micros), r.text(4), r.text(5)
		if keep == 0 && !r.null(3) {
			keep = r.int(3)
		}
		return nil
	}, e.ID); err != nil {
		return err
	}
	if group != "" {
		if err := t.noteGroup(core.Group{Queue: queue, Name: group}); err != nil {
			return err
		}
	}
	if e.Remove {
		return t.one(t.sql.remove, e.ID)
	}
	if err := t.one(t.sql.expire, fence, positive(keep), t.now, after(t.now, core.FromMS(keep)), backends.ExpiredMessage, e.ID); err != nil {
		return err
	}
	if err := t.failed(e.ID, attempts, backends.CauseExpired, backends.ExpiredMessage); err != nil {
		return err
	}
	return t.endKey(backends.StateDead, queue, key, e.ID)
}

// LockExpired implements core.Expirer.
func (t *tx) LockExpired(_ context.Context, _ core.Due, only []int64, limit int) (all []core.Expired, seen int, err error) {
	rows, err := t.rows(t.sql.unstarted, func(r row) bool { return r.int(2) <= t.now }, withRefused(only, limit))
	if err != nil {
		return nil, 0, err
	}
	for _, r := range among(rows, only) {
		all = append(all, core.Expired{ID: r.int(0), Queue: r.text(1), Remove: r.int(3) != 0})
	}
	return all, len(all), nil
}

// after returns the instant d after now, or NULL if d is 0 or less.
func after(now int64, d time.Duration) any {
	if d <= 0 {
		return nil
	}
	return now + core.MS(d)
}

// earlier returns the earlier of two instants. Either can be NULL.
func earlier(x, y any) any {
	a, ok := x.(int64)
	if !ok {
		return y
	}
	if b, ok := y.(int64); ok && b < a {
		return b
	}
	return a
}
