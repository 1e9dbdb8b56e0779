package backends_test

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func TestDispositionsOfPrefetchedJobs(t *testing.T) {
	t.Parallel()
	// The second attempt of three. Its sidecar was lost once while the delivery was unrecorded.
	s := backends.AttemptState{Attempts: 2, Limit: 3, Losses: 0, Backoff: time.Second, BackoffMax: time.Minute, Prefetched: true, PrefetchLosses: 1}
	recorded := s
	recorded.Prefetched = false
	failed := func(losses, unrecorded int, c backends.Cause) backends.Disposition {
		f := backends.Disposition{State: backends.StateReady, Attempts: 2, Losses: losses, PrefetchLosses: unrecorded, Cause: c}
		if c == backends.CauseTimedOut || c == backends.CauseNacked {
			f.State, f.Delay = backends.StateScheduled, 2*time.Second
		}
		return f
	}
	back := backends.Disposition{State: backends.StateReady, SamePosition: true, Attempts: 1, PrefetchLosses: 1}
	lost := back
	lost.PrefetchLosses = 2
	for name, c := range map[string]struct{ got, want backends.Disposition }{
		"given back":                {s.AfterRelease(backends.Release{Uncounted: true}, 0), back},
		"its sidecar lost":          {s.AfterReap(backends.CauseSidecarLost, 0), lost},
		"the same, recorded":        {recorded.AfterReap(backends.CauseSidecarLost, 0), failed(1, 1, backends.CauseSidecarLost)},
		"over its deadline":         {s.AfterReap(backends.CauseTimedOut, 0), lost},
		"the same, delivered":       {recorded.AfterReap(backends.CauseTimedOut, 0), failed(0, 0, backends.CauseTimedOut)},
		"disconnected":              {s.AfterRelease(backends.Release{Cause: backends.CauseDisconnected}, 0), failed(1, 0, backends.CauseDisconnected)},
		"nacked":                    {s.AfterNack(backends.Nack{}, 0), failed(0, 0, backends.CauseNacked)},
		"nacked uncharged, no wait": {s.AfterNack(backends.Nack{Snooze: true, HasDelay: true}, 0), backends.Disposition{State: backends.StateReady, Attempts: 1, PrefetchLosses: 1}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", name, c.got, c.want)
		}
	}
}

// TestJitter: each back-off has it, also at its maximum, and nothing else does.
func TestJitter(t *testing.T) {
	t.Parallel()
	s := backends.AttemptState{Attempts: 2, Limit: 9, Losses: 1, Backoff: time.Minute, BackoffMax: time.Hour}
	late := s
	late.Attempts = 8
	lost := backends.Release{Cause: backends.CauseDisconnected}
	for name, c := range map[string]struct {
		of   func(jitter float64) backends.Disposition
		want time.Duration // without jitter
		none bool
	}{
		"nacked":             {of: func(j float64) backends.Disposition { return s.AfterNack(backends.Nack{}, j) }, want: 2 * time.Minute},
		"at the maximum":     {of: func(j float64) backends.Disposition { return late.AfterNack(backends.Nack{}, j) }, want: time.Hour},
		"snoozed":            {of: func(j float64) backends.Disposition { return s.AfterNack(backends.Nack{Snooze: true}, j) }, want: time.Minute},
		"lost a second time": {of: func(j float64) backends.Disposition { return s.AfterRelease(lost, j) }, want: 2 * time.Minute},
		"reaped":             {of: func(j float64) backends.Disposition { return s.AfterReap(backends.CauseSidecarLost, j) }, want: 2 * time.Minute},
		"over its deadline":  {of: func(j float64) backends.Disposition { return s.AfterReap(backends.CauseTimedOut, j) }, want: 2 * time.Minute},
		"nacked with a delay": {of: func(j float64) backends.Disposition {
			return s.AfterNack(backends.Nack{HasDelay: true, Delay: time.Second}, j)
		}, want: time.Second, none: true},
		"snoozed with a delay": {of: func(j float64) backends.Disposition {
			return s.AfterNack(backends.Nack{Snooze: true, HasDelay: true, Delay: time.Second}, j)
		}, want: time.Second, none: true},
		"given back": {of: func(j float64) backends.Disposition { return s.AfterRelease(backends.Release{Uncounted: true}, j) }, none: true},
	} {
		for _, jitter := range []float64{-0.1, 0, 0.1} {
			want := c.want
			if !c.none {
				want += time.Duration(jitter*10) * c.want / 10
			}
			if got := c.of(jitter).Delay; got != want {
				t.Errorf("%s, jitter %v: due in %v, want %v", name, jitter, got, want)
			}
		}
	}
}

func TestWhatIsClaimedUncharged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ahead, alone      bool
		unrecorded, limit int
		want              bool
	}{
		{true, false, 0, 1, true}, {true, false, 1, 1, false}, {true, false, 2, 3, true}, {true, false, 4, 3, false},
		{false, false, 0, 3, false}, {false, true, 0, 3, true}, {false, true, 3, 3, false},
	} {
		if got := (backends.Slot{Prefetch: c.ahead}).Uncounted(c.unrecorded, c.limit, c.alone); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestWhatIsDeliveredAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		attempt, limit, losses int
		lease                  time.Duration
		want                   bool
	}{
		{3, 3, 1, 0, true}, {3, 3, 2, 0, true}, {4, 3, 1, 0, true}, {2, 3, 1, 0, false}, {3, 3, 0, 0, false}, {3, 3, -2, 0, false},
		{1, 1, 0, 0, false}, {3, 3, 1, time.Second, false},
	} {
		if got := (backends.Slot{Lease: c.lease}).Alone(c.attempt, c.limit, c.losses); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
