package backends

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrUnknownOutcome means that the change may or may not have been committed. A new call must not assume
	// either.
	ErrUnknownOutcome = errors.New("the connection broke inside the commit and its outcome could not be found out")

	// ErrEvicted means that another sidecar declared the sidecar dead. Nothing was claimed or written. The
	// sidecar must join again under a new Identity before it claims.
	ErrEvicted = errors.New("another sidecar declared this one dead: its heartbeat was late")

	// ErrTxLost means that the connection of an OpenTx is gone, and with it the lock on the job's row. Nothing
	// of its transaction was committed.
	ErrTxLost = errors.New("the connection that held the job's row locked is gone")

	// ErrNoSuchJob means that a job that the caller named does not exist.
	ErrNoSuchJob = errors.New("no such job")

	// ErrLimits means that a queue can't have these limits. Nothing was changed.
	ErrLimits = errors.New("the queue can't have these limits")
)

// UnavailableError means that the database is unavailable now: unreachable, read-only, out of disk space, or
// locked by another program. Nothing was written. The same call can succeed later.
type UnavailableError struct {
	Err      error
	Denied   bool   // the server answers, but refuses this login: a setting here or there is wrong
	DiskFull bool   // the disk has no space for this change; a change that needs no space can still succeed
	Queue    string // not empty: only this queue is unavailable, because of its table
	Table    string // not empty: another session has locked this table of the sidecar itself, so that only what needs it is unavailable
}

// Unavailable returns err wrapped in an UnavailableError.
func Unavailable(err error) error { return &UnavailableError{Err: err} }

// Denied returns err wrapped in an UnavailableError of a server that refuses this login: a wrong password or
// name, or a database that doesn't exist.
func Denied(err error) error { return &UnavailableError{Err: err, Denied: true} }

// DiskFull returns err wrapped in an UnavailableError of a disk that has no space for the change.
func DiskFull(err error) error { return &UnavailableError{Err: err, DiskFull: true} }

// Error implements error.
func (e *UnavailableError) Error() string {
	if e.Queue != "" {
		return fmt.Sprintf("the queue %s is unavailable: %v", e.Queue, e.Err)
	}
	return fmt.Sprintf("database unavailable: %v", e.Err)
}

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// RefusedError means that the database rejects this change, however often it is tried: a trigger, a constraint,
// or a value that it can't store. Nothing was written. The text of Err is the database's own message.
type RefusedError struct{ Err error }

// Refused returns err wrapped in a RefusedError.
func Refused(err error) error { return &RefusedError{Err: err} }

// Error implements error.
func (e *RefusedError) Error() string { return fmt.Sprintf("the database refused it: %v", e.Err) }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// SlotError means that the database refuses what a claim stores for its worker, whichever job it gets. Nothing was written. It
// accepts the same claim without the worker's name and the lease, so other claims can get the jobs.
type SlotError struct {
	Worker string
	Lease  time.Duration
	Err    error
}

// Error implements error.
func (e *SlotError) Error() string {
	return fmt.Sprintf("can't claim a job for the worker %q: without its name and its lease the claim is accepted: %v", e.Worker, e.Err)
}

// Unwrap returns the cause.
func (e *SlotError) Unwrap() error { return e.Err }

// LockedError means that another transaction, of another program or sidecar, has locked a row that a write has
// to change, or has stored the key of a job. Nothing was written. The same write can succeed later.
// The other writes of the commit can succeed at once, without it.
type LockedError struct {
	Err      error
	Gates    []string // the queues of a claim that waited for their limits
	Conflict bool     // each of several tries ended with a deadlock, or another error that asks for a retry
}

// Error implements error.
func (e *LockedError) Error() string {
	if e.Conflict {
		return fmt.Sprintf("each try ended with a conflict: %v", e.Err)
	}
	if len(e.Gates) > 0 {
		return fmt.Sprintf("another sidecar or program keeps the limits of %s locked (rows of the table qsidecar_gates): %v", strings.Join(e.Gates, ", "), e.Err)
	}
	return fmt.Sprintf("another transaction keeps the job's row, or its key, locked: %v", e.Err)
}

// Unwrap returns the cause.
func (e *LockedError) Unwrap() error { return e.Err }

// Retryable reports whether err is an UnavailableError: nothing was written, and the same call can succeed
// later. It returns false for a LockedError.
func Retryable(err error) bool {
	var u *UnavailableError
	return errors.As(err, &u)
}

// IsUnreachable reports whether err means that the database is unavailable now, and that waiting alone can
// solve it. It returns false if the server refuses the login, or if this host doesn't trust its certificate,
// because such a server is reachable and waiting changes nothing.
func IsUnreachable(err error) bool {
	var (
		u        *UnavailableError
		stranger *tls.CertificateVerificationError
	)
	return errors.As(err, &u) && !u.Denied && !errors.As(err, &stranger)
}

// IsDiskFull reports whether err means that the disk has no space for this change.
func IsDiskFull(err error) bool {
	var u *UnavailableError
	return errors.As(err, &u) && u.DiskFull
}

// IsRefused reports whether err is a RefusedError.
func IsRefused(err error) bool {
	var r *RefusedError
	return errors.As(err, &r)
}

// LackingRight describes the right that a login lacks. ours: it is one on qsidecar's own tables, as opposed to those of an
// application.
func LackingRight(ours bool) string {
	if ours {
		return "a right on qsidecar's tables (`qsidecar migrate --print --role ROLE` ends with what it needs; `qsidecar check` lists what is missing)"
	}
	return "a right on a table of the application, or on what its triggers and defaults use (the owner of that can GRANT it)"
}
