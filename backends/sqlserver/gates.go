package sqlserver

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// lockGates queues the statement that locks gates. Without row versions the statement that counts waits for transactions that have
// changed jobs of the queues. None of these can wait for a gate if the gates are locked before the queued statements change jobs.
// With row versions nothing waits, and the gates are locked for a shorter time if they come last.
func (t *tx) lockGates(queues []string) {
	at := len(t.calls)
	if !t.s.server.versions {
		at = 0
	}
	t.calls = slices.Insert(t.calls, at, call{t.s.sql.lockGates, []any{listOf(queues)}, nil})
}

// Gates implements core.Gatekeeper.
func (t *tx) Gates(ctx context.Context, queues []string) (all []*backends.Gate, err error) {
	for _, queue := range queues {
		all = append(all, &backends.Gate{Queue: queue})
	}
	t.lockGates(queues)
	t.add(t.s.sql.readGates, []reader{each(func(rows *sql.Rows) error {
		var n int
		var g backends.Gate
		var ms int64
		if err := rows.Scan(&n, &g.MaxClaimed, &g.Rate.Jobs, &ms, &g.Burst, &g.Claimed, (*int64)(&g.Now), (*int64)(&g.NextAt)); err != nil {
			return err
		}
		to, err := item(all, n)
		if err == nil {
			g.Queue, g.Rate.Per = to.Queue, core.FromMS(ms)
			*to = g
		}
		return err
	})}, listOf(queues), core.GateSettles.Milliseconds())
	return all, t.send(ctx)
}

// PassGate implements core.Gatekeeper.
func (t *tx) PassGate(g *backends.Gate, next, advance time.Duration, ids []int64) {
	if g.MaxClaimed == 0 {
		ids = nil
	}
	if g.Rate.Jobs > 0 || len(ids) > 0 {
		t.add(t.s.sql.passGate, nil, g.Queue, int64(bit(g.Rate.Jobs > 0)), int64(next), int64(advance), document(onlyRows(ids)))
	}
}

// PassNone implements core.Gatekeeper: claims are always on disk.
func (t *tx) PassNone() {}

// QueueLimits implements core.Gatekeeper.
func (t *tx) QueueLimits(ctx context.Context, queue string) (l backends.Limits, err error) {
	err = t.run(ctx, t.s.sql.lockLimits, []reader{each(func(rows *sql.Rows) error { return scanLimits(rows, &l) })}, queue)
	return l, err
}

// SetLimits implements core.Gatekeeper.
func (t *tx) SetLimits(ctx context.Context, queue string, l backends.Limits) (ready bool, err error) {
	err = t.run(ctx, t.s.sql.setLimits, []reader{one(&ready)}, queue, l.MaxClaimed, l.Rate.Jobs, core.MS(l.Rate.Per), l.Burst,
		l.GroupLimit, int64(bit(l.GroupOnFailure == backends.GroupSkips)), l.GroupReady)
	return ready, err
}

// AllLimits implements core.LimitsReader.
func (q inspection) AllLimits(ctx context.Context) (map[string]backends.Limits, error) {
	all := map[string]backends.Limits{}
	err := q.once(ctx, call{q.sql.allLimits, nil, []reader{each(func(rows *sql.Rows) error {
		var queue string
		var l backends.Limits
		err := scanLimits(rows, &l, &queue)
		all[queue] = l
		return err
	})}})
	return all, err
}

// scanLimits reads the limits, and other columns after them.
func scanLimits(rows *sql.Rows, l *backends.Limits, after ...any) error {
	var ms int64
	var skips bool
	err := rows.Scan(append([]any{&l.MaxClaimed, &l.Rate.Jobs, &ms, &l.Burst, &l.GroupLimit, &skips, &l.GroupReady}, after...)...)
	l.Rate.Per = core.FromMS(ms)
	if skips {
		l.GroupOnFailure = backends.GroupSkips
	}
	return err
}
