package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// tx is a transaction under way: pieces queue up and go to the server together.
type tx struct {
	s     *Store
	c     *sql.Conn
	lane  *lane
	calls []call
	wrote bool // something was written, so that its commit has a number

	brief   bool              // rows that others have locked are not waited for
	asked   bool              // it was asked for the host that the transaction claims for,
	alive   bool              // and that lives
	returns map[int]int64     // of the scope's queues, by their place there; none: 0
	backs   []cursor.GiveBack // what is given back
	found   []found           // claims that a command gives up
}

// add queues a piece. read gets its result sets.
func (t *tx) add(p *piece, read []reader, args ...any) {
	t.calls = append(t.calls, call{p, args, read})
}

// send has the server carry out what is queued: in one batch, as far as they go
// together.
func (t *tx) send(ctx context.Context) error {
	calls := t.calls
	t.calls = nil
	for len(calls) > 0 {
		n := together(calls)
		wrote := int64(0)
		some := append(t.s.sql.knowing(calls[:n]), call{t.s.sql.mark, []any{t.s.handle, t.lane.id, t.lane.number}, []reader{one(&wrote)}})
		if t.brief {
			some = append([]call{{piece: t.s.sql.brief}}, some...)
		}
		began := time.Now()
		err := t.s.sql.carryOut(ctx, t.c, some)
		t.s.meter.RoundTrip(began)
		t.wrote = t.wrote || wrote > 0
		if err != nil {
			return err
		}
		calls = calls[n:]
	}
	return nil
}

// maxParameters is how many a batch has at most: sp_executesql takes 2100.
const maxParameters = 2000

// together is how many of the calls go into one batch: no piece twice, whose
// variables would meet, and not too many parameters.
func together(calls []call) int {
	seen, parameters := map[string]bool{}, 0
	for n, c := range calls {
		if parameters += len(c.params); seen[c.name] || n > 0 && parameters > maxParameters {
			return n
		}
		seen[c.name] = true
	}
	return len(calls)
}

// A work is what one transaction does. It is called with round 0, then 1, … and
// queues pieces each time; they are sent between. It returns false when it has
// nothing to add. It is called anew, from 0, where the transaction is tried again.
type work func(t *tx, round int) (more bool, err error)

// scope is what a transaction with claims is asked about.
type scope struct {
	host   *int64   // claims are for this one: it must live
	queues []string // whose returns are of interest

	before, after func(ctx context.Context, t *tx) error // run before and after its work; nil: nothing
}

const (
	maxTries      = 8
	retryPause    = 2 * time.Millisecond // doubles with each try
	throttledWait = 100 * time.Millisecond
	rollbackFor   = 2 * time.Second
	findOutFor    = 2 * time.Second
)

// write runs f in a transaction until it is committed, or certainly is not.
func (s *Store) write(ctx context.Context, sc scope, f work) error {
	ctx, done := s.bound(ctx)
	defer done()
	return s.again(ctx, func() error { return s.attempt(ctx, sc, f) })
}

// again runs f until it succeeds or trying again is of no use, and gives its error
// its kind.
func (s *Store) again(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || try == maxTries || ctx.Err() != nil {
			return s.outcome(ctx, err)
		}
		wait := retryPause << try
		switch whenAgain(err) {
		case never:
			return s.outcome(ctx, err)
		case later:
			wait = min(throttledWait<<try, time.Second)
		}
		s.meter.Retry(retryCause(err))
		s.log.Debug("what failed is tried again", "place", s.place, "error", err)
		if !batch.Pause(ctx, wait) {
			return s.outcome(ctx, err)
		}
	}
}

// outcome gives the error of a call its kind. ctx's end is told by what ended it.
func (s *Store) outcome(ctx context.Context, err error) error {
	if err == nil || batch.Known(err) {
		return err
	}
	if ctx.Err() != nil && !fromServer(err) {
		return batch.Ended(ctx, "waiting for "+s.place)
	}
	return s.explain(err)
}

// attempt runs f once. An error that is not ErrUnknownOutcome: nothing was written.
func (s *Store) attempt(ctx context.Context, sc scope, f work) (err error) {
	l, err := s.takeLane(ctx)
	if err != nil {
		return err
	}
	defer s.giveLane(l)
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	t := &tx{s: s, c: c, lane: l}
	if _, err = c.ExecContext(ctx, s.sql.begin); err == nil {
		err = t.run(ctx, sc, f)
	}
	if err != nil {
		t.rollback(ctx, err)
		return t.lockedOut(err)
	}
	if err = t.commit(ctx); err == nil {
		s.cursors.Back(t.backs)
	}
	return err
}

func (t *tx) run(ctx context.Context, sc scope, f work) error {
	if sc.before != nil {
		if err := sc.before(ctx, t); err != nil {
			return err
		}
	}
	if err := t.rounds(ctx, sc, f); err != nil || sc.after == nil {
		return err
	}
	return sc.after(ctx, t)
}

func (t *tx) rounds(ctx context.Context, sc scope, f work) error {
	for round := 0; ; round++ {
		more, err := f(t, round)
		if err != nil || !more {
			return err
		}
		t.ask(sc)
		if err := t.send(ctx); err != nil {
			return err
		}
		if sc.host != nil && !t.alive {
			return backends.ErrEvicted
		}
	}
}

// ask queues the question about the scope's host and queues.
func (t *tx) ask(sc scope) {
	if sc.host == nil {
		return
	}
	t.asked, t.returns = true, map[int]int64{}
	t.add(t.s.sql.host, []reader{one(&t.alive), each(func(rows *sql.Rows) error {
		var n int
		var returns int64
		if err := rows.Scan(&n, &returns); err != nil {
			return err
		}
		t.returns[n] = returns
		return nil
	})}, *sc.host, listOf(sc.queues))
}

// close gives the connection back.
func (t *tx) close() {
	if err := t.c.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
		t.s.log.Debug("giving a connection back", "place", t.s.place, "error", err)
	}
}

// rollback leaves the transaction: where the connection is still good by a ROLLBACK,
// else by its end. It has time of its own: ctx may be over. XACT_ABORT has ended the
// transaction after most errors.
func (t *tx) rollback(ctx context.Context, cause error) {
	defer t.close()
	if broken(cause) {
		t.abandon()
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	if _, err := t.c.ExecContext(ctx, rollbackSQL); err != nil {
		t.s.log.Debug("rolling back", "place", t.s.place, "error", err) // the connection's end does it
		t.abandon()
	}
}

const (
	commitSQL   = "COMMIT TRANSACTION;"
	rollbackSQL = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;"
)

// abandon throws the connection away, and its lane: the server may keep the
// transaction, with the lock of the lane's row, until it notices.
func (t *tx) abandon() {
	discard(t.c)
	flush(t.s.db, t.s.o.MaxConnections-1)
	t.lane.over = true
}

// commit makes the transaction durable. Where the answer gets lost, another
// connection finds out whether its number is there.
func (t *tx) commit(ctx context.Context) error {
	hook := t.s.fault.Load()
	if hook != nil {
		(*hook)(true)
	}
	_, err := t.c.ExecContext(ctx, commitSQL)
	if hook != nil && err == nil {
		(*hook)(false)
		err = t.c.PingContext(ctx)
	}
	if err != nil {
		t.abandon()
	}
	t.close()
	if err == nil || !t.wrote {
		return nil
	}
	return t.s.findOut(ctx, t.lane, err)
}

// lane is a row of qsidecar_commits, which one transaction at a time writes.
type lane struct {
	id     int32
	number int64 // of the transaction that has it
	over   bool  // its row may be locked for a while: another one takes its place
}

func (s *Store) newLane() *lane { return &lane{id: s.made.Add(1)} }

// takeLane gives a lane with its next number. There are as many as connections.
func (s *Store) takeLane(ctx context.Context) (*lane, error) {
	if ctx.Err() != nil {
		return nil, batch.Ended(ctx, "before the transaction")
	}
	select {
	case l := <-s.lanes:
		l.number++
		return l, nil
	case <-ctx.Done():
		return nil, batch.Ended(ctx, "waiting for a connection to "+s.place)
	}
}

func (s *Store) giveLane(l *lane) {
	if l.over {
		l = s.newLane()
	}
	s.lanes <- l
}

// findOut learns whether a commit happened whose answer got lost. Where ctx is over
// it tries once more, with a little time of its own: to know is worth it.
func (s *Store) findOut(ctx context.Context, l *lane, cause error) error {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		last := ctx.Err() != nil
		happened, err := s.sealed(ctx, last, l)
		if err == nil {
			s.log.Warn("the outcome of a commit was found out", "place", s.place, "happened", happened, "error", cause)
			if happened {
				return nil
			}
			return backends.Unavailable(fmt.Errorf("%s: the commit failed: %w", s.place, cause))
		}
		if last {
			s.log.Error("the outcome of a commit stays unknown", "place", s.place, "error", errors.Join(cause, err))
			return backends.ErrUnknownOutcome
		}
		batch.Pause(ctx, wait)
	}
}

// sealed asks once. A no is sealed with a later number: from then on it stays no.
func (s *Store) sealed(ctx context.Context, last bool, l *lane) (happened bool, err error) {
	if last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), findOutFor)
		defer cancel()
	}
	var found int64
	err = s.sql.carryOut(ctx, s.db, []call{{s.sql.seal, []any{s.handle, l.id, l.number}, []reader{one(&found)}}})
	return found == l.number, err
}

// read asks one batch, outside of any transaction.
func (s *Store) read(ctx context.Context, calls ...call) error {
	ctx, done := s.bound(ctx)
	defer done()
	if ctx.Err() != nil {
		return batch.Ended(ctx, "before asking "+s.place)
	}
	return s.again(ctx, func() error {
		began := time.Now()
		err := s.sql.carryOut(ctx, s.db, calls)
		s.meter.RoundTrip(began)
		if err != nil && broken(err) {
			flush(s.db, s.o.MaxConnections-1)
		}
		return err
	})
}
