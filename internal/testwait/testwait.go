// Package testwait has the one time limit of the tests. A test waits for a fact, and the limit
// matters only if the fact never becomes true. No test passes or fails because a machine is fast or
// slow. Test code uses this package instead of time.After, time.Since and context.WithTimeout.
// Package testrules checks that.
package testwait

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

// EnvLimit names the environment variable that replaces the default limit, as a Go
// duration ("5m"). It can only be longer: on a virtual clock, tests outwait the product's
// time-outs of up to 30 s.
const EnvLimit = "QSIDECAR_TEST_LIMIT"

// Limit is how long a test waits for a fact: three minutes, or the value of EnvLimit. A member of a database cluster that comes back
// on a busy machine can need more than one.
var Limit = limit(os.Getenv(EnvLimit))

const defaultLimit = 3 * time.Minute

func limit(text string) time.Duration {
	if text == "" {
		return defaultLimit
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < defaultLimit {
		panic(fmt.Sprintf("%s=%q is not a duration of at least 3m, such as 5m", EnvLimit, text))
	}
	return d
}

// Until returns as soon as fact returns true. It fails the test at the limit. fact runs
// on the test's goroutine, many times a second, so it must be cheap.
func Until(t testing.TB, what string, fact func() bool) {
	t.Helper()
	began := time.Now()
	for deadline := Deadline(); !fact(); time.Sleep(pause(began, often)) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v (%s): %s", Limit, EnvLimit, what)
		}
	}
}

// Receive returns the next value of a channel. It fails the test at the limit, or if the
// channel is closed.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case v, ok := <-from:
		if !ok {
			t.Fatalf("channel closed: %s", what)
		}
		return v
	case <-timer.C:
		t.Fatalf("not within %v (%s): %s", Limit, EnvLimit, what)
		panic("unreachable")
	}
}

// Closed returns when the channel is closed. It fails the test at the limit.
func Closed(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatalf("not within %v (%s): %s", Limit, EnvLimit, what)
	}
}

// Context ends at the limit, or when the test ends.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	t.Cleanup(cancel)
	return ctx
}

// Deadline returns the instant at which a wait that starts now ends, for SetDeadline.
func Deadline() time.Time { return time.Now().Add(Limit) }
