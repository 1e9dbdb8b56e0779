package maintenance

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
)

const (
	// interval is the pause at idle. A jitter shortens it, so that sidecars do not run in step. Within a second a due
	// job is promoted, an expired lease is reaped and a plain INSERT is noticed. An idle sidecar queries its database
	// about once a second.
	interval   = 800 * time.Millisecond
	jitter     = 100 * time.Millisecond
	minPause   = 10 * time.Millisecond // the shortest pause before the next known due time
	batchLimit = 500                   // rows of each kind in one batch
)

// Claims are the waiting claims for which maintenance finds jobs.
type Claims interface {
	// Waiting lists the queues that claims wait for.
	Waiting() []string
	// NotifyReady reports queues that possibly have ready jobs.
	NotifyReady(queues []string)
}

// Maintainer promotes, reaps, prunes and polls one database, with one statement for all of its queues.
type Maintainer struct {
	Config
	prune    pruning
	handled  handled       // cancelled claims
	unusable errorChange   // the error that was last logged
	poke     chan struct{} // capacity 1: one pending request for maintenance is enough
}

// Config configures a Maintainer.
type Config struct {
	Backend   *backendref.Ref
	Heartbeat *heartbeat.Heartbeater
	Claims    Claims
	Times     *heartbeat.Times
	Metrics   func() *metrics.Database
	Failed    func(backends.FailedCounts)                              // receives the reaped jobs
	Pending   func([]backends.StoredPending)                           // receives the pending jobs that became jobs of their own
	Cancelled func(claims []backends.Token) (handled []backends.Token) // receives claims that an operator cancelled, until they are handled
	Batches   func(ended []backends.Batch)                             // receives batches that ended
	Log       *slog.Logger
	Alone     bool                 // writes that begin during a batch of pruning wait for its end
	Jitter    backends.Jitter      // of the back-offs of reaped jobs
	Expiry    backends.QueueExpiry // of the jobs of schedules
}

// New returns a Maintainer.
func New(c Config) *Maintainer {
	return &Maintainer{Config: c, prune: pruning{alone: c.Alone}, poke: make(chan struct{}, 1)}
}

// Wake requests maintenance immediately. It does not wait for it.
func (m *Maintainer) Wake() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// Run maintains until ctx is done.
func (m *Maintainer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-m.poke:
		}
		next, err := m.maintain(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && failing:
			m.Log.Info("maintenance succeeds again", "event", "maintenance_recovered")
		case err != nil && !failing:
			m.Log.Warn("maintenance failed, retrying", "event", "maintenance_failed", "error", err)
		}
		failing = err != nil
		timer.Reset(next)
	}
}

// maintain runs batches while they come back full, and returns when to run the next ones. Pruning has its own
// pace. Each part of a batch runs without the others: what some of them did counts, even if another one failed.
func (m *Maintainer) maintain(ctx context.Context) (time.Duration, error) {
	for {
		sidecar := m.Heartbeat.Identity()
		most, watched := m.Times.Timeout(), m.Heartbeat.Watched()
		prune := !watched && m.prune.due(time.Now())
		batchCtx, cancel := backendref.WithTimeout(ctx, most)
		swept, err := m.Backend.Maintain(batchCtx, backends.Maintenance{
			Waiting:    m.Claims.Waiting(),
			Suspects:   m.Heartbeat.Suspects(),
			Sidecar:    sidecar,
			Handled:    m.handled.of(sidecar),
			Watched:    watched,
			Prune:      prune,
			Limit:      batchLimit,
			PruneBatch: m.prune.batchSize(),
			Jitter:     m.Jitter,
		})
		cancel()
		if prune && err != nil {
			m.prune.failed(time.Now())
		} else if prune {
			m.prune.pruned(time.Now(), swept, m.Heartbeat.Watchers())
			m.logUnusable(swept.Unusable)
		}
		if len(swept.Cancelled) > 0 {
			m.handled = handled{sidecar, m.Cancelled(swept.Cancelled)}
		} else if err == nil {
			m.handled = handled{}
		}
		m.Claims.NotifyReady(swept.Ready)
		m.Claims.NotifyReady(swept.MadeReady)
		m.Metrics().CountFailed(swept.Failed, false)
		LogFailed(m.Log, swept.Failed)
		m.Failed(swept.Failed)
		m.Pending(swept.Pending)
		for _, f := range swept.Failed {
			if f.Cause == backends.CauseTimedOut || f.Cause == backends.CauseTxLost { // other causes don't end a session's lease
				m.Heartbeat.LeasesEnded(f.Queue)
			}
		}
		fired := false
		if swept.ScheduleDue && !backends.Retryable(err) {
			var failed error
			fired, failed = m.fireSchedules(ctx, most)
			err = errors.Join(err, failed)
		}
		if swept.BatchesDue && !backends.Retryable(err) {
			more, failed := m.resolveBatches(ctx, most)
			fired = fired || more
			err = errors.Join(err, failed)
		}
		switch {
		case backends.Retryable(err):
			return interval + rand.N(interval), err
		case err != nil: // the failed part is still due, so the next known time would be now
			return interval - rand.N(jitter), err
		}
		if swept.More || fired {
			continue
		}
		next := interval - rand.N(jitter)
		if !watched {
			next = min(next, m.prune.wait(time.Now()))
		}
		for _, other := range []time.Duration{swept.Next, m.Heartbeat.UntilSuspect(), untilSchedule(&swept)} {
			if other >= 0 {
				next = min(next, other)
			}
		}
		return max(next, minPause), nil
	}
}

// handled are claims that a sidecar need not find again.
type handled struct {
	sidecar backends.Identity
	claims  []backends.Token
}

func (h handled) of(sidecar backends.Identity) []backends.Token {
	if h.sidecar != sidecar {
		return nil
	}
	return h.claims
}

// logUnusable logs an error that recurs with every batch once, until it changes or is gone.
func (m *Maintainer) logUnusable(unusable error) {
	if m.unusable.set(unusable) {
		m.Log.Warn("unusable row skipped", "event", "row_skipped", "error", unusable)
	}
}

// errorChange is the text of the last error, empty if there was none.
type errorChange string

// set stores err, and reports whether it is an error and differs from the last one.
func (e *errorChange) set(err error) bool {
	last := *e
	*e = ""
	if err != nil {
		*e = errorChange(err.Error())
	}
	return err != nil && *e != last
}
