package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

var errClosed = errors.New("the database handle was closed")

// These codes need more than their SQLSTATE for a decision.
const (
	codeDeadlock   = 1213
	codeLockWait   = 1205
	codeJSONSyntax = 4038 // MariaDB's
	codeJSONDepth  = 4040 // MariaDB's
	codeNoWait     = 3572 // MySQL; MariaDB returns 1205
	codeRange      = 1264
	codeNotReady   = 1047 // a Galera node left its cluster
	codeHook       = 3100 // a member of a replication group left it
	codeRollback   = 3101 // another member of the group changed the same rows first, or the member left it
	codeNoAfter    = 3798 // the other members of the group did not confirm the COMMIT, with group_replication_consistency=AFTER
	codeCheckMySQL = 3819
	codeCheckMaria = 4025
	codeGTIDNext   = 1837 // another client of a proxy's session set GTID_NEXT and left it so
)

// codesFull holds the codes for a full disk, and for a table's file that can't grow.
var codesFull = []uint16{1021, 1114}

// transient reports whether a retry of the transaction at once can succeed. It is not for an error of
// COMMIT, which commit handles. After any other error the transaction has written nothing.
func transient(err error) bool {
	if core.Known(err) || session.IsCode(err, session.CodePacket) {
		return false
	}
	if session.EndsSession(err) || session.IsCode(err, codeDeadlock, codeLockWait, 1020, 1412, 1615, codeRollback, 3058) { // a row or table changed, replication rolled back, a deadlock of user locks
		return true
	}
	_, connecting := errors.AsType[*session.ConnectError](err)
	return !connecting && broken(err)
}

// broken reports whether the connection is lost. The driver's errors about the connection have no type of
// their own, and all other errors have a code or are excluded here.
func broken(err error) bool {
	return !session.FromServer(err) && !errors.Is(err, session.ErrPacket) && !errors.Is(err, session.ErrProgram) && !errors.Is(err, core.ErrAgain)
}

// withKind gives an error its kind and a text that helps an operator.
func (s *Store) withKind(err error) error {
	if err == nil || core.Known(err) {
		return err
	}
	located := fmt.Errorf("%s: %w", s.place, err)
	e, fromServer := errors.AsType[*mysql.MySQLError](err)
	switch {
	case errors.Is(err, session.ErrPacket), session.IsCode(err, session.CodePacket):
		if fromServer { // a proxy's own limit can be lower than the server's
			err = fmt.Errorf("%w: %w", session.ErrPacket, err)
		}
		return backends.Refused(err)
	case broken(err):
		return backends.Unavailable(located)
	case !fromServer:
		return located
	}
	switch kindOf(e) {
	case down:
		switch {
		case session.IsCode(err, 1045, 1049, 1130, 1698, 1820, 1862): // login; no such database
			return backends.Denied(located)
		case session.IsCode(err, codesFull...):
			return backends.DiskFull(fmt.Errorf("%w: the server's disk or tablespace is full: free some space", located))
		}
		return backends.Unavailable(located)
	case refused:
		return backends.Refused(fmt.Errorf("%s (error %d)", e.Message, e.Number))
	}
	if session.IsCode(err, 1142, 1143, 1044, 1370, 1227) {
		ours := strings.Contains(e.Message, "qsidecar") || !session.IsCode(err, 1142, 1143, 1370) // the others name no object
		return &backends.RightError{Err: fmt.Errorf("%s: the user lacks %s: %w", s.place, backends.LackingRight(ours), err)}
	}
	return located
}

type kind int

const (
	internal kind = iota // a fault of this program or of its schema
	down                 // the database is not available now
	refused              // the database rejects this change
)

// kindOf maps a server's error to what it means for a caller.
func kindOf(e *mysql.MySQLError) kind {
	if session.EndsSession(e) || session.IsCode(e, session.CodesNoWait...) {
		return down
	}
	switch e.Number {
	case codeDeadlock, codeLockWait, codeNoWait, codeRollback, session.CodeInCommit,
		1290, 1836, 1792, 1874, 1223, codeNotReady, codeHook, 3032, // read-only, locked, a node of a cluster that is not ready; offline
		1040, 1203, 1226, 1129, 1130, 1045, 1049, 1698, 1862, 1820, // no connection for this user, or not now
		1037, 1038, 1041, 1021, 1114, 1030, 1878, 3675, // memory and disk
		1053, 1317, 1927, 3169, 4031, 3024, 1969, // ended by another session or by a time limit
		codeGTIDNext:
		return down
	case codeCheckMySQL, codeCheckMaria, 1366, 3140, 1644, 1369, 3156:
		return refused
	}
	switch string(e.SQLState[:2]) {
	case "08":
		return down
	case "HY", "42", "00", "0A", "25", "40", "3D", "XA", "70", "28", "21", "\x00\x00":
		return internal
	}
	return refused // data, integrity, the check of a view, or a class that a trigger raised
}

// Retry implements core.Driver. It also replaces headers that prevent changes of a row: see repairHeaders.
func (a access) Retry(ctx context.Context, err error) (again bool, cause int, wait time.Duration) {
	cause = backends.RetryOther
	switch {
	case session.IsCode(err, codeRollback, session.CodeInCommit), a.dialer.Server.SeveralWriters() && session.IsCode(err, codeDeadlock):
		return true, backends.RetryCertification, 0
	case session.IsCode(err, codeDeadlock, codeLockWait):
		cause = backends.RetryConflict
	case broken(err), session.EndsSession(err):
		cause = backends.RetryConnection
	}
	return transient(err) || a.repairHeaders(ctx, err), cause, 0
}

// WithKind implements core.Driver.
func (a access) WithKind(err error) error { return a.withKind(err) }

// FromServer implements core.Driver.
func (access) FromServer(err error) bool { return session.FromServer(err) }
