package protocol

import "fmt"

// Code is the kind of error of a reply. Clients act on it.
type Code string

// The error codes of version 1. PROTOCOL.md describes what a client does on each.
const (
	CodeBadFrame       Code = "bad_frame" // the server closes the connection after it
	CodeBadRequest     Code = "bad_request"
	CodeUnknownOp      Code = "unknown_op"
	CodeUnknownQueue   Code = "unknown_queue"
	CodeForbidden      Code = "forbidden"
	CodeTooLarge       Code = "too_large" // the server closes the connection after it
	CodeLeaseLost      Code = "lease_lost"
	CodeUnsupported    Code = "unsupported"
	CodeBusy           Code = "busy"
	CodeDraining       Code = "draining"
	CodeUnavailable    Code = "unavailable"
	CodeUnknownOutcome Code = "unknown_outcome"
	CodeInternal       Code = "internal"
)

// Error is an error reply.
type Error struct {
	Code    Code
	Message string     // for people: what failed, why, what to do
	Field   string     // the field of the request that is wrong; empty if none is
	Index   Opt[int64] // index of the wrong element of a list, from 0
	RetryMS Opt[int64] // when to try again
}

// Error implements error.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Fatal reports whether the server closes the connection after the error, because it can't trust
// the rest of the stream.
func (e *Error) Fatal() bool { return e.Code == CodeBadFrame || e.Code == CodeTooLarge }

// Errorf returns an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// BadField returns a bad_request error for a field.
func BadField(field, format string, args ...any) *Error {
	return &Error{Code: CodeBadRequest, Field: field, Message: fmt.Sprintf(format, args...)}
}
