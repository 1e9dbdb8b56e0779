package qsidecar

import (
	"errors"
	"fmt"

	"github.com/qsidecar/qsidecar/protocol"
)

var (
	// ErrClosed says: the Client was closed, before or while the call was made.
	ErrClosed = errors.New("the client is closed")

	// ErrUnknownOutcome says: the request was sent and its answer did not arrive. It
	// may have been carried out and may not.
	ErrUnknownOutcome = errors.New("it may have been carried out and may not")
)

// DialError says that no sidecar could be reached or that what answered would
// not talk. Err is the cause: an *os.SyscallError inside a *net.OpError for the
// socket's own errors (errors.Is with fs.ErrNotExist, fs.ErrPermission and
// syscall.ECONNREFUSED works), or a *protocol.Error.
type DialError struct {
	Socket string
	Err    error
}

// Error implements error.
func (e *DialError) Error() string {
	return fmt.Sprintf("no sidecar answers on %s: %v", e.Socket, e.Err)
}

// Unwrap gives the cause.
func (e *DialError) Unwrap() error { return e.Err }

// BrokenError says that the connection broke while the call was under way and
// that the request was not one to be sent again. It is ErrUnknownOutcome when
// the request had been sent.
type BrokenError struct {
	Op   protocol.Op
	Sent bool  // the sidecar may have read it
	Err  error // why the connection ended, or the call's context
}

// Error implements error.
func (e *BrokenError) Error() string {
	if e.Sent {
		return fmt.Sprintf("%s: no answer: %v; %v", e.Op, e.Err, ErrUnknownOutcome)
	}
	return fmt.Sprintf("%s: not sent: %v", e.Op, e.Err)
}

// Unwrap gives the cause.
func (e *BrokenError) Unwrap() error { return e.Err }

// Is reports a request that was sent as ErrUnknownOutcome.
func (e *BrokenError) Is(target error) bool { return e.Sent && target == ErrUnknownOutcome }

// SettledOrLostError says that a settle was sent twice, because the connection
// broke before the first answer, and that the second try found these leases not
// valid: the first try settled them, or they were lost before it. Workers may
// take it as settled: where it was not, the job is delivered again, as after any
// lost lease. The other leases of the call were settled.
type SettledOrLostError struct {
	Op     protocol.Op // ack or nack
	Leases []string    // not for logs: a lease is the right to settle
}

// Error implements error. It does not show the leases.
func (e *SettledOrLostError) Error() string {
	return fmt.Sprintf("%s: sent twice, because the connection broke before the first answer; "+
		"%d of its leases were settled by the first try or had been lost", e.Op, len(e.Leases))
}

// IsLost reports whether err says that a lease was not valid any more and
// nothing was done. It is false for a *SettledOrLostError.
func IsLost(err error) bool { return IsCode(err, protocol.CodeLeaseLost) }

// IsCode reports whether err is the sidecar's error with that code.
func IsCode(err error, code protocol.Code) bool {
	var pe *protocol.Error
	return errors.As(err, &pe) && pe.Code == code
}
