package backends

import (
	"crypto/tls"
	"errors"
	"fmt"
)

var (
	// ErrUnknownOutcome says: the change may have been committed and may not.
	ErrUnknownOutcome = errors.New("the connection broke inside the commit and its outcome could not be found out")

	// ErrEvicted says: the batch's host was given up, so that it must not claim.
	ErrEvicted = errors.New("this sidecar was given up by another one: its beat was late")

	// ErrTxLost says: the connection that held a job's row is gone, and with it the lock.
	// Nothing was written.
	ErrTxLost = errors.New("the connection that held the job's row locked is gone")

	// ErrNoSuchJob says: a job that the caller named does not exist.
	ErrNoSuchJob = errors.New("no such job")

	// ErrKeyTaken says: another job has the key by now.
	ErrKeyTaken = errors.New("another job has the same key by now")
)

// UnavailableError says that the database cannot be had just now (unreachable,
// read-only, disk full, locked by another program): nothing was written, and
// trying again later can help.
type UnavailableError struct {
	Err      error
	Denied   bool // the server is there, and does not let this role in: its settings are wrong, here or there
	DiskFull bool // the disk has no room for this change: another one may need none
}

// Unavailable wraps err as an UnavailableError.
func Unavailable(err error) error { return &UnavailableError{Err: err} }

// Denied wraps err as an UnavailableError of a server that does not let this role in: a
// wrong password or name, or no such database.
func Denied(err error) error { return &UnavailableError{Err: err, Denied: true} }

// DiskFull wraps err as an UnavailableError of a disk that has no room for the change.
func DiskFull(err error) error { return &UnavailableError{Err: err, DiskFull: true} }

// Error implements error.
func (e *UnavailableError) Error() string { return fmt.Sprintf("database unavailable: %v", e.Err) }

// Unwrap gives the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// RefusedError says that the database will not have this change, however often
// it is tried: a trigger, a constraint, a value it cannot store. Nothing was
// written. Err's text is the database's own words.
type RefusedError struct{ Err error }

// Refused wraps err as a RefusedError.
func Refused(err error) error { return &RefusedError{Err: err} }

// Error implements error.
func (e *RefusedError) Error() string { return fmt.Sprintf("the database refused it: %v", e.Err) }

// Unwrap gives the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// LockedError says that another program holds a row of its table that a write has
// to change, or has stored the key of a job in a transaction that is open. Nothing was
// written. The same write may succeed later; those in the
// same commit may at once, without it.
type LockedError struct{ Err error }

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("another program's open transaction holds the job's row, or its key, locked: %v", e.Err)
}

// Unwrap gives the cause.
func (e *LockedError) Unwrap() error { return e.Err }

// Retryable reports whether err says that nothing was written and that the same
// call may succeed later.
func Retryable(err error) bool {
	var u *UnavailableError
	return errors.As(err, &u)
}

// IsUnreachable reports whether err says that the database cannot be reached, or had, just now,
// and that waiting may be all that it takes. A server whose certificate this host does not
// trust is there, and stays as it is.
func IsUnreachable(err error) bool {
	var (
		u        *UnavailableError
		stranger *tls.CertificateVerificationError
	)
	return errors.As(err, &u) && !u.Denied && !errors.As(err, &stranger)
}

// IsDiskFull reports whether the disk has no room for this change.
func IsDiskFull(err error) bool {
	var u *UnavailableError
	return errors.As(err, &u) && u.DiskFull
}

// IsRefused reports whether err is the database's refusal of this very change.
func IsRefused(err error) bool {
	var r *RefusedError
	return errors.As(err, &r)
}
