package adopted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Store is an engine's backend with adopted queues beside the managed ones.
type Store struct {
	backends.Engine
	// MaxPayload is the largest payload that claims will allow, in bytes. Examine warns about larger ones; 0: about none.
	MaxPayload int64

	dialect   backends.Dialect
	tables    map[string]mapping.Table // by queue
	live      atomic.Pointer[map[string]*statement.Queue]
	former    map[string]*statement.Queue // queues that only a Store before this one had; see Succeed
	heads     map[string]*head            // by queue
	described descriptions
	probes    probes
	slow      *slowQueues
	slowReap  slowReap
	held      *heldLeases
	misfits   map[string][]*mapping.Misfit // of the tables that did not fit when the Store was opened
	now       func() time.Time
	scanGain  time.Duration                     // tests change it
	whenSlow  func(f func()) (stop func() bool) // see whenSlow; tests change it
	estimates core.Estimates
	tx        *txPool

	pruningLeases sync.Mutex
	leaseScanPos  int64 // the lease at which the last run of pruneLeases ended

	closing  sync.Once
	closeErr error // of the first Close
}

var _ interface {
	backends.Backend
	backends.Inspector
	backends.Notifier
	backends.Mixed
	backends.Admitter
	backends.Examiner
	backends.Obstructed
	backends.Rechecker
} = (*Store)(nil)

// New is a Store with the tables, by the names of their queues. The error has everything that
// does not fit the database.
func New(ctx context.Context, engine backends.Engine, tables map[string]mapping.Table) (*Store, error) {
	s, misfits, err := Check(ctx, engine, tables)
	if err != nil {
		return nil, err
	}
	if len(misfits) > 0 {
		return nil, mapping.Join(misfits)
	}
	return s, nil
}

// Open is a Store with the tables, by the names of their queues. A table that doesn't fit must not keep the other queues from
// being served: its queue is an obstacle until it fits. Misfits returns why. The error is the database's.
func Open(ctx context.Context, engine backends.Engine, tables map[string]mapping.Table) (*Store, error) {
	s, _, err := Check(ctx, engine, tables)
	if err != nil {
		return nil, err
	}
	for name := range s.misfits {
		s.add(name, tables[name], nil)
	}
	return s, nil
}

// Misfits are those of the queues whose tables did not fit when the Store was opened, by queue.
func (s *Store) Misfits() map[string][]*mapping.Misfit { return s.misfits }

// Table is the mapping of an adopted queue.
func (s *Store) Table(queue string) (t mapping.Table, adopted bool) {
	t, adopted = s.tables[queue]
	return t, adopted
}

// Empty is a Store without tables, to Succeed another one.
func Empty(engine backends.Engine) *Store {
	s := &Store{
		Engine: engine, dialect: engine.Dialect(), tables: map[string]mapping.Table{}, misfits: map[string][]*mapping.Misfit{}, heads: map[string]*head{}, now: time.Now, scanGain: scanGain, whenSlow: whenSlow, tx: newTxPool(), slow: &slowQueues{}, held: &heldLeases{},
	}
	s.live.Store(&map[string]*statement.Queue{})
	return s
}

// Check checks the tables. The Store has the queues that fit. The error is the database's, not one
// of the tables.
func Check(ctx context.Context, engine backends.Engine, tables map[string]mapping.Table) (*Store, []*mapping.Misfit, error) {
	s := Empty(engine)
	var misfits []*mapping.Misfit
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		p := &mapping.Problems{Queue: name}
		q, err := s.adopt(ctx, p, tables[name])
		if err != nil {
			return nil, nil, err
		}
		if len(p.All) == 0 {
			s.add(name, tables[name], q)
			continue
		}
		misfits = append(misfits, p.All...)
		s.misfits[name] = p.All
	}
	return s, misfits, nil
}

// adopt checks a table and prepares its queue. If p has problems, there is no queue.
func (s *Store) adopt(ctx context.Context, p *mapping.Problems, t mapping.Table) (*statement.Queue, error) {
	s.described.begin(p.Queue, s.ObstacleSet().Time())
	info, err := s.Describe(ctx, t.Schema, t.Name)
	if err != nil {
		return nil, fmt.Errorf("queues.%s.table: %w", p.Queue, err)
	}
	if t.ClaimInTx {
		if err := s.noOpenTx(); err != nil {
			p.AddFix("claim_mode", "remove the line; states.claimed marks claimed rows then", "its jobs can't be claimed in transactions: %v", err)
			return nil, nil // the other checks depend on it
		}
	}
	m := mapping.Check(p, t, info, s.dialect)
	s.checkNotify(p, t.Notify)
	if m == nil {
		return nil, nil
	}
	if m.OnAck == mapping.Archive {
		archive, err := s.Describe(ctx, m.ArchiveSchema, m.Archive)
		if err != nil {
			return nil, fmt.Errorf("queues.%s.on_ack: %w", p.Queue, err)
		}
		mapping.CheckArchive(p, m, archive)
	}
	if len(p.All) > 0 {
		return nil, nil
	}
	q := statement.New(m)
	return q, s.checkQueries(ctx, p, q)
}

// checkQueries checks that the database accepts a query for jobs, by asking for its plan.
func (s *Store) checkQueries(ctx context.Context, p *mapping.Problems, q *statement.Queue) error {
	q.UseIndex(s.RowOrdering())
	_, err := s.Explain(ctx, &backends.Statement{
		Text: s.dialect.SelectLocked(query.Columns(s.dialect.ToText("1")), q.SQLName, query.And(q.Waiting()...), q.OrderBy(), 0, false),
	}, q.Info)
	if err != nil && (backends.Retryable(err) || ctx.Err() != nil) {
		return err
	}
	if err != nil && !errors.Is(err, backends.ErrNoPlan) {
		p.Add("table", "the database refuses the query for its jobs: %v", err)
	}
	return nil
}

// checkNotify checks that the engine can listen to the channel of a table.
func (s *Store) checkNotify(p *mapping.Problems, channel string) {
	if channel == "" {
		return
	}
	l, ok := s.Engine.(backends.ChannelListener)
	if !ok {
		p.AddFix("notify", "remove it: a sidecar queries for new jobs about once a second", "%s sends no notifications", s.Info().Engine)
		return
	}
	if err := l.CanListen(channel); err != nil {
		p.Add("notify", "%v", err)
	}
}

// noOpenTx returns why this database cannot have claims that are open transactions; nil: it can.
func (s *Store) noOpenTx() error {
	c, ok := s.Engine.(backends.TxClaimer)
	if !ok {
		return fmt.Errorf("claim_mode: transaction isn't supported on %s", s.Info().Engine)
	}
	return c.NoOpenTx()
}

// add adds a queue before the Store is used. q is nil if its table doesn't fit.
func (s *Store) add(name string, t mapping.Table, q *statement.Queue) {
	s.tables[name], s.heads[name] = t, &head{}
	if q != nil {
		s.setQueue(name, q)
	}
}

// setQueue sets the statements of a queue, whose table can have changed.
func (s *Store) setQueue(name string, q *statement.Queue) {
	for {
		last := s.live.Load()
		next := maps.Clone(*last)
		next[name] = q
		if s.live.CompareAndSwap(last, &next) {
			return
		}
	}
}

// queues are the queues whose tables fit, or did when they were last checked. The map must not be changed.
func (s *Store) queues() map[string]*statement.Queue { return *s.live.Load() }

// Adopted implements backends.Mixed.
func (s *Store) Adopted(queue string) bool {
	_, adopted := s.tables[queue]
	return adopted
}

// AdoptedTable implements backends.Mixed.
func (s *Store) AdoptedTable(queue string) string {
	if q := s.settledIn(queue); q != nil {
		return q.Info.Name
	}
	return ""
}

// queueNames are the names of the adopted queues.
func (s *Store) queueNames() []string { return slices.Sorted(maps.Keys(s.tables)) }

// settledNames are the names of the queues whose jobs the Store can settle and take back.
func (s *Store) settledNames() []string {
	return append(s.queueNames(), slices.Sorted(maps.Keys(s.former))...)
}

// settledIn is the queue of claimed jobs; nil: it is unknown.
func (s *Store) settledIn(name string) *statement.Queue {
	return cmp.Or(s.queues()[name], s.former[name])
}

// Notifications implements backends.Notifier. The engine's come together with those that the
// owners of the tables send.
func (s *Store) Notifications(ctx context.Context) (<-chan string, bool) {
	channels := map[string][]string{}
	for _, name := range s.queueNames() {
		if channel := s.tables[name].Notify; channel != "" {
			channels[channel] = append(channels[channel], name)
		}
	}
	if l, ok := s.Engine.(backends.ChannelListener); ok && len(channels) > 0 {
		return l.Listen(ctx, channels)
	}
	if n, ok := s.Engine.(backends.Notifier); ok {
		return n.Notifications(ctx)
	}
	return nil, false
}

// Obstacles implements backends.Obstructed. The engine remembers those of adopted tables too.
func (s *Store) Obstacles() []backends.Obstacle { return s.ObstacleSet().Obstacles() }

// Usage implements backends.Metered: it is the engine's.
func (s *Store) Usage() backends.Usage {
	if m, ok := s.Engine.(backends.Metered); ok {
		return m.Usage()
	}
	return backends.Usage{}
}

// transaction runs f in a transaction of its own, which other sidecars learn of from the queues
// that madeReady returns after its commit.
func (s *Store) transaction(ctx context.Context, madeReady func() []string, f func(ctx context.Context, sql backends.SQL) error) error {
	_, err := s.CommitWith(ctx, backends.CommitContent{}, backends.TxHooks{Writes: true, Freed: madeReady, Before: func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		return f(ctx, sql)
	}})
	if err == nil && madeReady != nil {
		s.readyIn(0, madeReady()...)
	}
	return err
}

// addQueues adds names to a list that has each once.
func addQueues(to *[]string, names ...string) {
	for _, name := range names {
		if !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
}

// isLocked reports whether another program's lock was in the way.
func isLocked(err error) bool {
	var l *backends.LockedError
	return errors.As(err, &l)
}
