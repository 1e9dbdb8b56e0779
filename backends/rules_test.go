package backends_test

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func TestFatesOfWhatWasClaimedAhead(t *testing.T) {
	t.Parallel()
	// The second try of three; its sidecar was lost with it unrecorded once.
	s := backends.Standing{Attempts: 2, Limit: 3, Losses: 0, Backoff: time.Second, BackoffMax: time.Minute, Ahead: true, Unrecorded: 1}
	recorded := s
	recorded.Ahead = false
	failed := func(losses, unrecorded int, c backends.Cause) backends.Fate {
		f := backends.Fate{State: backends.StateReady, Attempts: 2, Losses: losses, Unrecorded: unrecorded, Cause: c}
		if c == backends.CauseTimedOut || c == backends.CauseNacked {
			f.State, f.Delay = backends.StateScheduled, 2*time.Second
		}
		return f
	}
	back := backends.Fate{State: backends.StateReady, SamePosition: true, Attempts: 1, Unrecorded: 1}
	lost := back
	lost.Unrecorded = 2
	for name, c := range map[string]struct{ got, want backends.Fate }{
		"given back":                {s.Released(backends.Release{Uncharged: true}), back},
		"its sidecar lost":          {s.Reaped(backends.CauseSidecarLost), lost},
		"the same, recorded":        {recorded.Reaped(backends.CauseSidecarLost), failed(1, 1, backends.CauseSidecarLost)},
		"over its deadline":         {s.Reaped(backends.CauseTimedOut), failed(1, 0, backends.CauseTimedOut)},
		"its lease ended":           {s.Reaped(backends.CauseLeaseEnded), failed(1, 0, backends.CauseLeaseEnded)},
		"disconnected":              {s.Released(backends.Release{Cause: backends.CauseDisconnected}), failed(1, 0, backends.CauseDisconnected)},
		"nacked":                    {s.Nacked(backends.Nack{}), failed(0, 0, backends.CauseNacked)},
		"nacked uncharged, no wait": {s.Nacked(backends.Nack{Uncharged: true, HasDelay: true}), backends.Fate{State: backends.StateReady, Attempts: 1, Unrecorded: 1}},
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
		if got := (backends.Slot{Ahead: c.ahead}).Uncharged(c.unrecorded, c.limit); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
