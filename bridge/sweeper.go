package bridge

import (
	"context"
	"fmt"
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
	pruneEvery  = 10 * time.Second
)

// sweeper is the reaper, the promoter and the poller of one database: one look
// for all of its queues.
type sweeper struct {
	backend *link
	keeper  *keeper
	broker  *broker
	times   *leaseTimes
	log     *slog.Logger
	poke    chan struct{} // 1: one wish to sweep at once is enough
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
	var pruned time.Time
	var failing bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.poke:
		}
		prune := time.Since(pruned) >= pruneEvery
		next, err := s.sweep(ctx, prune)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && failing:
			s.log.Info("housekeeping reaches the database again")
		case err != nil && !failing:
			s.log.Warn("housekeeping failed and is tried again: ended leases and due jobs wait", "error", err)
		}
		failing = err != nil
		if prune && err == nil {
			pruned = time.Now()
		}
		timer.Reset(next)
	}
}

// sweep takes bites while they come back full, and says when to look again.
func (s *sweeper) sweep(ctx context.Context, prune bool) (time.Duration, error) {
	for {
		most := s.times.patience()
		biteCtx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("sweep: not done within %v", most))
		swept, err := s.backend.Sweep(biteCtx, backends.Sweep{
			Waiting:  s.broker.waiting(),
			Suspects: s.keeper.suspects(),
			Prune:    prune,
			Limit:    sweepLimit,
		})
		cancel()
		if err != nil {
			return sweepEvery + rand.N(sweepEvery), err
		}
		s.broker.hint(swept.Ready)
		s.broker.hint(swept.Freed)
		for cause, n := range swept.Reaped {
			s.log.Info("jobs taken back", "cause", cause, "jobs", n)
		}
		if swept.More {
			continue
		}
		next := sweepEvery - rand.N(sweepJitter)
		if swept.Next >= 0 {
			next = min(next, max(swept.Next, sweepSoon))
		}
		return next, nil
	}
}
