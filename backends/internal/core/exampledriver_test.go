package core_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// database is what the handles of the example engine share.
type database struct {
	mu     sync.Mutex
	t      *tables
	now    time.Time
	refuse map[string]string // queue → reason

	refuseChanges []backendtest.Refusal // of stored jobs
}

// engine is one handle: a backends.Backend and backends.Inspector.
type engine struct {
	core.Store
	db            *database
	before, after error // the error of the next commit, before or after it takes effect
}

func newEngine(db *database) *engine {
	e := &engine{db: db}
	e.Init(driver{e}, "example", slog.New(slog.DiscardHandler))
	return e
}

// driver is how the core uses an engine.
type driver struct{ *engine }

var (
	_ core.Driver  = driver{}
	_ core.Tx      = (*tx)(nil)
	_ core.Claimer = (*tx)(nil)
	_ core.Reader  = (*tx)(nil)
)

// Info implements core.Driver and backends.Backend.
func (e *engine) Info() backends.Info {
	return backends.Info{Engine: "example", Version: "1", Address: "example", Database: "AAAAAAAAAAA", Prefetch: true}
}

// Close implements backends.Backend.
func (e *engine) Close() error {
	e.Stop(backends.Unavailable(errors.New("the example engine was closed")))
	return nil
}

// Usage implements backends.Metered.
func (e *engine) Usage() backends.Usage { return e.Meter.Usage() }

// Queues implements backends.Locator.
func (e *engine) Queues(_ context.Context, leases []backends.Lease) (queues []string, err error) {
	e.db.mu.Lock()
	defer e.db.mu.Unlock()
	for _, l := range leases {
		if id, ok := core.Number(l.Job); ok && e.db.t.jobs[id] != nil {
			queues = append(queues, e.db.t.jobs[id].queue)
		}
	}
	return queues, nil
}

// Traits implements core.Driver.
func (driver) Traits() core.Traits { return core.Traits{} }

// MadeReady implements core.Driver.
func (driver) MadeReady([]string) {}

// Retry implements core.Driver. No error is temporary.
func (driver) Retry(context.Context, error) (bool, int, time.Duration) { return false, 0, 0 }

// WithKind implements core.Driver.
func (driver) WithKind(err error) error { return err }

// FromServer implements core.Driver.
func (driver) FromServer(error) bool { return false }

// Transact implements core.Driver.
func (d driver) Transact(ctx context.Context, o core.TxOptions, f func(ctx context.Context, tx core.Tx) error) error {
	defer d.Meter.RoundTrip(time.Now())
	d.db.mu.Lock()
	defer d.db.mu.Unlock()
	t := &tx{db: d.db, tables: d.db.t.clone(), now: d.db.now, o: o, cursors: &d.Cursors}
	if s, ok := t.sidecars[o.Sidecar]; o.Sidecar != 0 && (!ok || s.dead || s.left) {
		return backends.ErrEvicted
	}
	if err := f(ctx, t); err != nil {
		return err
	}
	before, after := d.before, d.after
	d.before, d.after = nil, nil
	if err := cmp.Or(t.err, before); err != nil {
		return err
	}
	d.db.t = t.tables
	return after
}

// Read implements core.Driver.
func (d driver) Read(ctx context.Context, f func(ctx context.Context, r core.Reader) error) error {
	d.db.mu.Lock()
	defer d.db.mu.Unlock()
	return f(ctx, &tx{db: d.db, tables: d.db.t, now: d.db.now})
}

// Heartbeat implements backends.Backend.
func (e *engine) Heartbeat(ctx context.Context, b backends.Heartbeat) (r backends.HeartbeatResult, err error) {
	ctx, done := e.Bound(ctx)
	defer done()
	if ctx.Err() != nil {
		return r, core.Interrupted(ctx, "before the heartbeat")
	}
	e.db.mu.Lock()
	defer e.db.mu.Unlock()
	t, now := e.db.t, e.db.now
	s, ok := t.sidecars[b.Sidecar]
	if r.Alive = b.Kind == backends.HeartbeatJoin && !ok || ok && !s.dead && (!s.left || b.Kind == backends.HeartbeatLeave); r.Alive {
		s.heartbeats++
		s.last, s.expires, s.left = b, now.Add(b.Timeout), b.Kind == backends.HeartbeatLeave
		t.sidecars[b.Sidecar] = s
	}
	for id, p := range t.sidecars {
		if id != b.Sidecar {
			r.Peers = append(r.Peers, backends.Peer{
				Sidecar: id, Heartbeats: p.heartbeats, Expired: backends.HeartbeatExpired(p.expires.Sub(now), p.last.Timeout, p.left), Dead: p.dead,
				DepthLeader: p.last.DepthLeader, Timeout: p.last.Timeout,
				Name: p.last.Name, Version: p.last.Version, Leases: p.last.Leases, Left: p.expires.Sub(now), HasLeft: p.left,
			})
		}
	}
	return r, nil
}

// FindDue implements core.Driver.
func (d driver) FindDue(_ context.Context, q core.DueQuery) (o core.Due, err error) {
	d.db.mu.Lock()
	defer d.db.mu.Unlock()
	t, now := d.db.t, d.db.now
	o = core.Due{At: now, Ready: make([]bool, len(q.Waiting)), Returns: make([]int64, len(q.Waiting))}
	first := func(to **time.Time, at time.Time) {
		if !at.IsZero() && (*to == nil || at.Before(**to)) {
			*to = &at
		}
	}
	lost := map[backends.Identity]bool{}
	for _, r := range t.jobs {
		if r.state == backends.StateScheduled {
			first(&o.RunAt, r.runAt)
		}
		first(&o.DueAt, r.due)
		if q.Prune && !r.expires.After(now) {
			first(&o.Jobs, r.expires)
		}
		if r.state == backends.StateClaimed && r.owner != 0 && !t.alive(r.owner) && !lost[r.owner] {
			lost[r.owner] = true
			o.Lost = append(o.Lost, int64(r.owner))
		}
	}
	for _, k := range t.keys {
		if q.Prune && k.state != "" && !k.expires.After(now) {
			first(&o.Keys, k.expires)
		}
	}
	for _, s := range t.sidecars {
		o.Dead = o.Dead || s.dead
	}
	if q.Cancelled {
		o.Cancelled = slices.Clone(t.notes[q.Sidecar])
	}
	for i, queue := range q.Waiting {
		o.Returns[i] = t.queues[queue].returns
	}
	for _, p := range q.Pieces {
		o.Ready[p.Queue] = o.Ready[p.Queue] || len(t.within(q.Waiting[p.Queue], p)) > 0
	}
	return o, nil
}
