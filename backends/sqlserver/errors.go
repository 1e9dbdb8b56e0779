package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

var errClosed = errors.New("the database handle was closed")

// againError means that something changed during a transaction, which must be run again.
type againError struct{ why string }

func (e *againError) Error() string { return e.why }

// shortClaim returns the error of a claim that changed fewer rows than it had picked. Babelfish does not lock a row
// that is only picked, so another transaction was faster there. On other servers a trigger is the cause, and the last
// try fails as the first one did.
func shortClaim(wanted int64, took int, babelfish bool) error {
	why := core.ErrSilent.Error()
	if babelfish {
		why = "other transactions took the rest at the same time"
	}
	return &againError{fmt.Sprintf("a claim was to take %d rows and took %d: %s", wanted, took, why)}
}

// numbers returns the numbers of all errors in one reply of the server.
func numbers(err error) (all []int32) {
	var sqlErr mssql.Error
	if !errors.As(err, &sqlErr) {
		return nil
	}
	all = []int32{sqlErr.Number}
	for _, e := range sqlErr.All {
		all = append(all, e.Number)
	}
	return all
}

// fromServer reports whether err is the server's reply and the connection is still good.
func fromServer(err error) bool {
	var sqlErr mssql.Error
	return errors.As(err, &sqlErr) && !broken(err)
}

// again is whether, and how soon, to try again.
type again int

const (
	never again = iota
	soon        // the same transaction will probably succeed immediately
	later       // the server lacks a resource for a while
)

// whenAgain classifies errors before a COMMIT, after which nothing was written.
func whenAgain(err error) again {
	if core.Known(err) {
		return never
	}
	if _, ok := errors.AsType[*againError](err); ok {
		return soon
	}
	sqlErr := numbers(err)
	for _, n := range sqlErr {
		switch n {
		case 1205, 1222, 3960, 3961, 601: // deadlock; lock timeout; row versions or rows that moved
			return soon
		}
	}
	if insertRace(err) {
		return soon
	}
	for _, n := range sqlErr {
		if slices.Contains(throttledNumbers, n) {
			return later
		}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return never // no server listens there: the caller waits longer than a retry does
	}
	if broken(err) {
		return soon
	}
	return never
}

// throttledNumbers are errors that end by themselves, most of them Azure's: reconfigurations,
// failovers, limits of sessions and resources, and databases that start.
var throttledNumbers = []int32{
	40197, 40501, 40613, 40143, 40540, 49918, 49919, 49920, 10928, 10929, 10936, 4060, 4221,
	42108, 42109, // a serverless database wakes up
	615, 921, 922, 926, 927, // it moves, recovers or is restored
	701, 802, 8645, 8651, 1204, // memory; no memory for a lock
	3958, 3959, 3966, 3967, // tempdb has no space for row versions, and the transaction needed one
	17187, 17197, 17830, 18401, // the server starts; login timeout; upgrading
}

// insertRace reports whether two transactions inserted one row of this package's own tables at the same time. That
// happens if the server has no key-range locks (Babelfish), or if the row was passed over as locked (a lease). The
// second transaction finds it at its next try.
func insertRace(err error) bool {
	var sqlErr mssql.Error
	if !errors.As(err, &sqlErr) || sqlErr.Number != 2627 && sqlErr.Number != 2601 {
		return false
	}
	for _, constraint := range []string{"qsidecar_keys_name", "qsidecar_sidecars_sidecar", "qsidecar_queues_queue", "qsidecar_gates_queue", "qsidecar_capped_queue", "qsidecar_stripes_queue", "qsidecar_admissions_group", "qsidecar_history_hour", "qsidecar_requeues_queue", "qsidecar_commits_pipeline", "qsidecar_leases_item"} {
		if strings.Contains(sqlErr.Message, constraint) {
			return true
		}
	}
	return false
}

// broken reports whether the connection was lost.
func broken(err error) bool {
	var n net.Error
	var stream mssql.StreamError
	var fatal mssql.ServerError
	return errors.As(err, &n) && !errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &stream) || errors.As(err, &fatal) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		strings.Contains(err.Error(), "failed to send") // the driver keeps only the cause's text
}

// lostBehind reports whether a gateway can have lost its own connection to the server, or the server ended the session.
func lostBehind(err error) bool {
	var sqlErr mssql.Error
	return errors.As(err, &sqlErr) && kindOf(sqlErr) == down && !isConflict(err)
}

// withKind adds to an error its kind and a text that helps.
func (s *Store) withKind(err error) error {
	if err == nil || core.Known(err) {
		return err
	}
	var sqlErr mssql.Error
	if !errors.As(err, &sqlErr) || broken(err) {
		var moved *againError
		if broken(err) || errors.As(err, &moved) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || unreachable(err) {
			return backends.Unavailable(fmt.Errorf("%s: %w", s.place, err))
		}
		return fmt.Errorf("%s: %w", s.place, err)
	}
	switch kindOf(sqlErr) {
	case down:
		if slices.Contains(deniedNumbers, sqlErr.Number) {
			return backends.Denied(fmt.Errorf("%s: %w", s.place, err))
		}
		if slices.Contains([]int32{1101, 1105, 9002}, sqlErr.Number) { // the database's files, or its log, are full
			return backends.DiskFull(fmt.Errorf("%s: %w", s.place, err))
		}
		return backends.Unavailable(fmt.Errorf("%s: %w", s.place, err))
	case refused:
		return backends.Refused(errors.New(words(sqlErr)))
	}
	if slices.Contains([]int32{229, 230, 262, 297, 300, 2760, 15247}, sqlErr.Number) {
		ours := strings.Contains(sqlErr.Message, "qsidecar") || strings.Contains(sqlErr.Message, "'"+s.o.Schema+"'") || !slices.Contains([]int32{229, 230}, sqlErr.Number)
		return &backends.RightError{Err: fmt.Errorf("%s: the login lacks %s: %w", s.place, backends.LackingRight(ours), err)}
	}
	if slices.Contains(numbers(err), 651) {
		return fmt.Errorf("%s: a table doesn't lock single rows (it is a columnstore, or ALLOW_ROW_LOCKS is off for one of its indexes: ALTER INDEX ALL ON … SET (ALLOW_ROW_LOCKS = ON)): %w", s.place, err)
	}
	if sqlErr.Number == 1934 {
		return fmt.Errorf("%s: a trigger or a procedure there was created with SET QUOTED_IDENTIFIER or ANSI_NULLS OFF (create it again with both ON): %w", s.place, err)
	}
	return fmt.Errorf("%s: %w", s.place, err)
}

// unreachable reports whether the driver could not connect. It keeps only the cause's text.
func unreachable(err error) bool {
	text := err.Error()
	for _, words := range []string{"unable to open tcp connection", "unable to get instances from Sql Server Browser", "no instance matching",
		"TLS Handshake failed", "login error", "database is closed", "i/o timeout", "connection refused"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// fullMessage returns the texts of all errors in a reply, each once.
func words(e mssql.Error) string {
	all := e.All
	if len(all) == 0 {
		all = []mssql.Error{e}
	}
	var b strings.Builder
	seen := map[string]bool{}
	for _, e := range all {
		text := fmt.Sprintf("%s (error %d)", e.Message, e.Number)
		if seen[text] {
			continue
		}
		seen[text] = true
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(text)
	}
	return b.String()
}

type kind int

const (
	internal kind = iota // a fault of this program or of its schema
	down                 // the database is unavailable
	refused              // the database refuses this change
)

// kindOf returns what the server's errors mean for a caller. An error that a trigger raises, by THROW, by RAISERROR
// or by its own failure, is a refusal, whatever its number.
func kindOf(e mssql.Error) kind {
	all := append([]mssql.Error{e}, e.All...)
	some := func(is func(e mssql.Error) bool) bool { return slices.ContainsFunc(all, is) }
	switch {
	case some(func(e mssql.Error) bool { return isDown(e.Number) || e.Class >= 20 }):
		return down
	case some(func(e mssql.Error) bool {
		return e.Number >= 50000 || e.Number == 3609 || e.Number == 3616 || // raised by a trigger; a trigger ended the transaction
			fromUserCode(e.ProcName) || slices.Contains(refusedNumbers, e.Number)
	}):
		return refused
	}
	return internal
}

// fromUserCode reports whether the error was raised in a procedure, a trigger or a function that belongs neither to
// the server nor to this package.
func fromUserCode(procedure string) bool {
	switch strings.ToLower(procedure) {
	case "", "sp_executesql", "sp_getapplock", "qsidecar_now":
		return false
	}
	return !strings.HasPrefix(strings.ToLower(procedure), "sys.")
}

// refusedNumbers are errors about a value or a rule of the table.
var refusedNumbers = []int32{
	515, 547, 550, 2601, 2627, 2628, 8152, // NULL, constraints, a view's check, too long
	220, 232, 241, 242, 244, 245, 248, 8114, 8115, 8134, 517, 535, // values of the wrong form or range
	13608, 13609, 13610, 13611, // JSON
	33504,                 // a security policy blocks the row
	511, 1701, 1946, 9420, // a row or a key too long; XML
}

// deniedNumbers are errors of logins.
var deniedNumbers = []int32{18452, 18456, 18461, 18470, 18486, 18487, 18488, 4064, 40532, 40615, 40914}

// isDown reports whether an error means that the database is unavailable or read-only.
func isDown(n int32) bool {
	switch n {
	case 1205, 1222, 3960, 3961, 601, // conflicts that outlasted the tries
		3906, 3908, 978, 976, 979, 982, 983, // read-only: a standby, a secondary, a restore
		954, 955, 988, // a mirror; no quorum
		1101, 1105, 9001, 9002, 40544, 1132, 1827, // full: files, log, quota
		911, 924, 942, 945, 952, 5120, 824, 823, 825, // the database does not exist, or is not readable
		6005, 6006, 596, 17142, 17887, 18451, // shutting down, killed
		40549, 40550, 40551, 40552, 40553, // Azure ended the session
		-2:
		return true
	}
	return slices.Contains(throttledNumbers, n) || slices.Contains(deniedNumbers, n)
}

// retryCause returns the cause of a retry; see backends.RetryCauses.
func retryCause(err error) int {
	switch {
	case broken(err):
		return backends.RetryConnection
	case isConflict(err):
		return backends.RetryConflict
	}
	return backends.RetryOther
}

// throttledWait is the minimum wait before a transaction is tried again for which the server lacked a resource.
const throttledWait = 100 * time.Millisecond

// Retry implements core.Driver.
func (a access) Retry(ctx context.Context, err error) (again bool, cause int, wait time.Duration) {
	switch whenAgain(err) {
	case never:
		return idTaken(err) && !a.server.babelfish && a.repairSequence(ctx, a.db), backends.RetryOther, 0
	case later:
		wait = throttledWait
	}
	return true, retryCause(err), wait
}

// WithKind implements core.Driver.
func (a access) WithKind(err error) error { return a.withKind(err) }

// FromServer implements core.Driver.
func (access) FromServer(err error) bool { return fromServer(err) }

// isConflict reports whether the server ended the transaction because of another one.
func isConflict(err error) bool {
	for _, n := range numbers(err) {
		switch n {
		case 1205, 1222, 3960, 3961, 601:
			return true
		}
	}
	return false
}
