package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Gates implements core.Gatekeeper.
func (t *tx) Gates(ctx context.Context, queues []string) (all []*backends.Gate, err error) {
	for _, queue := range queues {
		t.add(t.s.sql.lockGate, nil, queue)
		t.add(t.s.sql.enterClaimed, nil, queue, core.GateSettles.Milliseconds())
		t.add(t.s.sql.leaveCapped, nil, queue)
	}
	for _, queue := range queues {
		t.each(t.s.sql.readGate, func(rows pgx.Rows) error {
			g := &backends.Gate{Queue: queue}
			all = append(all, g)
			var ms int64
			err := rows.Scan(&g.MaxClaimed, &g.Rate.Jobs, &ms, &g.Burst, &g.Claimed, (*int64)(&g.Now), (*int64)(&g.NextAt))
			g.Rate.Per = core.FromMS(ms)
			return err
		}, queue)
	}
	return all, t.send(ctx)
}

// PassGate implements core.Gatekeeper.
func (t *tx) PassGate(g *backends.Gate, next, advance time.Duration, ids []int64) {
	if g.Rate.Jobs > 0 {
		t.add(t.s.sql.moveGate, nil, g.Queue, int64(next), int64(advance))
	}
	if g.MaxClaimed > 0 && len(ids) > 0 {
		t.add(t.s.sql.enterCapped, nil, g.Queue, ids)
	}
}

// PassNone implements core.Gatekeeper.
func (t *tx) PassNone() { t.add(t.s.sql.unsyncedClaim, nil) }

// QueueLimits implements core.Gatekeeper.
func (t *tx) QueueLimits(ctx context.Context, queue string) (l backends.Limits, err error) {
	err = t.ask(ctx, t.s.sql.lockLimits, func(rows pgx.Rows) error { return scanLimits(rows, &l) }, queue)
	return l, err
}

// SetLimits implements core.Gatekeeper.
func (t *tx) SetLimits(ctx context.Context, queue string, l backends.Limits) (ready bool, err error) {
	t.add(t.s.sql.setLimits, nil, queue, l.MaxClaimed, l.Rate.Jobs, core.MS(l.Rate.Per), l.Burst, l.GroupLimit, l.GroupOnFailure == backends.GroupSkips, l.GroupReady)
	err = t.ask(ctx, t.s.sql.anyReady, func(rows pgx.Rows) error { return rows.Scan(&ready) }, queue)
	return ready, err
}

// AllLimits implements core.LimitsReader.
func (t *tx) AllLimits(ctx context.Context) (map[string]backends.Limits, error) {
	all := map[string]backends.Limits{}
	err := t.ask(ctx, t.s.sql.allLimits, func(rows pgx.Rows) error {
		var queue string
		var l backends.Limits
		if err := scanLimits(rows, &l, &queue); err != nil {
			return err
		}
		all[queue] = l
		return nil
	})
	return all, err
}

// scanLimits reads the limits after other columns.
func scanLimits(rows pgx.Rows, l *backends.Limits, before ...any) error {
	var ms int64
	var skips bool
	err := rows.Scan(append(before, &l.MaxClaimed, &l.Rate.Jobs, &ms, &l.Burst, &l.GroupLimit, &skips, &l.GroupReady)...)
	l.Rate.Per = core.FromMS(ms)
	if skips {
		l.GroupOnFailure = backends.GroupSkips
	}
	return err
}
