package pipeline

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestFailuresAreLoggedOnce shows that an error that lasts is logged once, and again after it was gone.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var l failureLog
	var now time.Duration
	err := errors.New("no right on qsidecar_jobs")
	logged := 0
	for range 1000 {
		if l.isNew("claim", err, now) {
			logged++
		}
		now += failureEnds / 2
	}
	if logged != 1 || !l.isNew("write", err, now) || !l.isNew("claim", errors.New("another"), now) {
		t.Errorf("logged %d times, want once, and other errors too", logged)
	}
	if now += 2 * failureEnds; !l.isNew("claim", err, now) {
		t.Error("an error that comes back is not logged")
	}
	for i := range 10 * maxFailures {
		l.isNew(fmt.Sprint(i), err, now)
	}
	if len(l.last) > maxFailures {
		t.Errorf("%d errors are kept", len(l.last))
	}
}
