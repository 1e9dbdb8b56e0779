package mysql

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// queuesState is what the last statement read from qsidecar_meta and qsidecar_queues.
type queuesState struct {
	micros  int64            // the clock of positions, in µs
	paused  map[string]bool  // by queue, when the queue was last read
	returns map[string]int64 // by queue, in the same way
}

// claims are the claims of one transaction.
type claims struct {
	s      *Store
	tx     *tx
	host   backends.Identity
	all    []*claiming
	queues []string // of all claims, each once
	locked bool     // the queues' rows are locked, if the server has no SKIP LOCKED
	end    queuesState
}

// StartClaims implements core.OwnClaimer.
func (t *tx) StartClaims(host backends.Identity, all []backends.Claim) core.Claims {
	k := t.newClaims(host, all)
	k.ask()
	return k
}

func (t *tx) newClaims(host backends.Identity, all []backends.Claim) *claims {
	k := &claims{s: t.s, tx: t, host: host, queues: t.o.Queues, end: queuesState{paused: map[string]bool{}, returns: map[string]int64{}}}
	for _, c := range all {
		c.MaxBytes, c.MaxPayload = cmp.Or(max(c.MaxBytes, 0), math.MaxInt64), cmp.Or(max(c.MaxPayload, 0), math.MaxInt64)
		k.all = append(k.all, &claiming{Claim: c, s: k.s, host: host, left: c.MaxBytes,
			seen: map[string]*cursor.Learned{}, below: cursor.Beginning.Urgency, done: len(c.Slots) == 0 || len(c.Queues) == 0})
	}
	return k
}

// ask queues a statement for each claim that can continue. A claim waits if an earlier claim still uses
// one of its queues, because the earlier one takes its jobs first. Each round asks for one queue of a
// claim, so its cost does not depend on how many queues the claim has.
func (k *claims) ask() {
	t := k.tx
	if !k.locked && t.s.sql.skip == "" && len(k.all) > 0 {
		k.locked = true
		t.takeTurns(k.queues)
	}
	before := map[string]bool{}
	var asked []any
	for i, c := range k.all {
		if c.done {
			continue
		}
		mine := c.Queues[c.at:]
		if !slices.ContainsFunc(mine, func(p backends.Policy) bool { return before[p.Queue] }) {
			q := mine[0].Queue
			asked = append(asked, q)
			k.end.returns[q], k.end.paused[q] = 0, false
			c.ask(t)
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
	t.query(func(r *result) error {
		for {
			ok, err := r.next()
			if err == nil && !ok && !alive {
				err = backends.ErrEvicted
			}
			if err != nil || !ok {
				return err
			}
			t.now, k.end.micros, alive = r.instant(0), r.int(1), !r.null(2)
			if !r.null(3) {
				k.end.returns[r.text(3)], k.end.paused[r.text(3)] = r.int(4), r.int(5) != 0
			}
		}
	}, "SELECT "+t.s.sql.clock+", "+position+", h.host, q.queue, q.returns, q.paused FROM qsidecar_meta AS m "+
		"LEFT JOIN qsidecar_hosts AS h ON h.host = ? AND NOT h.dead AND NOT h.has_left LEFT JOIN qsidecar_queues AS q ON q.queue IN ("+marks(len(asked))+") WHERE m.one = 1",
		append([]any{int64(k.host)}, asked...)...)
}

// takeTurns lets one transaction at a time claim from a queue. It is for servers without SKIP LOCKED.
func (t *tx) takeTurns(queues []string) {
	queues = slices.Clone(queues)
	slices.Sort(queues)
	t.wrote = true
	for _, q := range queues {
		t.add("INSERT INTO qsidecar_queues (queue) VALUES (?) ON DUPLICATE KEY UPDATE returns = returns", q)
	}
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
			if err := c.digest(k.tx, &k.end); err != nil {
				return nil, err
			}
		}
		if !slices.ContainsFunc(k.all, func(c *claiming) bool { return !c.done }) {
			break
		}
		k.ask()
		if err := k.tx.Flush(ctx); err != nil {
			return nil, err
		}
	}
	for _, c := range k.all {
		all = append(all, c.res) // large payloads arrive with the COMMIT
	}
	return all, nil
}

// Committed implements core.Claims. It updates the cursors with what the claims read.
func (k *claims) Committed() {
	if len(k.all) == 0 || k.end.micros == 0 {
		return
	}
	back := k.s.clocks.back(k.end.micros)
	if back {
		k.s.Cursors.Reset() // positions that were passed can be assigned again
	}
	for _, c := range k.all {
		for queue, l := range c.seen {
			l.Returns, l.Ended, l.Begun, l.Below = k.end.returns[queue], k.end.micros, k.end.micros+margin.Microseconds(), k.end.micros
			l.All = l.All && !back
			k.s.Cursors.Learn(queue, *l)
			k.s.prove(queue)
		}
	}
}
