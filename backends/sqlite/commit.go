package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Commit implements backends.Backend.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	return s.CommitWith(ctx, b, backends.TxHooks{})
}

// commit carries out the batch; claims: more will be claimed in the same transaction.
func (t *tx) commit(b backends.Batch, claims bool, res *backends.Results) error {
	if len(b.Claims) > 0 || claims {
		alive, err := t.exists(t.sql.hostAlive, int64(b.Host))
		if err != nil {
			return err
		}
		if !alive {
			return backends.ErrEvicted
		}
	}
	for _, w := range b.Writes {
		t.freed = nil
		r, err := t.write(w)
		if err != nil {
			return err
		}
		r.MadeReady = t.freed
		res.Writes = append(res.Writes, r)
	}
	for _, c := range b.Claims {
		r, err := t.claim(b.Host, c)
		if err != nil {
			return err
		}
		res.Claims = append(res.Claims, r)
	}
	return nil
}

func (t *tx) write(w backends.Write) (r backends.WriteResult, err error) {
	switch w := w.(type) {
	case backends.Enqueue:
		r.Stored, err = t.store(w.Jobs)
	case backends.Ack:
		r.Lost, err = t.ack(w)
		if err == nil && len(r.Lost) == 0 && len(w.Enqueue) > 0 {
			r.Stored, err = t.store(w.Enqueue)
		}
	case backends.Nack:
		r.Lost, err = t.each(w.Leases, 0, func(l *leased) error {
			return t.fall(l, l.standing().AfterNack(w), backends.CauseNacked, &r.Failed)
		})
	case backends.Extend:
		r.Lost, err = t.each(w.Leases, 0, func(l *leased) error { return t.extend(l, w) })
	case backends.Release:
		r.Lost, err = t.each(w.Leases, w.Owner, func(l *leased) error {
			return t.fall(l, l.standing().AfterRelease(w), w.Cause, &r.Failed)
		})
	case backends.Deliver:
		r.Lost, err = t.deliver(w.Deliveries)
	default:
		err = fmt.Errorf("sqlite: a write of the unknown kind %T", w)
	}
	return r, err
}

// store inserts jobs, in their order.
func (t *tx) store(jobs []backends.NewJob) ([]backends.Stored, error) {
	stored := make([]backends.Stored, 0, len(jobs))
	for i := range jobs {
		s, err := t.storeOne(&jobs[i])
		if err != nil {
			return nil, err
		}
		stored = append(stored, s)
	}
	return stored, nil
}

func (t *tx) storeOne(j *backends.NewJob) (backends.Stored, error) {
	if j.Key != "" {
		if first, found, err := t.remembered(j.Queue, j.Key); found || err != nil {
			return first, err
		}
	}
	id, err := t.next()
	if err != nil {
		return backends.Stored{}, err
	}
	var headers any
	if len(j.Headers) > 0 {
		text, err := json.Marshal(j.Headers)
		if err != nil {
			return backends.Stored{}, fmt.Errorf("headers: %w", err)
		}
		headers = string(text)
	}
	payload := j.Payload
	if payload == nil {
		payload = []byte{} // nil would be NULL
	}
	state, runAt := t.when(j)
	err = t.one(t.sql.insert, id, j.Queue, state, int64(j.Priority), id, positive(int64(j.MaxAttempts)),
		positive(ms(j.Timeout)), runAt, t.now, t.now, text(j.Key), headers, payload)
	if err != nil {
		return backends.Stored{}, err
	}
	if j.Key != "" {
		if _, err := t.exec(t.sql.putKey, j.Queue, j.Key, id, t.now+ms(j.KeyTTL)); err != nil {
			return backends.Stored{}, err
		}
	}
	if state == string(backends.StateReady) {
		t.free(j.Queue)
	}
	return backends.Stored{ID: strconv.FormatInt(id, 10)}, nil
}

// when is the state that a new job begins in, and its run_at or nil.
func (t *tx) when(j *backends.NewJob) (state string, runAt any) {
	at := t.now
	switch {
	case j.Delay > 0:
		at += ms(j.Delay)
	case !j.RunAt.IsZero():
		at = ceilMilli(j.RunAt)
	default:
		return string(backends.StateReady), nil
	}
	if at > t.now {
		return string(backends.StateScheduled), at
	}
	return string(backends.StateReady), at
}

// remembered finds the first job that was stored with the key, where the key is
// still taken.
func (t *tx) remembered(queue, key string) (first backends.Stored, found bool, err error) {
	var id int64
	err = t.query(t.sql.findKey, func(r row) error {
		if found = r.null(2) || t.now < r.int(1); found {
			id = r.int(0)
			first = backends.Stored{ID: strconv.FormatInt(id, 10), Duplicate: true, State: backends.State(r.text(2))}
		}
		return nil
	}, queue, key)
	if err != nil || !found || first.State != "" {
		return first, found, err
	}
	first.State = backends.StateDeleted // unless there is a row
	err = t.query(t.sql.stateOf, func(r row) error {
		first.State = backends.State(r.text(0))
		return nil
	}, id)
	return first, true, err
}

// ms is d in milliseconds, rounded up: what was asked for lasts at least so long.
func ms(d time.Duration) int64 {
	n := d.Milliseconds()
	if d > time.Duration(n)*time.Millisecond {
		n++
	}
	return n
}

func ceilMilli(t time.Time) int64 {
	n := t.UnixMilli()
	if t.After(time.UnixMilli(n)) {
		n++
	}
	return n
}

// positive is n, or NULL where n says nothing.
func positive(n int64) any {
	if n <= 0 {
		return nil
	}
	return n
}

// text is s, or NULL where it is empty.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// number is a job's id as the table has it; ok is false for what is none.
func number(id string) (n int64, ok bool) {
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == id
}

// duration is a number of milliseconds, or with NULL nothing.
func (r row) duration(i int) time.Duration { return batch.FromMS(r.int(i)) }

// time is an instant; NULL is the zero time.
func (r row) time(i int) time.Time {
	if r.null(i) {
		return time.Time{}
	}
	return time.UnixMilli(r.int(i)).UTC()
}
