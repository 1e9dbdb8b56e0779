package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestWaitThen checks that f of then is called once and after watch, whatever comes first, and that an answer doesn't end the wait.
func TestWaitThen(t *testing.T) {
	one, two := protocol.NumberID(1), protocol.NumberID(2)
	for name, c := range map[string]struct {
		over bool
		do   func(s *claimWaits, answered func()) // nil: nothing for a minute
	}{
		"an answer":        {false, func(_ *claimWaits, answered func()) { answered() }},
		"a cancel":         {true, func(s *claimWaits, _ func()) { s.cancel(one) }},
		"a cancel of all":  {true, func(s *claimWaits, _ func()) { s.cancel(protocol.RequestID{}) }},
		"the session ends": {true, func(s *claimWaits, _ func()) { s.end() }},
		"the limit":        {true, nil},
	} {
		for _, before := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var s claimWaits
					w, calls := s.add(one, time.Minute), 0
					s.cancel(two)
					do := func(answered func()) {
						if c.do != nil {
							c.do(&s, answered)
							return
						}
						time.Sleep(time.Minute)
						synctest.Wait()
					}
					var answered func()
					w.then(func(report func()) {
						answered = report
						if before {
							do(answered)
						}
						if calls > 0 {
							t.Error("f was called while watch ran")
						}
					}, func() { calls++ })
					if !before {
						do(answered)
					}
					if calls != 1 {
						t.Fatalf("f was called %d times", calls)
					}
					select {
					case <-w.done():
						if !c.over {
							t.Error("the wait is over")
						}
					default:
						if c.over {
							t.Error("the wait isn't over")
						}
					}
					s.forget(w)
					answered()
					<-w.done()
					if calls != 1 || len(s.all) > 0 {
						t.Errorf("f was called %d times, and %d waits are left", calls, len(s.all))
					}
				})
			})
		}
	}
}

func TestWaitOfAnEndedSession(t *testing.T) {
	var s claimWaits
	s.end()
	w := s.add(protocol.NumberID(1), time.Minute)
	<-w.done()
	s.forget(w)
}
