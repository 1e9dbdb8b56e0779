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

// connectError: there is no connection; what the server said about it is inside.
type connectError struct{ err error }

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// againError: something moved under the transaction; it must be run again.
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

// fromServer: err is what the server said, not what became of the connection.
func fromServer(err error) bool { return codeOf(err) != 0 }

// The codes that mean more here than their SQLSTATE says.
const (
	codeDeadlock   = 1213
	codeLockWait   = 1205
	codeJSONSyntax = 4038 // MariaDB's
	codeJSONDepth  = 4040 // MariaDB's
	codeNoWait     = 3572 // MySQL; MariaDB says 1205
	codePacket     = 1153
	codeRange      = 1264
	codeCheckMySQL = 3819
	codeCheckMaria = 4025
	codeInCommit   = 1180 // an error in the midst of COMMIT, as of a Galera node that falls out of its cluster
)

// codesFull: the disk is full, or the file that holds the table can't grow.
var codesFull = []uint16{1021, 1114}

// endsSession: the server says that it closes the connection, whatever the transaction
// was doing. After it, and after codeInCommit, a sidecar must ask whether a commit happened.
func endsSession(err error) bool {
	return isCode(err, 1053, 1152, codePacket, 1158, 1159, 1160, 1161, codeInCommit, 1317, 1927, 3032, 3169, 4031)
}

// readOnly: the server can't be written to. It is a replica, its storage engine is read-only, or
// its cluster or replication group does not let it.
func readOnly(err error) bool { return isCode(err, 1047, 1290, 1792, 1836, 1874, 3100) }

// transient: the same transaction, run again at once, may well succeed. COMMIT
// has its own treatment: whatever else fails has written nothing.
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
	case isCode(err, 1020, 1412, 1615, 3101, 3058): // a row or table that changed, a rollback by replication, a user lock's deadlock
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

// broken: the connection is gone. What the driver finds wrong with it has no
// type of its own, and nothing else comes without a code.
func broken(err error) bool {
	var moved *againError
	return !fromServer(err) && !errors.As(err, &moved) && !errors.Is(err, errPacket) && !errors.Is(err, errOwn) && !errors.Is(err, core.ErrAgain)
}

// errOwn is in what this package itself finds wrong.
var errOwn = errors.New("mysql")

// withKind gives an error its kind and says it in words that help.
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
	switch said.Number {
	case 1142, 1143, 1044, 1370, 1227:
		return fmt.Errorf("%s: the user lacks a right (`qsidecar migrate --print` ends with what it needs): %w", s.place, err)
	case 1419:
		return fmt.Errorf("%s: %w", s.place, err)
	}
	return fmt.Errorf("%s: %w", s.place, err)
}

type kind int

const (
	internal kind = iota // a fault of this program or of its schema
	down                 // the database cannot be had just now
	refused              // the database will not have this change
)

// kindOf says what a server's error means for a caller.
func kindOf(e *mysql.MySQLError) kind {
	switch e.Number {
	case codeDeadlock, codeLockWait, codeNoWait, 3101, codeInCommit,
		1290, 1836, 1792, 1874, 1223, 1047, 3100, 3032, // read-only, locked, a cluster's node that is not ready; offline
		1040, 1203, 1226, 1129, 1130, 1045, 1049, 1698, 1862, 1820, // no connection for this one, or not now
		1037, 1038, 1041, 1021, 1114, 1030, 1878, 3675, // memory and disk
		1053, 1317, 1927, 3169, 4031, 3024, 1969, 1836 + 1: // ended by somebody, or by time
		return down
	case codeCheckMySQL, codeCheckMaria, 1366, 3140, 1644, 1369, 3156:
		return refused
	}
	state := string(e.SQLState[:])
	switch {
	case strings.HasPrefix(state, "22"), strings.HasPrefix(state, "23"), strings.HasPrefix(state, "44"), strings.HasPrefix(state, "45"):
		return refused // data, integrity, a view's check, what a trigger says
	case strings.HasPrefix(state, "08"):
		return down
	case strings.HasPrefix(state, "HY"), strings.HasPrefix(state, "42"), strings.HasPrefix(state, "00"), strings.HasPrefix(state, "0A"),
		strings.HasPrefix(state, "25"), strings.HasPrefix(state, "40"), strings.HasPrefix(state, "3D"), strings.HasPrefix(state, "XA"),
		strings.HasPrefix(state, "70"), strings.HasPrefix(state, "28"), strings.HasPrefix(state, "21"), state == "\x00\x00\x00\x00\x00":
		return internal
	}
	return refused // a class of somebody's own: a trigger said it
}

// retryCause is why a transient error has a transaction tried again.
func retryCause(err error) int {
	switch {
	case isCode(err, codeDeadlock, codeLockWait):
		return backends.RetryConflict
	case broken(err):
		return backends.RetryConnection
	}
	return backends.RetryOther
}

// Retry implements core.Driver. It replaces headers that keep a row from being changed.
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
