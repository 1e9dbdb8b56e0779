package maintenance

import (
	"context"
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
	Failed    func(backends.FailedCounts) // receives the reaped jobs
	Log       *slog.Logger
	Alone     bool            // writes that begin during a batch of pruning wait for its end
	Jitter    backends.Jitter // of the back-offs of reaped jobs
}

// New returns a Maintainer.
func New(c Config) *Maintainer {
	return &Maintainer{Config: c, prune: pruning{alone: c.Alone}, poke: make(chan struct{}, 1)}
}

// Wake requests maintenance immediately. It does not wait for it.
func (s *Maintainer) Wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// Run maintains until ctx is done.
func (s *Maintainer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.poke:
		}
		next, err := s.maintain(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && failing:
			s.Log.Info("maintenance succeeds again", "event", "maintenance_recovered")
		case err != nil && !failing:
			s.Log.Warn("maintenance failed, retrying", "event", "maintenance_failed", "error", err)
		}
		failing = err != nil
		timer.Reset(next)
	}
}

// maintain runs batches while they come back full, and returns when to run the next ones. Pruning has its own
// pace. Each part of a batch runs without the others: what some of them did counts, even if another one failed.
func (s *Maintainer) maintain(ctx context.Context) (time.Duration, error) {
	for {
		most, watched := s.Times.Timeout(), s.Heartbeat.Watched()
		prune := !watched && s.prune.due(time.Now())
		batchCtx, cancel := backendref.WithTimeout(ctx, most)
		swept, err := s.Backend.Maintain(batchCtx, backends.Maintenance{
			Waiting:    s.Claims.Waiting(),
			Suspects:   s.Heartbeat.Suspects(),
			Host:       s.Heartbeat.Identity(),
			Watched:    watched,
			Prune:      prune,
			Limit:      batchLimit,
			PruneBatch: s.prune.batchSize(),
			Jitter:     s.Jitter,
		})
		cancel()
		if prune && err != nil {
			s.prune.failed(time.Now())
		} else if prune {
			s.prune.pruned(time.Now(), swept, s.Heartbeat.Watchers())
			s.logUnusable(swept.Unusable)
		}
		s.Claims.NotifyReady(swept.Ready)
		s.Claims.NotifyReady(swept.MadeReady)
		s.Metrics().CountFailed(swept.Failed, false)
		LogFailed(s.Log, swept.Failed)
		s.Failed(swept.Failed)
		switch {
		case backends.Retryable(err):
			return interval + rand.N(interval), err
		case err != nil: // the failed part is still due, so the next known time would be now
			return interval - rand.N(jitter), err
		}
		if swept.More {
			continue
		}
		next := interval - rand.N(jitter)
		if !watched {
			next = min(next, s.prune.wait(time.Now()))
		}
		for _, other := range []time.Duration{swept.Next, s.Heartbeat.UntilSuspect()} {
			if other >= 0 {
				next = min(next, other)
			}
		}
		return max(next, minPause), nil
	}
}

// logUnusable logs an error that recurs with every batch once, until it changes or is gone.
func (s *Maintainer) logUnusable(unusable error) {
	if s.unusable.set(unusable) {
		s.Log.Warn("unusable row skipped", "event", "row_skipped", "error", unusable)
	}
}

// errorChange is the text of the last error, empty if there was none.
type errorChange string

// set stores err, and reports whether it is an error and differs from the last one.
func (c *errorChange) set(err error) bool {
	last := *c
	*c = ""
	if err != nil {
		*c = errorChange(err.Error())
	}
	return err != nil && *c != last
}
