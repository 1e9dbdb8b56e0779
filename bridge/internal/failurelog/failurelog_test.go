package failurelog

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestFailuresAreLoggedOnce shows that an error that lasts is logged once, and again after it was gone.
func TestFailuresAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Log
		err := errors.New("no right on qsidecar_jobs")
		logged := 0
		for range 1000 {
			if l.IsNew("claim", err) {
				logged++
			}
			time.Sleep(ends / 2)
		}
		if logged != 1 || !l.IsNew("write", err) || !l.IsNew("claim", errors.New("another")) {
			t.Errorf("logged %d times, want once, and other errors too", logged)
		}
		if time.Sleep(2 * ends); !l.IsNew("claim", err) {
			t.Error("an error that comes back is not logged")
		}
		for i := range 10 * most {
			l.IsNew(fmt.Sprint(i), err)
		}
		if len(l.last) > most {
			t.Errorf("%d errors are kept", len(l.last))
		}
	})
}
