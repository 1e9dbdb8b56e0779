package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

var errClosed = errors.New("the database handle was closed")

// lostError means that the connection broke before the commit, so nothing was written.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// fromServer reports whether err came from the server and not from the connection.
func fromServer(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr)
}

const diskFull = "53100"

// stalePlan is the server's routine that rejects a cached plan whose rows now have another type.
// The SQLSTATE has other meanings too, and the message is in the server's language.
const stalePlan = "RevalidateCachedQuery"

// transient reports whether the same transaction can succeed if it runs again at once. Every
// failed statement except COMMIT has written nothing. Commit handles COMMIT itself.
func transient(err error) bool {
	if core.Known(err) {
		return false
	}
	if _, lost := errors.AsType[*lostError](err); lost {
		return true
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code {
		case "40001", "40P01", // serialization, deadlock
			"0A000", "26000": // a cached plan or statement went stale
			return pgErr.Code != "0A000" || pgErr.Routine == stalePlan
		}
		return endsSession(pgErr.Code) && (!connecting || classOf(pgErr.Code) != "08")
	}
	return !connecting && broken(err)
}

// classOf returns the class of an SQLSTATE, or "" if a proxy sent none.
func classOf(code string) string { return code[:min(len(code), 2)] }

// endsSession reports whether the server ended the session, or a pooler lost its own connection (class 08). 25P03, 25P04 and 57P05
// are time limits.
func endsSession(code string) bool {
	return classOf(code) == "08" || slices.Contains([]string{"57P01", "57P02", "25P03", "25P04", "57P05"}, code)
}

// sessionEnded reports whether err is a server's error of endsSession.
func sessionEnded(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && endsSession(pgErr.Code)
}

// notCommitted reports whether err, the answer to COMMIT, proves that nothing was committed. Only a class of error with which the
// server itself refuses the data or the transaction does: of values, constraints, conflicts, and what deferred triggers raise. A pooler
// that lost its server answers with 08, 57P0 or 58, and another program with what this one doesn't know.
func notCommitted(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.SeverityUnlocalized == "ERROR" && // Severity is in the server's language
		slices.Contains([]string{"22", "23", "25", "40", "42", "44", "P0"}, classOf(pgErr.Code)) &&
		pgErr.Code != "40003" && !endsSession(pgErr.Code) // statement completion unknown
}

// broken reports whether the connection is gone.
func broken(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		pgconn.SafeToRetry(err) || strings.Contains(err.Error(), "conn closed")
}

// readOnly reports whether the server doesn't accept writes: it is a standby, or its settings forbid them.
// A standby shares the SQLSTATE of unsupported features, so only the routine identifies it.
func readOnly(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == "25006" || pgErr.Code == "0A000" && slices.Contains(standbys, pgErr.Routine))
}

// standbys are the server's routines that reject something because the server is a standby:
// setting READ WRITE, and reading an unlogged table.
var standbys = []string{"call_bool_check_hook", "get_relation_info"}

// withKind classifies an error and adds the address and, if it can, a fix.
func (s *Store) withKind(err error) error {
	if err == nil || core.Known(err) {
		return err
	}
	err = concise(err)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		var lost *lostError
		if broken(err) || errors.As(err, &lost) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return backends.Unavailable(fmt.Errorf("%s: %w", s.place, err))
		}
		if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
			return backends.Unavailable(fmt.Errorf("%s: %w", s.place, err))
		}
		return fmt.Errorf("%s: %w", s.place, err)
	}
	kind := kindOf(pgErr.Code)
	if readOnly(err) {
		kind = down
	}
	switch kind {
	case down:
		if pgErr.Code == "3D000" || strings.HasPrefix(pgErr.Code, "28") { // no such database; login
			return backends.Denied(fmt.Errorf("%s: %w", s.place, err))
		}
		if pgErr.Code == diskFull {
			return backends.DiskFull(fmt.Errorf("%s: %w", s.place, err))
		}
		return backends.Unavailable(fmt.Errorf("%s: %w", s.place, err))
	case refused:
		return backends.Refused(errors.New(fullMessage(pgErr)))
	}
	if pgErr.Code == "42501" {
		lacking := backends.LackingRight(strings.Contains(pgErr.Message, "qsidecar") || strings.Contains(pgErr.Message, "schema "+s.o.Schema))
		if s.pooled {
			lacking += ", or another client of the pooler left its own role in the session (set server_reset_query_always = 1 in PgBouncer)"
		}
		return &backends.RightError{Err: fmt.Errorf("%s: the role %s lacks %s: %w", s.place, s.own.login, lacking, err)}
	}
	return fmt.Errorf("%s: %w", s.place, err)
}

// fullMessage returns the server's message with its detail, hint and SQLSTATE. It leaves out the
// detail of a violated constraint, because that quotes the row, and the message is logged.
func fullMessage(e *pgconn.PgError) string {
	text := e.Message
	if e.Detail != "" && !strings.HasPrefix(e.Code, "23") {
		text += " (" + e.Detail + ")"
	}
	if e.Hint != "" {
		text += "; hint: " + e.Hint
	}
	return fmt.Sprintf("%s (SQLSTATE %s)", text, e.Code)
}

type kind int

const (
	internal kind = iota // a defect of this program or of its schema
	down                 // the database is unavailable now
	refused              // the database rejects this change
)

// kindOf returns what an SQLSTATE means for a caller.
func kindOf(code string) kind {
	switch code {
	case "40001", "40P01", "55P03", "57014", "25P03", "25P04", "3D000": // conflicts; locks; timeouts or cancel; no such database
		return down
	case "54000", "54001", "54011", "54023": // limits of one statement
		return refused
	case "22P02", "22P03", "22021": // texts of the wrong form or encoding, which a caller can send
		return refused
	}
	switch classOf(code) {
	case "08", "53", "57", "58", "28": // connection, resources, operator, system, login
		return down
	case "22", "23", "27", "09", "38", "39", "44", "P0": // data, integrity, triggers, functions, views
		return refused
	case "00", "01", "02", "03", "0A", "0B", "0F", "0L", "0P", "0Z", "20", "21", "24", "25", "26", "2B", "2D", "2F",
		"34", "3B", "3D", "3F", "40", "42", "54", "55", "72", "F0", "HV", "XX":
		return internal
	}
	return refused // a custom SQLSTATE, raised by a trigger
}

// retryCause returns the reason for the retry after a transient error, for the statistics.
func retryCause(err error) int {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(pgErr.Code, "40") {
		return backends.RetryConflict
	}
	if broken(err) || sessionEnded(err) {
		return backends.RetryConnection
	}
	return backends.RetryOther
}

// Retry implements core.Driver.
func (a access) Retry(ctx context.Context, err error) (again bool, cause int, wait time.Duration) {
	return transient(err) || a.idTaken(err) && a.repairIDs(ctx), retryCause(err), 0
}

// WithKind implements core.Driver.
func (a access) WithKind(err error) error { return a.withKind(err) }

// FromServer implements core.Driver.
func (access) FromServer(err error) bool { return fromServer(err) }

// conciseError is an error with a shorter text.
type conciseError struct {
	text string
	err  error
}

func (e *conciseError) Error() string { return e.text }
func (e *conciseError) Unwrap() error { return e.err }

// isForeign reports whether the answer to a login isn't a message of PostgreSQL: another service has that port. pgproto3 has no type for one of its
// two errors.
func isForeign(err error) bool {
	_, long := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err)
	return long || strings.Contains(err.Error(), "unknown message type")
}

// concise shortens the text of a failed login. The driver tries an address again without TLS, and lists each try: what counts is the
// server's own answer (a wrong password), and otherwise each text once.
func concise(err error) error {
	connect, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return err
	}
	cause := connect.Unwrap()
	joined, ok := cmp.Or(errors.Unwrap(cause), cause).(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	address := func(err error) string {
		at, _, _ := strings.Cut(err.Error(), "): ")
		return at
	}
	answers := func(err error) bool {
		_, is := errors.AsType[*pgconn.PgError](err)
		return is || isForeign(err)
	}
	answered := map[string]bool{}
	for _, try := range joined.Unwrap() {
		if answers(try) {
			answered[address(try)] = true
		}
	}
	var texts []string
	for _, try := range joined.Unwrap() {
		text := try.Error()
		if isForeign(try) {
			text = address(try) + "): what answers isn't PostgreSQL: correct the host or the port in the url"
		}
		if (answers(try) || !answered[address(try)]) && !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	text := fmt.Sprintf("can't connect as the user %s to the database %s: %s", connect.Config.User, connect.Config.Database, strings.Join(texts, "; "))
	return &conciseError{strings.Replace(err.Error(), connect.Error(), text, 1), err}
}
