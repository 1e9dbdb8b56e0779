package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batches"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/internal/progress"
	"github.com/qsidecar/qsidecar/backends/internal/schedules"
)

// Store is an open database. It implements backends.Backend (without Heartbeat and Close), backends.Inspector,
// backends.Historian and CommitWith of backends.Adopter over a Driver. An engine embeds it.
type Store struct {
	Meter   backends.Meter
	Cursors cursor.Set

	driver  Driver
	traits  Traits
	address string
	log     *slog.Logger

	grouped   countdown // commits whose claims come after their acks: these can make jobs of groups ready
	lean      countdown // commits that lock the rows of acks without trying Writer.Ack
	locked    countdown // commits that avoid locked rows
	heldGates countdown // commits that first leave out the queues with limits
	owners    ownerSearch
	jobTrail  Trail
	keyTrail  Trail
	dueTrail  dueTrail
	estimates Estimates
	obstacles backends.ObstacleSet
	retries   queueRetries
	walk      groupWalk

	heldStripes heldStripes
	dry         dryQueues
	notes       forgottenNotes

	tables        backends.LockedTables
	tablePatience time.Duration
	tableNames    sync.Once
	tableSQL      map[string]string // the search in each table
	outages       outages

	schedulesOnce sync.Once
	scheduleTable *schedules.Table
	progressOnce  sync.Once
	progressTable *progress.Table
	batchesOnce   sync.Once
	batchTable    *batches.Table

	life context.Context // ends when the Store is closed
	end  context.CancelCauseFunc

	// LocalTime is the clock of cursors and of maintenance. Tests replace it.
	LocalTime func() time.Time
	took      func(since time.Time) time.Duration // see NothingIsSlow
}

// Init prepares the Store for its first use. address names the database in messages.
func (s *Store) Init(d Driver, address string, log *slog.Logger) {
	s.driver, s.traits, s.address, s.log, s.LocalTime = d, d.Traits(), address, log, time.Now
	s.took = func(since time.Time) time.Duration { return s.LocalTime().Sub(since) }
	s.tablePatience = tablePatience
	s.life, s.end = context.WithCancelCause(context.Background())
	s.obstacles.Log, s.obstacles.Address = log, address
	s.obstacles.Now = func() time.Time { return s.LocalTime() }
}

// ObstacleSet implements backends.Adopter.
func (s *Store) ObstacleSet() *backends.ObstacleSet { return &s.obstacles }

// Obstacles implements backends.Obstructed.
func (s *Store) Obstacles() []backends.Obstacle { return s.obstacles.Obstacles() }

// Life returns a context that ends when the Store is closed.
func (s *Store) Life() context.Context { return s.life }

// Stop ends all calls in progress with cause.
func (s *Store) Stop(cause error) { s.end(cause) }

// Bound returns a context that ends with ctx, or when the Store is closed.
func (s *Store) Bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if s.life.Err() != nil { // AfterFunc would end ctx a moment later
		cancel(context.Cause(s.life))
	}
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// ownerSearch holds when the owners of claims are next compared with the living sidecars.
type ownerSearch struct {
	mu      sync.Mutex
	next    time.Time
	refused map[int64]time.Time // lost owners, until when others come before them; see DueQuery.Refused
}

// ownerPause is how long other lost owners come before one whose claims the database refuses to end.
const ownerPause = 5 * time.Second

// RetryOwners ends these pauses. Tests use it.
func (s *Store) RetryOwners() {
	s.owners.mu.Lock()
	defer s.owners.mu.Unlock()
	s.owners.refused = nil
}

func (o *ownerSearch) refuse(owners []int64, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refused == nil {
		o.refused = map[int64]time.Time{}
	}
	for _, owner := range owners {
		o.refused[owner] = now.Add(ownerPause)
	}
}

func (o *ownerSearch) refusedNow(now time.Time) (owners []int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for owner, until := range o.refused {
		if !now.Before(until) {
			delete(o.refused, owner)
			continue
		}
		owners = append(owners, owner)
	}
	return owners
}

// HeartbeatAnswered resets the cursors if a heartbeat did not find its sidecar alive. The tables can have been restored from a backup
// in which the sidecar does not exist, and then jobs can have positions that claims have passed.
func (s *Store) HeartbeatAnswered(b backends.Heartbeat, r backends.HeartbeatResult) {
	if b.Kind == backends.HeartbeatRenew && !r.Alive {
		s.Cursors.Reset()
	}
}

// HeartbeatFailed returns the error of a heartbeat. If another session has locked its table, the error names that.
func (s *Store) HeartbeatFailed(err error) error {
	why := s.tables.Of(backends.OwnSidecars)
	switch {
	case err == nil || why == nil:
		return err
	case errors.Is(err, backends.ErrUnknownOutcome):
		return fmt.Errorf("%w: a heartbeat: %w", backends.ErrUnknownOutcome, why)
	}
	return why
}

// NothingIsSlow makes maintenance take each of its queries for quick. Tests use it: on a busy machine any query can be slow, and then
// the next ones search less.
func (s *Store) NothingIsSlow() { s.took = func(time.Time) time.Duration { return 0 } }

// Forget resets the Store's memory to that of a new Store. Tests use it.
func (s *Store) Forget() {
	s.Cursors.Reset()
	s.jobTrail, s.keyTrail, s.dueTrail, s.estimates, s.owners = Trail{}, Trail{}, dueTrail{}, Estimates{}, ownerSearch{}
	s.obstacles.Keep(func(*backends.Obstacle) bool { return false })
	s.retries.all = nil
	s.walk.forget()
	s.batchesOnce, s.batchTable = sync.Once{}, nil // it has a walk, too
	s.dry.forget()
	s.grouped.n.Store(0)
	s.lean.n.Store(0)
	s.locked.n.Store(0)
	s.heldGates.n.Store(0)
}
