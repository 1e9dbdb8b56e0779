package mysql

import (
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// openedGate is a gate with what only this package needs.
type openedGate struct {
	*backends.Gate
	changed     bool // its limits changed lately
	held, ended []int64
}

// Gates implements core.Gatekeeper. The reads lock nothing: a statement that changes rows, and reads others, would lock those.
func (t *tx) Gates(ctx context.Context, queues []string) (all []*backends.Gate, err error) {
	t.wrote = true
	opened := make([]openedGate, len(queues))
	for i, queue := range queues {
		x := &opened[i]
		x.Gate = &backends.Gate{Queue: queue}
		all = append(all, x.Gate)
		t.Add(t.s.sql.lockGate, queue)
		t.Each(func(r *session.Result) {
			x.Limits, x.changed, x.Now, x.NextAt = limitsOf(r), r.Int(7) != 0, time.Duration(r.Int(8)), time.Duration(r.Int(9))
		}, t.s.sql.readGate, core.GateSettles.Milliseconds(), queue)
		t.Each(func(r *session.Result) {
			if r.Int(1) != 0 {
				x.held = append(x.held, r.Int(0))
			} else {
				x.ended = append(x.ended, r.Int(0))
			}
		}, t.s.sql.readCapped, queue)
	}
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for i := range opened {
		if err := t.count(ctx, &opened[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// count counts the claimed jobs of a queue with a cap.
func (t *tx) count(ctx context.Context, x *openedGate) error {
	if len(x.ended) > 0 {
		t.Add(t.s.sql.leaveCapped, x.Queue, session.IDs(x.ended))
	}
	if x.MaxClaimed > 0 && x.changed {
		var claimed []int64
		t.Ints(&claimed, t.s.sql.claimedIn, x.Queue)
		if err := t.Flush(ctx); err != nil {
			return err
		}
		for _, id := range claimed {
			if !slices.Contains(x.held, id) {
				x.held = append(x.held, id)
				t.Add(t.s.sql.enterCapped, x.Queue, id)
			}
		}
	}
	x.Claimed = int64(len(x.held))
	return nil
}

// limitsOf reads the first columns.
func limitsOf(r *session.Result) backends.Limits {
	l := backends.Limits{MaxClaimed: r.Int(0), Rate: backends.Rate{Jobs: r.Int(1), Per: core.FromMS(r.Int(2))}, Burst: r.Int(3), GroupLimit: r.Int(4), GroupReady: r.Int(6)}
	if r.Int(5) != 0 {
		l.GroupOnFailure = backends.GroupSkips
	}
	return l
}

// PassGate implements core.Gatekeeper.
func (t *tx) PassGate(g *backends.Gate, next, advance time.Duration, ids []int64) {
	if g.Rate.Jobs > 0 {
		t.Add(t.s.sql.moveGate, int64(next), int64(advance), g.Queue)
	}
	if g.MaxClaimed > 0 {
		for _, id := range ids {
			t.Add(t.s.sql.enterCapped, g.Queue, id)
		}
	}
}

// PassNone implements core.Gatekeeper: claims are always on disk.
func (t *tx) PassNone() {}

// QueueLimits implements core.Gatekeeper.
func (t *tx) QueueLimits(ctx context.Context, queue string) (l backends.Limits, err error) {
	t.wrote = true
	t.Add(t.s.sql.lockLimits, queue)
	t.Each(func(r *session.Result) { l = limitsOf(r) }, t.s.sql.readLimits, queue)
	err = t.Flush(ctx)
	return l, err
}

// SetLimits implements core.Gatekeeper.
func (t *tx) SetLimits(ctx context.Context, queue string, l backends.Limits) (ready bool, err error) {
	t.Add(t.s.sql.setLimits, some(l.MaxClaimed), some(l.Rate.Jobs), some(core.MS(l.Rate.Per)), some(l.Burst), some(l.GroupLimit), some(session.Flag(l.GroupOnFailure == backends.GroupSkips)), some(l.GroupReady), queue)
	t.Bool(&ready, t.s.sql.anyInSegment, "r"+queue)
	err = t.Flush(ctx)
	return ready, err
}

// some returns nil instead of 0.
func some(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// AllLimits implements core.LimitsReader.
func (t *tx) AllLimits(ctx context.Context) (map[string]backends.Limits, error) {
	all := map[string]backends.Limits{}
	t.Each(func(r *session.Result) { all[r.Text(7)] = limitsOf(r) }, t.s.sql.allLimits)
	err := t.Flush(ctx)
	return all, err
}
