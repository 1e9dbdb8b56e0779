package bridge

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// sweepEvery is the pause at idle, less a jitter that keeps hosts out of step:
	// a due job is ready, an ended lease free and a plain INSERT seen within a
	// second, and an idle host asks its database about once a second.
	sweepEvery  = 800 * time.Millisecond
	sweepJitter = 100 * time.Millisecond
	sweepSoon   = 10 * time.Millisecond // the shortest pause before something known to come due
	sweepLimit  = 500                   // rows of each kind in one bite
)

const (
	logUnpruned = "rows whose time is over cannot be deleted, and stay"
	logUnusable = "row skipped: it holds a value that a sidecar can't use"
)

// readyClaims are the claims that maintenance has jobs for.
type readyClaims interface {
	// waiting lists the queues that claims wait for.
	waiting() []string
	// hint says that the queues may have about so many ready jobs each.
	hint(queues []string, each int)
}

// sweeper is the reaper, the promoter and the poller of one database: one look
// for all of its queues.
type sweeper struct {
	backend *link
	keeper  *keeper
	claims  readyClaims
	times   *leaseTimes
	metrics func() *databaseMetrics
	log     *slog.Logger
	prune   pruning
	logged  map[string]string // by message, the error that was last logged with it
	poke    chan struct{}     // 1: one wish to sweep at once is enough
}

func (s *sweeper) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// run sweeps until ctx is done.
func (s *sweeper) run(ctx context.Context) error {
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
		next, err := s.sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && failing:
			s.log.Info("housekeeping reaches the database again")
		case err != nil && !failing:
			s.log.Warn("housekeeping failed and is tried again: ended leases and due jobs wait", "error", err)
		}
		failing = err != nil
		timer.Reset(next)
	}
}

// sweep takes bites while they come back full, and says when to look again. Pruning
// keeps its own pace.
func (s *sweeper) sweep(ctx context.Context) (time.Duration, error) {
	for {
		most, prune := s.times.patience(), s.prune.due(time.Now())
		biteCtx, cancel := answerWithin(ctx, most)
		swept, err := s.backend.Maintain(biteCtx, backends.Maintenance{
			Waiting:    s.claims.waiting(),
			Suspects:   s.keeper.suspects(),
			Prune:      prune,
			Limit:      sweepLimit,
			PruneBatch: s.prune.most(),
		})
		cancel()
		if err != nil {
			if prune {
				s.prune.failed(time.Now())
			}
			return sweepEvery + rand.N(sweepEvery), err
		}
		if prune {
			s.prune.pruned(time.Now(), swept, s.keeper.peers())
			s.logOnce(logUnpruned, swept.PruneRefused)
			s.logOnce(logUnusable, swept.Unusable)
		}
		s.claims.hint(swept.Ready, someJobs)
		s.claims.hint(swept.MadeReady, someJobs)
		s.metrics().fallen(swept.Failed, false)
		logFallen(s.log, swept.Failed)
		if swept.More {
			continue
		}
		next := min(sweepEvery-rand.N(sweepJitter), s.prune.left(time.Now()))
		if swept.Next >= 0 {
			next = min(next, swept.Next)
		}
		return max(next, sweepSoon), nil
	}
}

// logOnce logs an error that every look finds again, until it is another one or gone.
func (s *sweeper) logOnce(message string, err error) {
	switch {
	case err == nil:
		delete(s.logged, message)
	case s.logged[message] != err.Error():
		s.logged[message] = err.Error()
		s.log.Warn(message, "error", err)
	}
}
