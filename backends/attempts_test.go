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
		"given back":                {s.AfterRelease(backends.Release{Uncounted: true}), back},
		"its sidecar lost":          {s.AfterReap(backends.CauseSidecarLost), lost},
		"the same, recorded":        {recorded.AfterReap(backends.CauseSidecarLost), failed(1, 1, backends.CauseSidecarLost)},
		"over its deadline":         {s.AfterReap(backends.CauseTimedOut), failed(1, 0, backends.CauseTimedOut)},
		"its lease ended":           {s.AfterReap(backends.CauseLeaseEnded), failed(1, 0, backends.CauseLeaseEnded)},
		"disconnected":              {s.AfterRelease(backends.Release{Cause: backends.CauseDisconnected}), failed(1, 0, backends.CauseDisconnected)},
		"nacked":                    {s.AfterNack(backends.Nack{}), failed(0, 0, backends.CauseNacked)},
		"nacked uncharged, no wait": {s.AfterNack(backends.Nack{Snooze: true, HasDelay: true}), backends.Disposition{State: backends.StateReady, Attempts: 1, PrefetchLosses: 1}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", name, c.got, c.want)
		}
	}
}

func TestWhatIsClaimedUncharged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ahead             bool
		unrecorded, limit int
		want              bool
	}{{true, 0, 1, true}, {true, 1, 1, false}, {true, 2, 3, true}, {true, 4, 3, false}, {false, 0, 3, false}} {
		if got := (backends.Slot{Prefetch: c.ahead}).Uncounted(c.unrecorded, c.limit); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
