package session

import (
	"errors"
	"slices"
	"strings"

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

// EndsSession reports whether err means that the session ends, at any point of the transaction. The server
// closes the connection, or a proxy has lost its own one.
func EndsSession(err error) bool {
	return fromProxy(err) || IsCode(err, 1053, 1152, CodePacket, 1158, 1159, 1160, 1161, CodeInCommit, 1317, 1927, 3032, 3169, 4031)
}

// fromProxy reports whether a proxy returned the error instead of a server. Numbers from 2000 to 2999 are those of client libraries,
// which a proxy passes on if it lost its server: 2006, 2013 and 2003 of ProxySQL, MaxScale and others. ProxySQL's own begin at 9000.
func fromProxy(err error) bool {
	code := CodeOf(err)
	return code >= 2000 && code < 3000 || code >= 9000 && code < 10000
}

// NotCommitted reports whether err, the answer to a packet that ends with COMMIT, proves that nothing was committed. Only an error
// with which the server itself refuses a statement or the COMMIT does. Any other can come from a proxy that lost its
// server: 1105 of vtgate, 1290 of MaxScale, or one that this program doesn't know.
func NotCommitted(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok || IsCode(err, codesOfMember...) {
		return false
	}
	// A server that is read-only has refused the statement. MaxScale answers with the same number and another text if it
	// has lost the primary.
	readOnly := e.Number == 1290 && strings.Contains(e.Message, "read-only")
	return readOnly || slices.Contains(refusingClasses, string(e.SQLState[:2])) || IsCode(err, refusals...)
}

// refusingClasses are the SQLSTATEs of data, constraints, conflicts, rights and syntax, and of what triggers and views raise.
var refusingClasses = []string{"0A", "21", "22", "23", "25", "3D", "40", "42", "44", "45"}

// refusals have no SQLSTATE of these classes: locks, a row or table that changed, a full disk, a value, a CHECK, JSON that
// MariaDB can't read in a CHECK or a generated column, GTID_NEXT, and a server or InnoDB that is read-only.
var refusals = []uint16{1205, 3572, 1206, 1020, 1412, 1021, 1114, 1364, 1366, 3819, 4035, 4036, 4037, 4038, 4040, 1837, 1836, 1874}

// codesOfMember are errors of a COMMIT on a member of a cluster. The transaction is rolled back there. But if the
// member has left the cluster at this moment, the others can have received and committed it (seen with MySQL 9.7:
// error 3100). Error 1180 also means that another member of a multi-primary group changed the same rows first.
var codesOfMember = []uint16{1047, 3100, 3101, 3798, CodeInCommit}

// OfMember reports whether a member of a cluster refused the COMMIT, and others can have carried it out.
func OfMember(err error) bool { return IsCode(err, codesOfMember...) }

// readOnly reports whether err means that the server can't be written to. It is a replica, its storage
// engine is read-only, or its cluster or replication group does not allow writes.
func readOnly(err error) bool {
	return IsCode(err, 1047, 1290, 1792, 1836, 1874, 3100) || IsCode(err, CodesNoWait...)
}

// CodesNoWait are the errors of a member of a replication group that can't wait for the changes of the others. Either it is
// not a member now, or the others don't answer.
var CodesNoWait = []uint16{3781, 3782, 3783, 3796, 3797, 3798, 3799}
