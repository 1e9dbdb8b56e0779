package mysql

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/dialect"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

var _ backends.Adopter = (*Store)(nil)

// rowWait is how long a commit waits for locks of other programs: on rows, and on keys that an open
// transaction has stored. A write in a batch of its own waits for lockWait: see
// backends.CommitContent.WaitForLocks. The server counts in whole seconds.
const rowWait = time.Second

// checkSidecar makes the transaction fail with backends.ErrEvicted if it claims only adopted rows and its sidecar
// is not alive. Other claims check that themselves.
func (t *tx) checkSidecar() {
	if !t.o.AdoptedClaims || len(t.o.Queues) > 0 {
		return
	}
	t.Query(func(r *session.Result) error {
		ok, err := r.Next()
		if err == nil && !ok {
			err = backends.ErrEvicted
		}
		return err
	}, t.s.sql.sidecarAlive, int64(t.o.Sidecar))
}

// lockedOut converts the error of a transaction that waited for another program's lock on a row or key to
// a backends.LockedError.
func lockedOut(o core.TxOptions, err error) error {
	if session.IsCode(err, codeNoWait) || (o.LimitsLockWaits() || o.Sidecar == 0) && session.IsCode(err, codeLockWait) {
		return &backends.LockedError{Err: errors.New("the lock was not free in time")}
	}
	return err
}

// Do implements backends.SQL.
func (t *tx) Do(ctx context.Context, statements ...*backends.Statement) error {
	for _, st := range statements {
		t.makeRoom(sizeOf(st))
		if err := t.addStatement(st); err != nil {
			return err
		}
	}
	return t.s.withoutHints(t.Flush(ctx))
}

// codeNoIndex is the error for a hint with an index that doesn't exist.
const codeNoIndex = 1176

// withoutHints runs a transaction again without hints, if the owner of an adopted table removed or renamed an index that one
// names. A reload describes the tables again and turns hints on.
func (s *Store) withoutHints(err error) error {
	if !session.IsCode(err, codeNoIndex) || s.hintless.Swap(true) {
		return err
	}
	s.log.Warn("index of an adopted table missing", "event", "adopted_index_missing", "address", s.place, "error", err)
	return core.ErrAgain
}

// sizeOf estimates how many bytes a statement takes in a packet.
func sizeOf(st *backends.Statement) int64 {
	n := 2 * len(st.Text)
	for _, a := range st.Args {
		switch a := a.(type) {
		case string:
			n += 2 * len(a)
		case []byte:
			n += 2 * len(a)
		case []string:
			for _, text := range a {
				n += 4*len(text) + 100
			}
		}
	}
	return int64(n)
}

// Query implements backends.Adopter.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	return s.Again(ctx, func(ctx context.Context) error {
		return lockedOut(core.TxOptions{AdoptedClaims: true}, s.queryOnce(ctx, statements))
	})
}

func (s *Store) queryOnce(ctx context.Context, statements []*backends.Statement) error {
	return s.readOnce(ctx, func(ctx context.Context, t *tx) error {
		wait := s.o.rowWait
		if t.c.Wait != wait {
			t.Add(setWait(wait))
		}
		t.Add("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
		t.Add("START TRANSACTION")
		for _, st := range statements {
			if err := t.addStatement(st); err != nil {
				return err
			}
		}
		t.Add("COMMIT")
		err := t.send(ctx)
		if !errors.Is(err, session.ErrPacket) { // then nothing was sent
			t.c.Wait = wait
		}
		if err != nil {
			t.rollback(ctx)
		}
		return err
	})
}

// Dialect implements backends.Adopter.
func (s *Store) Dialect() backends.Dialect {
	s.hintless.Store(false)
	return dialect.New(s.o.clock, s.dialer.Server.SkipLocked, &s.hintless)
}

// addStatement queues a statement of a package that uses Dialect. It passes rows to st.Row.
func (t *tx) addStatement(st *backends.Statement) error {
	text, answer := dialect.CutAnswer(st.Text)
	st.Matched = 0
	t.Add("")
	if err := dialect.Append(&t.Script, text, st.Args); err != nil {
		return err
	}
	if strings.HasPrefix(text, "SELECT ") {
		t.Reads(func(r *session.Result) error { return r.ReadInto(0, st, func() { st.Matched++ }) })
		return nil
	}
	t.wrote = true
	t.Add(t.s.sql.rowCount)
	if answer != "" {
		t.Text(", ")
		if err := dialect.Append(&t.Script, answer, st.Args); err != nil {
			return err
		}
	}
	t.Reads(func(r *session.Result) error { return r.ReadInto(1, st, func() { st.Matched = max(r.Int(0), 0) }) })
	return nil
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return core.QueuesOfJobs(ctx, s, "bigint", leases)
}
