package sqlite

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Gates implements core.Gatekeeper.
func (t *tx) Gates(_ context.Context, queues []string) (all []*backends.Gate, err error) {
	for _, queue := range queues {
		g := &backends.Gate{Queue: queue, Now: time.Duration(t.now) * time.Millisecond}
		_, err := t.exec(t.sql.enterClaimed, queue, t.now-core.GateSettles.Milliseconds())
		if err == nil {
			_, err = t.exec(t.sql.leaveCapped, queue)
		}
		if err == nil {
			err = t.query(t.sql.readGate, func(r row) error {
				g.Limits, g.Claimed, g.NextAt = limitsOf(r), r.int(7), time.Duration(r.int(8))
				return nil
			}, queue)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

// limitsOf reads the first columns.
func limitsOf(r row) backends.Limits {
	l := backends.Limits{MaxClaimed: r.int(0), Rate: backends.Rate{Jobs: r.int(1), Per: r.duration(2)}, Burst: r.int(3), GroupLimit: r.int(4), GroupReady: r.int(6)}
	if r.int(5) != 0 {
		l.GroupOnFailure = backends.GroupSkips
	}
	return l
}

// PassGate implements core.Gatekeeper.
func (t *tx) PassGate(g *backends.Gate, next, advance time.Duration, ids []int64) {
	if g.Rate.Jobs > 0 {
		t.do(func() error {
			_, err := t.exec(t.sql.moveGate, g.Queue, int64(max(next, g.Now)+advance))
			return err
		})
	}
	if g.MaxClaimed > 0 {
		for _, id := range ids {
			t.do(func() error {
				_, err := t.exec(t.sql.enterCapped, g.Queue, id)
				return err
			})
		}
	}
}

// PassNone implements core.Gatekeeper: claims are always on disk.
func (t *tx) PassNone() {}

// QueueLimits implements core.Gatekeeper.
func (t *tx) QueueLimits(_ context.Context, queue string) (l backends.Limits, err error) {
	err = t.query(t.sql.readGate, func(r row) error {
		l = limitsOf(r)
		return nil
	}, queue)
	return l, err
}

// SetLimits implements core.Gatekeeper.
func (t *tx) SetLimits(_ context.Context, queue string, l backends.Limits) (ready bool, err error) {
	var skips any
	if l.GroupOnFailure == backends.GroupSkips {
		skips = int64(1)
	}
	if _, err := t.exec(t.sql.setLimits, queue, positive(l.MaxClaimed), positive(l.Rate.Jobs), positive(core.MS(l.Rate.Per)), positive(l.Burst), positive(l.GroupLimit), skips, positive(l.GroupReady), t.now); err != nil {
		return false, err
	}
	return t.exists(t.sql.anyReady, queue)
}

// AllLimits implements core.LimitsReader.
func (t *tx) AllLimits(context.Context) (map[string]backends.Limits, error) {
	all := map[string]backends.Limits{}
	err := t.query(t.sql.allLimits, func(r row) error {
		all[r.text(7)] = limitsOf(r)
		return nil
	})
	return all, err
}
