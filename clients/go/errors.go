package qsidecar

import (
	"errors"
	"fmt"

	"github.com/qsidecar/qsidecar/protocol"
)

var (
	// ErrClosed is the error of calls on a Client that was closed, before or during the call.
	ErrClosed = errors.New("the client is closed")

	// ErrReentrant is the error of calls with the context of Options.Dial on the Client that it connects. They would wait for
	// themselves. Nothing was sent.
	ErrReentrant = errors.New("the call comes from Options.Dial, which opens the connection that it needs: make it after Dial")

	// ErrUnknownOutcome means that the request was sent and no reply arrived. The sidecar may or
	// may not have carried it out.
	ErrUnknownOutcome = errors.New("the sidecar might have carried it out")
)

// DialError means that the client could not reach a sidecar, or that the sidecar rejected its
// hello. Err is the cause: an *os.SyscallError inside a *net.OpError for errors of the socket
// (errors.Is with fs.ErrNotExist, fs.ErrPermission and syscall.ECONNREFUSED works), or a
// *protocol.Error.
type DialError struct {
	Socket string // the first of several that were tried
	Err    error
}

// Error implements error.
func (e *DialError) Error() string {
	if tried, ok := errors.AsType[triedError](e.Err); ok {
		return fmt.Sprintf("no sidecar answers on %v: %s", tried, startOne)
	}
	if notListening(e.Err) {
		return fmt.Sprintf("no sidecar answers on %s (%v): %s", e.Socket, e.Err, startOne)
	}
	return fmt.Sprintf("no sidecar answers on %s: %v", e.Socket, e.Err)
}

const startOne = "start one, or name its socket in QSIDECAR_SOCKET"

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// BrokenError means that the connection broke during a call that can't be repeated. It is
// ErrUnknownOutcome if the request had been sent.
type BrokenError struct {
	Op   protocol.Op
	Sent bool  // the sidecar may have received it
	Err  error // why the connection or the call's context ended
}

// Error implements error.
func (e *BrokenError) Error() string {
	if e.Sent {
		return fmt.Sprintf("%s: no answer: %v; %v", e.Op, e.Err, ErrUnknownOutcome)
	}
	return fmt.Sprintf("%s: not sent: %v", e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *BrokenError) Unwrap() error { return e.Err }

// Is reports whether the request was sent and target is ErrUnknownOutcome.
func (e *BrokenError) Is(target error) bool { return e.Sent && target == ErrUnknownOutcome }

// SettledOrLostError means that the client sent a settle twice, because the connection broke before
// the first reply, and that these leases were invalid the second time. Either the first request
// settled them, or they were lost before. Workers can treat the jobs as settled: a job that was not
// is delivered again, as after any lost lease. The other leases of the call were settled.
type SettledOrLostError struct {
	Op     protocol.Op // ack or nack
	Leases []string    // do not log them: a lease is the right to settle
}

// Error implements error. The text does not contain the leases.
func (e *SettledOrLostError) Error() string {
	return fmt.Sprintf("%s: sent twice, because the connection broke before the first answer; "+
		"%d of its leases were settled by the first try or had been lost", e.Op, len(e.Leases))
}

// IsLost reports whether err means that a lease was no longer valid and nothing changed. It is
// false for a *SettledOrLostError.
func IsLost(err error) bool { return IsCode(err, protocol.CodeLeaseLost) }

// IsCode reports whether err is an error of the sidecar with that code.
func IsCode(err error, code protocol.Code) bool {
	var pe *protocol.Error
	return errors.As(err, &pe) && pe.Code == code
}
