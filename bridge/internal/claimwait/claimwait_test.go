package claimwait

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestThen checks that f of Then is called once and after watch, whatever comes first, and that an answer doesn't end the wait.
func TestThen(t *testing.T) {
	one, two := protocol.NumberID(1), protocol.NumberID(2)
	for name, c := range map[string]struct {
		over bool
		do   func(s *Waits, answered func()) // nil: nothing for a minute
	}{
		"an answer":        {false, func(_ *Waits, answered func()) { answered() }},
		"a cancel":         {true, func(s *Waits, _ func()) { s.Cancel(one) }},
		"a cancel of all":  {true, func(s *Waits, _ func()) { s.Cancel(protocol.RequestID{}) }},
		"the session ends": {true, func(s *Waits, _ func()) { s.End() }},
		"the limit":        {true, nil},
	} {
		for _, before := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var s Waits
					w, calls := s.New(one, time.Minute), 0
					s.Cancel(two)
					do := func(answered func()) {
						if c.do != nil {
							c.do(&s, answered)
							return
						}
						time.Sleep(time.Minute)
						synctest.Wait()
					}
					var answered func()
					w.Then(func(report func()) {
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
					answered()
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
