package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/daemon"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// The exit codes, as exitCodes documents them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNoJob       = 3
	exitChanged     = 3 // of limit apply --exit-code and schedule apply --dry-run
	exitLeaseLost   = 4
	exitUnavailable = 5
	exitInterrupted = 130
)

const exitCodes = `Exit codes:
  0    done
  1    failed, and a repetition will fail too; the message has the reason
  2    wrong arguments, or a config file with errors
  3    claim: no job was ready; wait: not all jobs have ended
  4    the lease is lost: the job is already settled, or another worker can have it
  5    no sidecar answers, or its database cannot be reached: try again later
  130  interrupted`

// usageError is an error in the arguments.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// codeError is an error with its exit code. If err is nil nothing is printed.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string {
	if e.err == nil {
		return "exit code " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }

// report prints an error and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return exitOK
	}
	var output *outputError
	if errors.As(err, &output) && errors.Is(output, syscall.EPIPE) {
		return exitFailure // the reader of our output is gone, so no one reads the reason
	}
	code := exitCode(err)
	var silent *codeError
	if errors.As(err, &silent) && silent.err == nil {
		return code
	}
	text := err.Error()
	var unreachable unreachableError
	var dial *qsidecar.DialError
	switch {
	case errors.As(err, &unreachable):
	case errors.As(err, &dial):
		text = dialText(dial)
	}
	text = strings.TrimRight(text, "\n")
	if a.jsonErrors {
		_, _ = a.errOut.Write(errorLine(err, code, text)) // the exit code remains
		return code
	}
	fmt.Fprintf(a.errOut, "qsidecar: %s\n", text)
	return code
}

// The codes of errors in JSON that don't come from the sidecar, beside those of the protocol.
const (
	codeFailed      protocol.Code = "failed"
	codeInterrupted protocol.Code = "interrupted"
)

// errorLine returns an error as a line of JSON, in the form of the protocol's error reply.
func errorLine(err error, exit int, text string) []byte {
	e := protocol.Error{Code: codeFailed, Message: text}
	wire, isWire := errors.AsType[*protocol.Error](err)
	switch {
	case isWire:
		e = *wire
		if text != wire.Error() { // text has more, such as what was done before the error
			e.Message = text
		}
	case errors.Is(err, qsidecar.ErrUnknownOutcome):
		e.Code = protocol.CodeUnknownOutcome
	case errors.Is(err, fs.ErrPermission) && exit == exitFailure:
		e.Code = protocol.CodeForbidden
	case exit == exitUsage:
		e.Code = protocol.CodeBadRequest
	case exit == exitLeaseLost:
		e.Code = protocol.CodeLeaseLost
	case exit == exitUnavailable:
		e.Code = protocol.CodeUnavailable
	case exit == exitInterrupted:
		e.Code = codeInterrupted
	}
	line := protocol.JSON.AppendReply(nil, &protocol.Reply{Error: &e})
	return append(bytes.TrimRight(line, "\n"), '\n')
}

// hasJSONFlag reports whether --json is among the arguments, for an error in the arguments.
func hasJSONFlag(args []string) (has bool) {
	for _, arg := range args {
		if arg == "--" {
			break
		}
		if value, ok := strings.CutPrefix(arg, "--json="); ok {
			has, _ = strconv.ParseBool(value)
		}
		has = has || arg == "--json"
	}
	return has
}

func exitCode(err error) int {
	var (
		code  *codeError
		usage *usageError
		wrong *config.Error
		stop  *daemon.StopError
		wire  *protocol.Error
		dial  *qsidecar.DialError
	)
	switch {
	case errors.As(err, &code):
		return code.code
	case errors.As(err, &stop):
		return exitFailure
	case errors.As(err, &usage), errors.As(err, &wrong):
		return exitUsage
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.As(err, &wire):
		return wireExitCode(wire.Code)
	case errors.As(err, &dial) && errors.Is(err, fs.ErrPermission):
		return exitFailure
	case errors.As(err, &dial), errors.Is(err, errNoAnswer), errors.Is(err, qsidecar.ErrUnknownOutcome),
		errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable
	}
	return exitFailure
}

func wireExitCode(c protocol.Code) int {
	switch c {
	case protocol.CodeBadRequest:
		return exitUsage
	case protocol.CodeLeaseLost:
		return exitLeaseLost
	case protocol.CodeUnavailable, protocol.CodeUnknownOutcome, protocol.CodeBusy, protocol.CodeDraining:
		return exitUnavailable
	}
	return exitFailure
}

// unreachableError has the error of each socket that was tried. No sidecar answers on any.
type unreachableError []error

// withCode returns the error with its exit code. If a path can't be used, such as one that is
// closed to this user, it doesn't help to wait for a sidecar.
func (e unreachableError) withCode() error {
	switch {
	case e.isNone():
		return &codeError{exitUnavailable, e}
	case len(e) == 1:
		return e[0]
	}
	return &codeError{exitFailure, e}
}

// isNone reports whether nothing listens on any of the sockets.
func (e unreachableError) isNone() bool {
	return !slices.ContainsFunc(e, func(err error) bool { return !isNone(err) })
}

func (e unreachableError) Error() string {
	var none, others []string
	for _, err := range e {
		dial, _ := errors.AsType[*qsidecar.DialError](err)
		if isNone(err) {
			none = append(none, dial.Socket)
		} else {
			others = append(others, dialText(dial))
		}
	}
	const fix = "start one with `qsidecar serve`, or set its path with --socket PATH or QSIDECAR_SOCKET"
	if others == nil {
		return fmt.Sprintf("no sidecar answers on %s: %s", strings.Join(none, " or "), fix)
	}
	text := strings.Join(others, "; ")
	if none != nil {
		text += "; no sidecar answers on " + strings.Join(none, " or ")
	}
	return text + ": " + fix
}

// Unwrap returns the errors of the sockets.
func (e unreachableError) Unwrap() []error { return e }

// notListening reports whether a dial failed because no sidecar that this user can reach listens on
// the socket. The clients have the same list.
func notListening(err error) bool {
	return isNone(err) || slices.ContainsFunc([]error{
		syscall.ELOOP, fs.ErrPermission, syscall.EPROTOTYPE, syscall.ENOTSOCK, syscall.EINVAL, syscall.ENAMETOOLONG,
	}, func(reason error) bool { return errors.Is(err, reason) })
}

// isNone reports whether a dial failed because nothing listens on the socket.
func isNone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}

// dialText describes an error of a socket, other than that nothing listens.
func dialText(e *qsidecar.DialError) string {
	switch {
	case errors.Is(e.Err, fs.ErrPermission):
		return fmt.Sprintf("no permission to connect to %s%s", e.Socket, accessText(e.Socket))
	case errors.Is(e.Err, errNoAnswer):
		return fmt.Sprintf("%s accepts connections but %v: is the process suspended or overloaded, or can the service not start (systemctl status qsidecar)?", e.Socket, e.Err)
	case errors.Is(e.Err, syscall.EPROTOTYPE):
		return fmt.Sprintf("%s is a socket, but not a sidecar's: name the one that `qsidecar serve` printed", e.Socket)
	case errors.Is(e.Err, syscall.ENOTSOCK), errors.Is(e.Err, syscall.EINVAL):
		return fmt.Sprintf("%s cannot be a sidecar's socket (%v): name the one that `qsidecar serve` printed", e.Socket, textfmt.RootCause(e.Err))
	}
	if wire, ok := errors.AsType[*protocol.Error](e.Err); ok {
		return fmt.Sprintf("the sidecar on %s refused the connection: %v", e.Socket, wire)
	}
	return fmt.Sprintf("no sidecar talks on %s: %v", e.Socket, e.Err)
}

// accessText describes the owner and mode of a socket, and what to do about them.
func accessText(path string) string {
	fi, err := os.Stat(path)
	if err != nil {
		return ": its directory is closed to this user; ask its owner to open the directory"
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Sprintf(": its mode is %v", fi.Mode().Perm())
	}
	group := strconv.Itoa(int(st.Gid))
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	return fmt.Sprintf(": its mode is %#o and its group is %s; join that group, "+
		"or set `group` and `mode` under `listen` in the sidecar's config", fi.Mode().Perm(), group)
}
