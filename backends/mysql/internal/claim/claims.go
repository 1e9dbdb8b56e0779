package claim

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// queuesState is what the last statement read from qsidecar_sidecars and qsidecar_queues.
type queuesState struct {
	micros  int64            // the clock of positions, in µs
	paused  map[string]bool  // by queue, when the queue was last read
	limited map[string]bool  // the queues that have limits; nil: none
	fair    map[string]bool  // those that have backends.Limits.GroupReady
	returns map[string]int64 // by queue, in the same way
}

// claims are the claims of one transaction.
type claims struct {
	f       *Finder
	tx      Tx
	sidecar backends.Identity
	all     []*claim
	queues  []string // of all claims, each once
	locked  bool     // the queues' rows are locked, if the server has no SKIP LOCKED
	end     queuesState
}

// Start implements core.OwnClaimer. queues are those of all claims, each once.
func (f *Finder) Start(t Tx, queues []string, sidecar backends.Identity, all []backends.Claim, careful *core.Careful) core.Claims {
	k := &claims{f: f, tx: t, sidecar: sidecar, queues: queues, end: queuesState{paused: map[string]bool{}, fair: map[string]bool{}, returns: map[string]int64{}}}
	for _, c := range all {
		c.MaxBytes, c.MaxPayload = cmp.Or(max(c.MaxBytes, 0), math.MaxInt64), cmp.Or(max(c.MaxPayload, 0), math.MaxInt64)
		k.all = append(k.all, &claim{Claim: c, f: f, sidecar: sidecar, left: c.MaxBytes, careful: careful,
			seen: map[string]*cursor.Learned{}, below: cursor.Beginning.Urgency, done: len(c.Slots) == 0 || len(c.Queues) == 0})
	}
	k.queueScans()
	return k
}

// queueScans queues a statement for each claim that can continue. A claim waits if an earlier claim still uses
// one of its queues, because the earlier one takes its jobs first. Each round asks for one queue of a
// claim, so its cost does not depend on how many queues the claim has.
func (k *claims) queueScans() {
	t := k.tx
	if !k.locked && !k.f.Skip && len(k.all) > 0 { // one transaction at a time claims from a queue
		k.locked = true
		*t.Wrote = true
		for _, q := range slices.Sorted(slices.Values(k.queues)) {
			t.Add(k.f.SQL.LockQueue, q)
		}
	}
	before := map[string]bool{}
	var asked []string
	for i, c := range k.all {
		if c.done {
			continue
		}
		mine := c.Queues[c.at:]
		if !slices.ContainsFunc(mine, func(p backends.Policy) bool { return before[p.Queue] }) {
			q := mine[0].Queue
			asked = append(asked, q)
			k.end.returns[q], k.end.paused[q] = 0, false
			c.queueScan(t)
		}
		if i < len(k.all)-1 {
			for _, p := range mine {
				before[p.Queue] = true
			}
		}
	}
	if len(asked) == 0 {
		return
	}
	alive := false
	t.Query(func(r *session.Result) error {
		for {
			ok, err := r.Next()
			if err == nil && !ok && !alive {
				err = backends.ErrEvicted
			}
			if err != nil || !ok {
				return err
			}
			*t.Now, k.end.micros, alive = r.Instant(0), r.Int(1), !r.Null(2)
			if !r.Null(3) {
				k.end.returns[r.Text(3)], k.end.paused[r.Text(3)] = r.Int(4), r.Int(5) != 0
				k.end.fair[r.Text(3)] = r.Int(7) != 0
				if r.Int(6) != 0 {
					if k.end.limited == nil {
						k.end.limited = map[string]bool{}
					}
					k.end.limited[r.Text(3)] = true
				}
			}
		}
	}, k.f.SQL.Status, int64(k.sidecar), session.Texts(asked))
}

// Finish implements core.Claims. The claims take the rows that they locked, and continue if they can get
// more.
func (k *claims) Finish(ctx context.Context) (all []backends.ClaimResult, err error) {
	for {
		for _, c := range k.all {
			if !c.asked {
				continue
			}
			if len(c.ids) > 0 { // found by a statement without locks
				if err := c.lockFound(ctx, k.tx); err != nil {
					return nil, err
				}
			}
			c.asked = false
			c.useFound(k.tx, &k.end)
		}
		if !slices.ContainsFunc(k.all, func(c *claim) bool { return !c.done }) {
			break
		}
		k.queueScans()
		if err := k.tx.Flush(ctx); err != nil {
			return nil, err
		}
	}
	for _, c := range k.all {
		if slices.ContainsFunc(c.res.Jobs, func(j backends.Job) bool { return j.Payload == nil }) { // a large one, and the reply to COMMIT can get lost
			if err := k.tx.Flush(ctx); err != nil {
				return nil, err
			}
		}
		if len(c.missed) > 0 {
			c.res.Gates, c.res.More = c.missed, true
		}
		all = append(all, c.res)
	}
	return all, nil
}

// Committed implements core.Claims. It updates the cursors with what the claims read.
func (k *claims) Committed() {
	if len(k.all) == 0 || k.end.micros == 0 {
		return
	}
	back := k.f.SawTime(k.end.micros)
	if back {
		k.f.Cursors.Reset() // positions that were passed can be assigned again
	}
	for _, c := range k.all {
		for queue, l := range c.seen {
			l.Returns, l.Ended, l.Begun, l.Below = k.end.returns[queue], k.end.micros, k.end.micros+margin.Microseconds(), k.end.micros
			l.All = l.All && !back
			k.f.Cursors.Learn(queue, *l)
			k.f.prove(queue)
		}
	}
}
