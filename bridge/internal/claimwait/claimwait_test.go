package claimwait

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestThen checks that f of Then is called once, whatever comes first, and that an answer doesn't end the wait.
func TestThen(t *testing.T) {
	one, two := protocol.NumberID(1), protocol.NumberID(2)
	for name, c := range map[string]struct {
		over bool
		do   func(s *Waits, w *Wait) // nil: nothing for a minute
	}{
		"an answer":        {false, func(_ *Waits, w *Wait) { w.Answered() }},
		"a cancel":         {true, func(s *Waits, _ *Wait) { s.Cancel(one) }},
		"a cancel of all":  {true, func(s *Waits, _ *Wait) { s.Cancel(protocol.RequestID{}) }},
		"the session ends": {true, func(s *Waits, _ *Wait) { s.End() }},
		"the limit":        {true, nil},
	} {
		for _, before := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var s Waits
					w, calls := s.New(one, time.Minute), 0
					s.Cancel(two)
					then := func() { w.Then(func() { calls++ }) }
					if !before {
						then()
					}
					if c.do != nil {
						c.do(&s, w)
					} else {
						time.Sleep(time.Minute)
						synctest.Wait()
					}
					if before {
						then()
					}
					if calls != 1 {
						t.Fatalf("f was called %d times", calls)
					}
					select {
					case <-w.Done():
						if !c.over {
							t.Error("the wait is over")
						}
					default:
						if c.over {
							t.Error("the wait isn't over")
						}
					}
					s.Forget(w)
					w.Answered()
					<-w.Done()
					if calls != 1 || len(s.all) > 0 {
						t.Errorf("f was called %d times, and %d waits are left", calls, len(s.all))
					}
				})
			})
		}
	}
}

func TestWaitOfAnEndedSession(t *testing.T) {
	var s Waits
	s.End()
	w := s.New(protocol.NumberID(1), time.Minute)
	<-w.Done()
	s.Forget(w)
}
