package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/schedules"
)

const (
	// MaxTries is how often a transaction is run at most, except after backends.RetryCertification: the nodes of a
	// cluster that change the same rows make each other fail often, and one of them succeeds each time.
	MaxTries = 8
	// RetryPause is the base of the wait between two tries. The wait doubles with each try.
	RetryPause = 2 * time.Millisecond
	// longestPause is the longest wait between two tries.
	longestPause = time.Second
	// certificationPause is the longest wait after a failed certification.
	certificationPause = 32 * time.Millisecond
)

// ErrNotAll means that Writer.Ack could not end all claims although it returned sure. Nothing was written.
var ErrNotAll = errors.New("some acks need a query for their rows")

// ErrAgain means that something changed under a transaction, which must be run again.
var ErrAgain = errors.New("a row changed after the transaction read it")

// Write runs f in a transaction until that is committed, or certainly isn't.
func (s *Store) Write(ctx context.Context, o TxOptions, f func(ctx context.Context, tx Tx) error) error {
	return s.Again(ctx, func(ctx context.Context) error { return s.driver.Transact(ctx, o, f) })
}

// read runs f on one state of the database.
func (s *Store) read(ctx context.Context, f func(ctx context.Context, r Reader) error) error {
	return s.Again(ctx, func(ctx context.Context) error { return s.driver.Read(ctx, f) })
}

// readJobs is read of qsidecar_jobs.
func (s *Store) readJobs(ctx context.Context, f func(ctx context.Context, r Reader) error) error {
	return s.within(ctx, backends.OwnJobs, func(ctx context.Context) error { return s.read(ctx, f) })
}

// Again runs f until it succeeds, a retry can't help, or the Store is closed. It gives the error its kind. An
// error of f must mean that nothing was written, unless it is backends.ErrUnknownOutcome.
func (s *Store) Again(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, done := s.Bound(ctx)
	defer done()
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return s.Outcome(ctx, context.Cause(ctx))
		}
		err := f(ctx)
		switch {
		case errors.Is(err, ErrNotAll):
			return err
		case err == nil || ctx.Err() != nil || Known(err):
			return s.Outcome(ctx, err)
		}
		again, cause, wait := s.driver.Retry(ctx, err)
		longest := longestPause
		if again && cause == backends.RetryCertification {
			longest = certificationPause
		} else if try >= MaxTries && again && cause == backends.RetryConflict {
			// A trigger can raise such an error for one row each time. The rest of the work must not wait for it.
			return &backends.LockedError{Err: fmt.Errorf("%s: %w", s.address, err), Conflict: true}
		} else if try >= MaxTries || !again && !errors.Is(err, ErrAgain) {
			return s.Outcome(ctx, err)
		}
		s.Meter.Retry(cause)
		s.log.Debug("transaction retried", "event", "transaction_retried", "address", s.address, "error", err)
		if !Pause(ctx, min(max(wait, RetryPause)<<min(try, MaxTries), longest)) {
			return s.Outcome(ctx, err)
		}
	}
}

const (
	// lockPatience is for how long a change that waits alone is tried again while its locks aren't free.
	lockPatience = 5 * time.Second
	// sharedPatience is the same for a commit with the writes of others. It is longer than most commits of other
	// sidecars, and shorter than most transactions of applications.
	sharedPatience = 250 * time.Millisecond
)

// patiently runs f until it returns another error than a LockedError, or the time is over. f ends its transaction
// before it returns, so it has nothing locked during the pauses.
func patiently(ctx context.Context, patience time.Duration, f func() error) error {
	began := time.Now()
	for pause := RetryPause; ; pause = min(2*pause, 200*time.Millisecond) {
		var locked *backends.LockedError
		err := f()
		if !errors.As(err, &locked) || time.Since(began) >= patience || !Pause(ctx, pause) {
			return err
		}
	}
}

// Outcome gives the error of a call its kind. If ctx ended, the error contains the reason.
func (s *Store) Outcome(ctx context.Context, err error) error {
	if err == nil || Known(err) {
		return err
	}
	if ctx.Err() != nil && !s.driver.FromServer(err) {
		return Interrupted(ctx, "waiting for "+s.address)
	}
	if errors.Is(err, ErrAgain) {
		return backends.Unavailable(fmt.Errorf("%s: %w", s.address, err))
	}
	err = s.driver.WithKind(err)
	if backends.LacksRight(err) {
		s.outages.suspected.Store(true)
	}
	return err
}

// Pause waits between half of d and one and a half times d. It returns false if ctx ended.
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

// Known reports whether err has its kind already.
func Known(err error) bool {
	var u *backends.UnsupportedError
	var l *backends.LockedError
	var d *backends.ScheduleError
	var b *backends.BatchError
	return backends.Retryable(err) || errors.As(err, &d) || errors.As(err, &b) || errors.Is(err, backends.ErrNoSuchSchedule) || errors.Is(err, schedules.ErrDry) || backends.IsRefused(err) || errors.As(err, &u) || errors.As(err, &l) ||
		errors.Is(err, backends.ErrUnknownOutcome) || errors.Is(err, backends.ErrEvicted) ||
		errors.Is(err, backends.ErrNoSuchJob) ||
		errors.Is(err, backends.ErrLimits)
}

// Interrupted returns the error of a call whose ctx ended and that changed nothing.
func Interrupted(ctx context.Context, doing string) error {
	return backends.Unavailable(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}
