package sqlite

import (
	"context"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// leased is a claimed row and what becomes of it.
type leased struct {
	id              int64
	queue, key      string
	position        int64
	readyAt         any
	attempts, limit int64 // attempts: with this delivery, recorded or not
	losses          int64
	ahead           bool
	unrecorded      int64
	backoff         time.Duration
	backoffMax      time.Duration
	keep, keepDead  time.Duration // 0: not kept; for ever
	lease           int64         // ms; 0: a session lease
	deadline, dueAt any           // nil: none
	lastError       any
	owner           backends.Identity

	state             backends.State // the next one
	runAt, finishedAt any
	expiresAt         any
	result            []byte
}

// find reads the row that the lease is valid for; nil: there is none.
func (t *tx) find(sql string, args ...any) (l *leased, err error) {
	err = t.query(sql, func(r row) error {
		l = &leased{
			id: args[0].(int64), queue: r.text(0), key: r.text(1), position: r.int(2), readyAt: r[3],
			attempts: r.int(4), limit: r.int(5), losses: r.int(6), backoff: r.duration(7), backoffMax: r.duration(8),
			keep: r.duration(9), keepDead: r.duration(10), lease: r.int(11), deadline: r[12], dueAt: r[13], lastError: r[14],
			owner: backends.Identity(r.int(15)), ahead: r.int(16) != 0, unrecorded: r.int(17),
		}
		if l.ahead { // whatever becomes of it, its worker had it; or the Fate takes it off again
			l.attempts++
		}
		return nil
	}, args...)
	return l, err
}

// each calls f with the row of each valid lease and returns the other leases. With
// an owner, a claim that belongs to another host is none.
func (t *tx) each(leases []backends.Lease, owner backends.Identity, f func(l *leased) error) (lost []backends.Lease, err error) {
	for _, lease := range leases {
		var l *leased
		if id, ok := number(lease.Job); ok {
			l, err = t.find(t.sql.leased, id, int64(lease.Token.Host), int64(lease.Token.Number))
		}
		if l != nil && owner != 0 && l.owner != owner {
			l = nil
		}
		if err == nil && l != nil {
			err = f(l)
		}
		if err != nil {
			return nil, err
		}
		if l == nil {
			lost = append(lost, lease)
		}
	}
	return lost, nil
}

// ack tries the commonest case first: a row without a key that is not kept.
func (t *tx) ack(w backends.Ack) (lost []backends.Lease, err error) {
	var others []backends.Lease
	for _, lease := range w.Leases {
		id, ok := number(lease.Job)
		if !ok {
			lost = append(lost, lease)
			continue
		}
		n, err := t.exec(t.sql.ackPlain, id, int64(lease.Token.Host), int64(lease.Token.Number))
		if err != nil {
			return nil, err
		}
		if n == 0 {
			others = append(others, lease)
		}
	}
	more, err := t.each(others, 0, func(l *leased) error { return t.done(l, w.Result) })
	return append(lost, more...), err
}

func (t *tx) done(l *leased, result []byte) error {
	if err := t.end(l, backends.StateDone); err != nil {
		return err
	}
	if l.keep == 0 {
		return t.one(t.sql.remove, l.id)
	}
	l.state, l.finishedAt, l.expiresAt, l.result = backends.StateDone, t.now, after(t.now, l.keep), result
	return t.leave(l)
}

// end tells the key of a job that it has finished.
func (t *tx) end(l *leased, as backends.State) error {
	if l.key == "" {
		return nil
	}
	_, err := t.exec(t.sql.endKey, string(as), l.queue, l.key, l.id)
	return err
}

func (t *tx) die(l *leased) error {
	l.state, l.finishedAt, l.expiresAt = backends.StateDead, t.now, after(t.now, l.keepDead)
	if err := t.end(l, backends.StateDead); err != nil {
		return err
	}
	return t.leave(l)
}

// leave writes what became of a claimed row.
func (t *tx) leave(l *leased) error {
	if l.state == backends.StateReady {
		t.free(l.queue)
	}
	var result any // a nil []byte must be NULL
	if l.result != nil {
		result = l.result
	}
	return t.one(t.sql.leave, string(l.state), l.position, l.readyAt, l.runAt, l.attempts, l.losses, l.unrecorded,
		l.lastError, l.finishedAt, l.expiresAt, result, l.id)
}

// failed keeps a failure; the row's last_error is the caller's.
func (t *tx) failed(id, attempt int64, cause backends.Cause, message string) error {
	_, err := t.exec(t.sql.fail, id, attempt, string(cause), message, t.now)
	return err
}

// meet makes a job's fate come true.
func (t *tx) meet(l *leased, f backends.Disposition) (err error) {
	l.attempts, l.losses, l.unrecorded = int64(f.Attempts), int64(f.Losses), int64(f.PrefetchLosses)
	if f.Cause != "" {
		l.lastError = f.Message
		if err := t.failed(l.id, l.attempts, f.Cause, f.Message); err != nil {
			return err
		}
	}
	switch l.state = f.State; {
	case f.State == backends.StateDead:
		return t.die(l)
	case f.State == backends.StateScheduled:
		l.runAt = t.now + ms(f.Delay)
	case !f.SamePosition:
		l.readyAt = t.now
		if l.position, err = t.next(); err != nil {
			return err
		}
	}
	return t.leave(l)
}

// fall is meet for a job that is counted.
func (t *tx) fall(l *leased, f backends.Disposition, cause backends.Cause, count *backends.FailedCounts) error {
	err := t.meet(l, f)
	count.Add(l.queue, cause, f.State == backends.StateDead)
	return err
}

func (l *leased) standing() backends.AttemptState {
	return backends.AttemptState{
		Attempts: int(l.attempts), Limit: int(l.limit), Losses: int(l.losses), Backoff: l.backoff, BackoffMax: l.backoffMax,
		Prefetched: l.ahead, PrefetchLosses: int(l.unrecorded),
	}
}

// deliver records that jobs were handed out; twice is once.
func (t *tx) deliver(handed []backends.Delivery) (lost []backends.Lease, err error) {
	for _, h := range handed {
		id, ok := number(h.Lease.Job)
		n := int64(0)
		if ok {
			n, err = t.exec(t.sql.deliver, text(h.Worker), id, int64(h.Lease.Token.Host), int64(h.Lease.Token.Number))
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			lost = append(lost, h.Lease)
		}
	}
	return lost, nil
}

func (t *tx) extend(l *leased, e backends.Extend) (err error) {
	if l.ahead || l.unrecorded > 0 { // its worker has it
		if err := t.one(t.sql.record, l.id); err != nil {
			return err
		}
	}
	switch {
	case e.Bind != 0:
		err = t.one(t.sql.bind, int64(e.Bind), text(e.Worker), l.id)
	case e.Lease > 0:
		err = t.one(t.sql.renew, ms(e.Lease), earlier(after(t.now, e.Lease), l.deadline), l.id)
	case l.lease > 0:
		err = t.one(t.sql.renew, l.lease, earlier(t.now+l.lease, l.deadline), l.id)
	}
	return err
}

// Held implements backends.Backend.
func (s *Store) ClaimedBy(ctx context.Context, host backends.Identity, after string, limit int) ([]backends.ClaimedJob, error) {
	var held []backends.ClaimedJob
	from, _ := number(after) // what is no id has everything after it
	err := s.reading(ctx, func(t *tx) error {
		return t.query(t.sql.held, func(r row) error {
			held = append(held, backends.ClaimedJob{
				Lease: backends.Lease{
					Job:   strconv.FormatInt(r.int(0), 10),
					Token: backends.Token{Host: backends.Identity(r.int(1)), Number: uint64(r.int(2))},
				},
				Queue: r.text(3),
				Timed: !r.null(4),
			})
			return nil
		}, int64(host), from, limit)
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}
