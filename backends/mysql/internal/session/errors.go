package session

import (
	"errors"
	"slices"

	"github.com/go-sql-driver/mysql"
)

var (
	// ErrPacket means that the server's max_allowed_packet is too small. Nothing was sent.
	ErrPacket = errors.New("it does not fit into one packet: raise the server's max_allowed_packet to twice the largest payload and a little more")

	// ErrProgram marks errors that this program detects in its own statements.
	ErrProgram = errors.New("mysql")
)

// ConnectError means that there is no connection. It wraps the server's error, if there is one.
type ConnectError struct{ err error }

func (e *ConnectError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *ConnectError) Unwrap() error { return e.err }

// CodeOf returns the server's number of an error, or 0 if the error is not the server's.
func CodeOf(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// IsCode reports whether err is an error of the server with one of the numbers.
func IsCode(err error, codes ...uint16) bool { return slices.Contains(codes, CodeOf(err)) }

// FromServer reports whether err is an error of the server, not of the connection.
func FromServer(err error) bool { return CodeOf(err) != 0 }

// Numbers of errors that both packages test for.
const (
	CodePacket   = 1153
	CodeInCommit = 1180 // an error during COMMIT, as of a Galera node that leaves its cluster
)

const codeNoSuchThread = 1094

// EndsSession reports whether err means that the server closes the connection, at any point of the
// transaction. After such an error of a COMMIT, and after CodeInCommit, the outcome of the commit is
// unknown.
func EndsSession(err error) bool {
	return IsCode(err, 1053, 1152, CodePacket, 1158, 1159, 1160, 1161, CodeInCommit, 1317, 1927, 3032, 3169, 4031)
}

// readOnly reports whether err means that the server can't be written to. It is a replica, its storage
// engine is read-only, or its cluster or replication group does not allow writes.
func readOnly(err error) bool {
	return IsCode(err, 1047, 1290, 1792, 1836, 1874, 3100) || IsCode(err, CodesNoWait...)
}

// CodesNoWait are the errors of a member of a replication group that can't wait for the changes of the others. Either it is
// not a member now, or the others don't answer.
var CodesNoWait = []uint16{3781, 3782, 3783, 3796, 3797, 3798, 3799}
