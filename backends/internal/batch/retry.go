package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Pause waits about d; false: ctx ended.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Known says that err has its kind already.
func Known(err error) bool {
	var u *backends.UnsupportedError
	var l *backends.LockedError
	return backends.Retryable(err) || backends.IsRefused(err) || errors.As(err, &u) || errors.As(err, &l) ||
		errors.Is(err, backends.ErrUnknownOutcome) || errors.Is(err, backends.ErrEvicted) ||
		errors.Is(err, backends.ErrNoSuchJob) || errors.Is(err, backends.ErrKeyTaken)
}

// Ended is the error of a call whose ctx is over and that changed nothing.
func Ended(ctx context.Context, doing string) error {
	return backends.Unavailable(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}
