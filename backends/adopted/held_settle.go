package adopted

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// picked is what a batch is without the writes about held jobs, and whose write each
// is.
type picked struct {
	batch backends.Batch
	of    []int
}

// heldWrite is a write about one held job.
type heldWrite struct {
	n int // its number in the batch
	backends.Write
	lease backends.Lease
	job   *held
}

// pick takes the writes about held jobs out of a batch.
func (h *holds) pick(b backends.Batch) (rest picked, found []heldWrite) {
	h.mu.Lock()
	none := len(h.jobs) == 0
	h.mu.Unlock()
	if none {
		return picked{}, nil
	}
	rest.batch = backends.Batch{Host: b.Host, Claims: b.Claims, WaitForLocks: b.WaitForLocks}
	for n, w := range b.Writes {
		all := batch.LeasesOf(w)
		var others []backends.Lease
		for _, l := range all {
			if j := h.find(l); j != nil {
				found = append(found, heldWrite{n, about(w, []backends.Lease{l}), l, j})
			} else {
				others = append(others, l)
			}
		}
		if len(others) > 0 || len(all) == 0 {
			if len(others) < len(all) {
				w = about(w, others)
			}
			rest.of, rest.batch.Writes = append(rest.of, n), append(rest.batch.Writes, w)
		}
	}
	return rest, found
}

// about is the write, of these leases.
func about(w backends.Write, leases []backends.Lease) backends.Write {
	switch w := w.(type) {
	case backends.Ack:
		w.Leases = leases
		return w
	case backends.Nack:
		w.Leases = leases
		return w
	case backends.Release:
		w.Leases = leases
		return w
	case backends.Extend:
		w.Leases = leases
		return w
	}
	return w
}

// settleHeld carries out writes about held jobs, beside each other: each is a
// commit of its own connection.
func (s *Store) settleHeld(ctx context.Context, all []heldWrite, res []backends.WriteResult) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, w := range all {
		wg.Go(func() {
			one := s.settleOne(ctx, w)
			mu.Lock()
			defer mu.Unlock()
			r := &res[w.n]
			r.Lost = append(r.Lost, one.Lost...)
			r.Failed.AddAll(one.Failed)
			for _, q := range one.MadeReady {
				batch.Free(r, q)
			}
			if one.Stored != nil {
				r.Stored = one.Stored
			}
			r.Err = errors.Join(r.Err, one.Err)
		})
	}
	wg.Wait()
}

// settleOne carries out a write about one held job.
func (s *Store) settleOne(ctx context.Context, w heldWrite) (r backends.WriteResult) {
	j := w.job
	j.mu.Lock()
	defer j.mu.Unlock()
	release, isRelease := w.Write.(backends.Release)
	switch _, extend := w.Write.(backends.Extend); {
	case j.ended, release.Owner != 0 && release.Owner != backends.Identity(j.lease.owner):
		r.Lost = []backends.Lease{w.lease}
		return r
	case extend:
		r.Err = &backends.UnsupportedError{Queue: j.table.queue, What: backends.NoExtend, InTx: true}
		return r
	case isRelease && release.Uncounted:
		r.MadeReady = append(s.holds.end(ctx, j), j.table.queue)
		r.Failed.Add(j.table.queue, release.Cause, false)
		return r
	}
	k := &commitment{s: s, batch: backends.Batch{Writes: []backends.Write{w.Write}}, held: j}
	err := k.split()
	if err == nil {
		err = k.together(ctx)
	}
	lost := errors.Is(err, backends.ErrTxLost)
	switch {
	case err == nil:
		r = k.res.Writes[0]
	case lost:
		r.Lost = []backends.Lease{w.lease}
	default:
		r.Err = err
	}
	if err == nil || isRelease || !j.conn.Open() {
		if isRelease && err != nil { // it is free all the same, and the attempt not counted
			r.Err = nil
			r.MadeReady = []string{j.table.queue}
			if !lost {
				r.Failed.Add(j.table.queue, release.Cause, false)
			}
		}
		for _, q := range s.holds.end(ctx, j) {
			batch.Free(&r, q)
		}
	}
	return r
}

// overdue takes back the held jobs whose time is over, and returns when that of the
// next one is; < 0: there is none.
func (s *Store) overdue(ctx context.Context, r *backends.MaintenanceResult) (next time.Duration) {
	next = -1
	for _, j := range s.holds.all(func(j *held) bool { return j.timeout > 0 }) {
		left := j.timeout - time.Since(j.began)
		if left > 0 {
			if next < 0 || left < next {
				next = left
			}
			continue
		}
		one := s.settleOne(ctx, heldWrite{Write: backends.Release{Leases: []backends.Lease{j.proof()}, Cause: backends.CauseTimedOut}, lease: j.proof(), job: j})
		if len(one.Lost) == 0 {
			r.Reaped[backends.CauseTimedOut]++
			r.Failed.AddAll(one.Failed)
		}
		for _, q := range one.MadeReady {
			if !slices.Contains(r.MadeReady, q) {
				r.MadeReady = append(r.MadeReady, q)
			}
		}
	}
	return next
}

// Beat implements backends.Backend. With each beat the connections of held jobs are
// shown to be alive, too; with a new identity, and with the last beat, what is held
// is let go.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	p, err := s.Adopter.Heartbeat(ctx, b)
	h := s.holds
	switch {
	case b.Kind == backends.HeartbeatLeave:
		h.letGo(ctx, h.all(func(*held) bool { return true }))
		return p, err
	case b.Kind == backends.HeartbeatJoin && err == nil:
		h.letGo(ctx, h.all(func(j *held) bool { return j.lease.owner != int64(b.Host) }))
	}
	h.mu.Lock()
	h.idle = b.Timeout
	h.mu.Unlock()
	h.ping(b.Timeout / 2)
	return p, err
}

// Close implements backends.Backend. Where another Store goes on with what is held, it
// waits for the jobs that are this one's.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.holds.close(s.Adopter)
		s.closed = s.Adopter.Close()
	})
	return s.closed
}
