package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

var (
	errClosed = errors.New("the database handle was closed")
	errPacket = errors.New("it does not fit into one packet: raise the server's max_allowed_packet to twice the largest payload and a little more")
)

// connectError means that there is no connection. It wraps the server's error, if there is one.
type connectError struct{ err error }

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// againError means that the data changed during the transaction, which must be run again.
type againError struct{ why string }

func (e *againError) Error() string { return e.why }

func codeOf(err error) uint16 {
	if said, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return said.Number
	}
	return 0
}

func isCode(err error, codes ...uint16) bool {
	code := codeOf(err)
	return slices.Contains(codes, code)
}

// fromServer reports whether err is an error of the server, not of the connection.
func fromServer(err error) bool { return codeOf(err) != 0 }

// These codes need more than their SQLSTATE for a decision.
const (
	codeDeadlock   = 1213
	codeLockWait   = 1205
	codeJSONSyntax = 4038 // MariaDB's
	codeJSONDepth  = 4040 // MariaDB's
	codeNoWait     = 3572 // MySQL; MariaDB returns 1205
	codePacket     = 1153
	codeRange      = 1264
	codeCheckMySQL = 3819
	codeCheckMaria = 4025
	codeGTIDNext   = 1837 // a proxy gave the session to another client, which set GTID_NEXT and left it so
	codeInCommit   = 1180 // an error during COMMIT, as of a Galera node that leaves its cluster
)

// codesFull holds the codes for a full disk, and for a table's file that can't grow.
var codesFull = []uint16{1021, 1114}

// endsSession reports whether err means that the server closes the connection, at any point of the
// transaction. After such an error of a COMMIT, and after codeInCommit, the outcome of the commit is
// unknown.
func endsSession(err error) bool {
	return isCode(err, 1053, 1152, codePacket, 1158, 1159, 1160, 1161, codeInCommit, 1317, 1927, 3032, 3169, 4031)
}

// readOnly reports whether err means that the server can't be written to. It is a replica, its storage
// engine is read-only, or its cluster or replication group does not allow writes.
func readOnly(err error) bool { return isCode(err, 1047, 1290, 1792, 1836, 1874, 3100) }

// transient reports whether a retry of the transaction at once can succeed, and counts it. It is not for
// an error of COMMIT, which commit handles. After any other error the transaction has written nothing.
func (s *Store) transient(err error) bool {
	if core.Known(err) || errors.Is(err, errPacket) || isCode(err, codePacket) {
		return false
	}
	again := true
	var moved *againError
	var connect *connectError
	switch {
	case isCode(err, codeDeadlock, codeLockWait):
		s.locks.Add(1)
	case errors.As(err, &moved), endsSession(err):
	case isCode(err, 1020, 1412, 1615, 3101, 3058): // a row or table changed, replication rolled back, a deadlock of user locks
	case errors.As(err, &connect):
		again = false
	default:
		again = !fromServer(err) && broken(err)
	}
	if again {
		s.again.Add(1)
	}
	return again
}

// broken reports whether the connection is lost. The driver's errors about the connection have no type of
// their own, and all other errors have a code or are excluded here.
func broken(err error) bool {
	var moved *againError
	return !fromServer(err) && !errors.As(err, &moved) && !errors.Is(err, errPacket) && !errors.Is(err, errOwn) && !errors.Is(err, core.ErrAgain)
}

// errOwn marks errors that this package detects itself.
var errOwn = errors.New("mysql")

// withKind gives an error its kind and a text that helps an operator.
func (s *Store) withKind(err error) error {
	if err == nil || core.Known(err) {
		return err
	}
	var said *mysql.MySQLError
	switch {
	case errors.Is(err, errPacket):
		return backends.Refused(fmt.Errorf("%w (it is %d)", errPacket, s.server.packet))
	case !errors.As(err, &said):
		var moved *againError
		var connect *connectError
		if broken(err) || errors.As(err, &moved) || errors.As(err, &connect) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return backends.Unavailable(fmt.Errorf("%s: %w", s.place, err))
		}
		return fmt.Errorf("%s: %w", s.place, err)
	case said.Number == codePacket:
		return backends.Refused(fmt.Errorf("%w (it is %d)", errPacket, s.server.packet))
	}
	switch kindOf(said) {
	case down:
		if slices.Contains([]uint16{1045, 1049, 1130, 1698, 1820, 1862}, said.Number) { // login; no such database
			return backends.Denied(fmt.Errorf("%s: %w", s.place, err))
		}
		if isCode(err, codesFull...) {
			return backends.DiskFull(fmt.Errorf("%s: %w: the server's disk is full, or its tablespace: make room", s.place, err))
		}
		return backends.Unavailable(fmt.Errorf("%s: %w", s.place, err))
	case refused:
		return backends.Refused(fmt.Errorf("%s (error %d)", said.Message, said.Number))
	}
	if isCode(err, 1142, 1143, 1044, 1370, 1227) {
		return fmt.Errorf("%s: the user lacks a right (`qsidecar migrate --print` ends with what it needs): %w", s.place, err)
	}
	return fmt.Errorf("%s: %w", s.place, err)
}

type kind int

const (
	internal kind = iota // a fault of this program or of its schema
	down                 // the database is not available now
	refused              // the database rejects this change
)

// kindOf maps a server's error to what it means for a caller.
func kindOf(e *mysql.MySQLError) kind {
	switch e.Number {
	case codeDeadlock, codeLockWait, codeNoWait, 3101, codeInCommit,
		1290, 1836, 1792, 1874, 1223, 1047, 3100, 3032, // read-only, locked, a node of a cluster that is not ready; offline
		1040, 1203, 1226, 1129, 1130, 1045, 1049, 1698, 1862, 1820, // no connection for this user, or not now
		1037, 1038, 1041, 1021, 1114, 1030, 1878, 3675, // memory and disk
		1053, 1317, 1927, 3169, 4031, 3024, 1969, // ended by another session or by a time limit
		codeGTIDNext:
		return down
	case codeCheckMySQL, codeCheckMaria, 1366, 3140, 1644, 1369, 3156:
		return refused
	}
	state := string(e.SQLState[:])
	switch {
	case strings.HasPrefix(state, "22"), strings.HasPrefix(state, "23"), strings.HasPrefix(state, "44"), strings.HasPrefix(state, "45"):
		return refused // data, integrity, the check of a view, an error that a trigger raised
	case strings.HasPrefix(state, "08"):
		return down
	case strings.HasPrefix(state, "HY"), strings.HasPrefix(state, "42"), strings.HasPrefix(state, "00"), strings.HasPrefix(state, "0A"),
		strings.HasPrefix(state, "25"), strings.HasPrefix(state, "40"), strings.HasPrefix(state, "3D"), strings.HasPrefix(state, "XA"),
		strings.HasPrefix(state, "70"), strings.HasPrefix(state, "28"), strings.HasPrefix(state, "21"), state == "\x00\x00\x00\x00\x00":
		return internal
	}
	return refused // a class outside of the standard: a trigger raised it
}

// retryCause returns why a transaction is retried after a transient error.
func retryCause(err error) int {
	switch {
	case isCode(err, codeDeadlock, codeLockWait):
		return backends.RetryConflict
	case broken(err):
		return backends.RetryConnection
	}
	return backends.RetryOther
}

// Retry implements core.Driver. It also replaces headers that prevent changes of a row: see mend.
func (d access) Retry(ctx context.Context, err error) (again bool, cause int, wait time.Duration) {
	return d.transient(err) || d.mend(ctx, err), retryCause(err), 0
}

// WithKind implements core.Driver.
func (d access) WithKind(err error) error { return d.withKind(err) }

// FromServer implements core.Driver.
func (access) FromServer(err error) bool { return fromServer(err) }

// Usage implements backends.Metered.
func (s *Store) Usage() backends.Usage {
	u := s.Meter.Usage()
	u.Max = cap(s.pool.free)
	u.InUse = u.Max - len(s.pool.free)
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	u.Idle = len(s.pool.idle)
	return u
}
