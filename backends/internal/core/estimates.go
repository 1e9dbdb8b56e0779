package core

import (
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Estimates holds counts above backends.StatsExact. Each costs a scan of an index, so it is queried at most
// every ten seconds.
type Estimates struct {
	mu sync.Mutex
	of map[counted]estimate
}

type counted struct {
	queue string
	state backends.State
}

type estimate struct {
	n  int64
	at time.Time
}

const (
	estimateAge  = 10 * time.Second
	maxEstimates = 10_000
)

// Fill replaces the counts of s that reached the limit. It uses an estimate if that is recent, and otherwise
// calls count.
func (e *Estimates) Fill(now time.Time, s *backends.QueueStats, count func(state backends.State) (int64, error)) error {
	for state, n := range Counts(s) {
		if *n <= backends.StatsExact {
			continue
		}
		s.Approx = true
		c := counted{s.Queue, state}
		e.mu.Lock()
		known, ok := e.of[c]
		e.mu.Unlock()
		if ok && now.Sub(known.at) < estimateAge {
			*n = known.n
			continue
		}
		var err error
		if *n, err = count(state); err != nil {
			return err
		}
		e.mu.Lock()
		if e.of == nil || len(e.of) >= maxEstimates {
			e.of = map[counted]estimate{}
		}
		e.of[c] = estimate{n: *n, at: now}
		e.mu.Unlock()
	}
	return nil
}

// Counts returns pointers to the counts of s, by state.
func Counts(s *backends.QueueStats) map[backends.State]*int64 {
	return map[backends.State]*int64{
		backends.StateReady: &s.Ready, backends.StateBlocked: &s.Blocked, backends.StateScheduled: &s.Scheduled, backends.StateClaimed: &s.Claimed,
		backends.StateDone: &s.Done, backends.StateDead: &s.Dead,
	}
}
