package core

import (
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// apartTries is how many transactions a search for the refused rows of one queue takes at most. The rest of the
	// rows waits for the next call.
	apartTries = 60
	// apartRetries is how many rows are tried again in one call that were refused before.
	apartRetries = 20
)

// ErrSlow ends what takes longer than others can wait for it.
var ErrSlow = errors.New("a statement takes longer than other queues can wait for it: look for a trigger that waits, a cascade without an index, or a query that no index serves")

// Apart changes rows of which the database can refuse some. The refused ones become obstacles, and keep the others
// from nothing.
type Apart[T any] struct {
	Set      *backends.ObstacleSet
	Obstacle func(row T) backends.Obstacle // without its error

	// Try changes rows in one transaction. An error means that it changed none.
	Try func(rows []T) error
}

// New returns the rows that were not refused before. They can be changed together.
func (a *Apart[T]) New(rows []T) (some []T) {
	for _, row := range rows {
		if o := a.Obstacle(row); !a.Set.Has(o.Queue, o.Job, o.Doing) {
			some = append(some, row)
		}
	}
	return some
}

// After continues after one transaction for the New ones of rows, which failed with err or succeeded. It finds the refused
// rows among them, and tries those again whose time has come. more: rows are left that were not tried.
// The error is an outage, or that of a transaction that found no rows.
func (a *Apart[T]) After(ctx context.Context, began time.Time, rows []T, err error) (more bool, _ error) {
	some := a.New(rows)
	if err != nil && (len(some) == 0 || IsOutage(ctx, err)) {
		return false, err
	}
	if err != nil {
		slow := errors.Is(err, ErrSlow)
		var queues []string
		byQueue := map[string][]T{}
		for _, row := range some {
			q := a.Obstacle(row).Queue
			if byQueue[q] == nil {
				queues = append(queues, q)
			}
			byQueue[q] = append(byQueue[q], row)
		}
		for _, q := range queues {
			if slow { // each further try would take as long
				o := a.Obstacle(byQueue[q][0])
				o.Job, o.Err = "", err
				a.Set.Note(o)
				continue
			}
			failed := err
			if len(queues) > 1 { // another queue was possibly the reason
				failed = a.Try(byQueue[q])
			}
			left, err := a.search(ctx, byQueue[q], failed)
			if err != nil {
				return false, err
			}
			more = more || left
		}
	}
	return more, a.again(ctx, began, rows)
}

// refusal is a row that was refused alone.
type refusal[T any] struct {
	row T
	err error
}

// search finds the refused rows of one queue, all of which together failed.
func (a *Apart[T]) search(ctx context.Context, rows []T, failed error) (left bool, _ error) {
	tries, changed := apartTries, 0
	var refused []refusal[T]
	var halve func(rows []T, err error) error
	halve = func(rows []T, err error) error {
		switch {
		case err == nil:
			changed += len(rows)
			return nil
		case IsOutage(ctx, err):
			return err
		case len(rows) == 1:
			refused = append(refused, refusal[T]{rows[0], err})
			return nil
		}
		for _, half := range [][]T{rows[:len(rows)/2], rows[len(rows)/2:]} {
			if tries--; tries < 0 {
				left = true
				return nil
			}
			if err := halve(half, a.Try(half)); err != nil {
				return err
			}
		}
		return nil
	}
	err := halve(rows, failed)
	if n := len(refused); n > 1 && changed == 0 && !ofRow(refused[0].err) && !ofRow(refused[n-1].err) {
		// A missing column or right refuses all rows alike.
		o := a.Obstacle(refused[0].row)
		o.Job, o.Err = "", refused[0].err
		a.Set.Note(o)
		return false, err
	}
	for _, r := range refused {
		o := a.Obstacle(r.row)
		o.Err = r.err
		a.Set.Note(o)
	}
	return left && len(refused)+changed > 0, err
}

// again tries rows that were refused before began, each alone.
func (a *Apart[T]) again(ctx context.Context, began time.Time, rows []T) error {
	tries := apartRetries
	for _, row := range rows {
		o := a.Obstacle(row)
		if tries == 0 || !a.Set.Due(o.Queue, o.Job, o.Doing, began) {
			continue
		}
		tries--
		switch err := a.Try([]T{row}); {
		case err == nil:
			a.Set.Clear(o.Queue, o.Job, o.Doing)
		case IsOutage(ctx, err):
			return err
		default:
			o.Err = err
			a.Set.Note(o)
		}
	}
	return nil
}

// IsOutage reports whether the database did not answer what was tried: it is unavailable, or the caller's time is over.
func IsOutage(ctx context.Context, err error) bool {
	return ctx.Err() != nil || backends.Retryable(err) || errors.Is(err, backends.ErrUnknownOutcome)
}

// isOfTable reports whether the reason of an error can be a table that is out of order: it is missing, a right on it is, or it refuses
// a row.
func isOfTable(ctx context.Context, err error) bool {
	return err != nil && !IsOutage(ctx, err) && !errors.Is(err, ErrNotAll) && !errors.Is(err, backends.ErrEvicted) && !isLockedError(err) &&
		(backends.IsRefused(err) || !Known(err))
}

// ofRow reports whether the reason of an error is probably the content of one row.
func ofRow(err error) bool {
	var l *backends.LockedError
	return backends.IsRefused(err) || errors.As(err, &l)
}

// RefusesRow reports whether one row is possibly the reason why the database ends a claim again and again.
func RefusesRow(err error) bool {
	locked, ok := errors.AsType[*backends.LockedError](err)
	return backends.IsRefused(err) || ok && locked.Conflict
}
