package protocol

import "fmt"

// Code says what kind of error a reply carries; clients act on it.
type Code string

// The error codes of version 1. PROTOCOL.md says what a client does on each.
const (
	CodeBadFrame       Code = "bad_frame"   // the connection closes after it
	CodeBadRequest     Code = "bad_request" //
	CodeUnknownOp      Code = "unknown_op"
	CodeUnknownQueue   Code = "unknown_queue"
	CodeForbidden      Code = "forbidden"
	CodeTooLarge       Code = "too_large" // the connection closes after it
	CodeLeaseLost      Code = "lease_lost"
	CodeUnsupported    Code = "unsupported"
	CodeBusy           Code = "busy"
	CodeDraining       Code = "draining"
	CodeUnavailable    Code = "unavailable"
	CodeUnknownOutcome Code = "unknown_outcome"
	CodeInternal       Code = "internal"
)

// Error is an error as the wire carries it.
type Error struct {
	Code    Code
	Message string     // for people: what happened, where, what to do
	Field   string     // the request's field at fault; empty: none
	Index   Opt[int64] // which element of a list is at fault, from 0
	RetryMS Opt[int64] // when to try again
}

// Error implements error.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Fatal reports whether the connection closes after the error, because the
// stream cannot be trusted from there on.
func (e *Error) Fatal() bool { return e.Code == CodeBadFrame || e.Code == CodeTooLarge }

// Errorf makes an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// BadField makes a bad_request that names the field at fault.
func BadField(field, format string, args ...any) *Error {
	return &Error{Code: CodeBadRequest, Field: field, Message: fmt.Sprintf(format, args...)}
}
