package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Commit implements backends.Backend.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	k := &commitment{s: s, batch: b, lean: onlyAcks(b.Writes) && !s.kept.seen()}
	err := s.write(ctx, k.run)
	if errors.Is(err, errNotLean) {
		k.lean = false
		err = s.write(ctx, k.run)
	}
	if err != nil {
		return backends.Results{}, err
	}
	k.learn()
	return k.res, nil
}

// commitment is a batch on its way.
type commitment struct {
	s      *Store
	batch  backends.Batch
	res    backends.Results
	jobs   map[int64]*job // those that the batch has leases of, where they are
	keys   map[batch.Key]*remembered
	stores []storing
	claims []*claiming
	end    ending
	lean   bool // the writes are tried by the lean statement
}

// run implements work. What is locked is locked in a fixed order: jobs by their
// ids, keys, and then what nobody waits for; queues' rows come last.
func (k *commitment) run(ctx context.Context, t *tx) error {
	k.res = backends.Results{Writes: make([]backends.WriteResult, len(k.batch.Writes)), Claims: nil}
	k.jobs, k.keys, k.stores, k.claims, k.end = map[int64]*job{}, map[batch.Key]*remembered{}, nil, nil, ending{}
	if k.lean {
		k.ackLean(t)
	} else {
		k.ask(t)
	}
	k.startClaims()
	if !k.mayFree() { // then what they may get does not depend on the writes
		k.askClaims(t)
	}
	if len(t.reads) > 0 { // else there is nothing to wait for
		if err := t.send(ctx); err != nil {
			return err
		}
	}
	if k.end.acked != k.end.toAck {
		return errNotLean
	}
	if !k.lean {
		if err := k.carryOut(ctx, t); err != nil {
			return err
		}
	}
	return k.goOnClaims(ctx, t)
}

// ask queues what must be known, and locked, before anything is changed.
func (k *commitment) ask(t *tx) {
	var ids []int64
	instants := false
	keyed := map[batch.Key]struct{}{}
	for _, w := range k.batch.Writes {
		for _, l := range batch.LeasesOf(w) {
			if id, ok := batch.Number(l.Job); ok {
				ids = append(ids, id)
			}
		}
		for _, key := range batch.KeysOf(w) {
			keyed[key] = struct{}{}
		}
		for _, j := range batch.JobsOf(w) {
			instants = instants || !j.RunAt.IsZero()
		}
	}
	if instants || len(ids)+len(keyed) > 0 {
		t.askNow()
	}
	t.lock(k.jobs, ids, "")
	k.lockKeys(t, keyed)
}

// mayFree: the writes may make jobs ready, which claims must see.
func (k *commitment) mayFree() bool {
	return slices.ContainsFunc(k.batch.Writes, func(w backends.Write) bool {
		switch w := w.(type) {
		case backends.Enqueue, backends.Nack, backends.Release:
			return true
		case backends.Ack:
			return len(w.Enqueue) > 0
		}
		return false
	})
}

// carryOut makes the changes to what was read, write by write, and queues the
// statements that make them in the tables.
func (k *commitment) carryOut(ctx context.Context, t *tx) error {
	for i, w := range k.batch.Writes {
		r := &k.res.Writes[i]
		switch w := w.(type) {
		case backends.Enqueue:
			k.store(i, w.Jobs, t.now)
		case backends.Ack:
			r.Lost = k.each(w.Leases, 0, func(j *job) {
				if j.keep > 0 || j.key != "" || j.failed {
					t.s.kept.note()
				}
				j.done(w.Result)
			})
			if len(r.Lost) == 0 {
				k.store(i, w.Enqueue, t.now)
			}
		case backends.Nack:
			r.Lost = k.each(w.Leases, 0, func(j *job) { k.meet(r, j, t.now, j.standing().AfterNack(w), backends.CauseNacked) })
		case backends.Release:
			r.Lost = k.each(w.Leases, w.Owner, func(j *job) { k.meet(r, j, t.now, j.standing().AfterRelease(w), w.Cause) })
		case backends.Extend:
			r.Lost = k.each(w.Leases, 0, func(j *job) { j.extend(w, t.now) })
		case backends.Deliver:
			for _, h := range w.Deliveries {
				r.Lost = append(r.Lost, k.each([]backends.Lease{h.Lease}, 0, func(j *job) { j.deliver(h.Worker) })...)
			}
		default:
			return fmt.Errorf("%w: a write of the unknown kind %T", errOwn, w)
		}
	}
	if err := k.queueStores(ctx, t); err != nil {
		return err
	}
	return t.flush(ctx, k.jobs)
}

// onlyAcks: the writes are acks with nothing else, each of another job.
func onlyAcks(writes []backends.Write) bool {
	seen := map[int64]struct{}{}
	for _, w := range writes {
		a, ok := w.(backends.Ack)
		if !ok || len(a.Enqueue) > 0 || a.Result != nil {
			return false
		}
		for _, l := range a.Leases {
			id, ok := batch.Number(l.Job)
			if _, twice := seen[id]; !ok || twice {
				return false
			}
			seen[id] = struct{}{}
		}
	}
	return len(seen) > 0
}

// errNotLean: not all jobs could be acked by the lean statement.
var errNotLean = fmt.Errorf("%w: some acks need more than the lean statement", errOwn)

// ackLean queues the statement that ends claims of jobs that are not kept, have no
// key and never failed: nearly all of them. It must delete as many rows as there
// are leases; else nothing happens, and each row is looked at.
func (k *commitment) ackLean(t *tx) {
	var all batch.Leases
	for i, w := range k.batch.Writes {
		for _, l := range batch.LeasesOf(w) {
			all.Add(i, l, 0)
		}
	}
	all.Sort()
	hosts := map[int64]struct{}{}
	for _, h := range all.Host {
		hosts[h] = struct{}{}
	}
	t.wrote = true
	ids := list(all.ID)
	t.add(deleteByID + " WHERE id IN (" + ids + ") AND token_number = " + among(all.ID, all.Number) + " AND token_host = ")
	if len(hosts) == 1 {
		t.text("?", all.Host[0])
	} else {
		t.text(among(all.ID, all.Host))
	}
	t.text(" AND keep_ms IS NULL AND `key` IS NULL AND last_error IS NULL")
	k.end.toAck, k.end.acked = int64(len(all.ID)), int64(len(all.ID))
	if len(k.batch.Claims) == 0 {
		t.expect = k.end.toAck // checked by the commit itself
		return
	}
	t.each(func(r *result) error {
		k.end.acked = r.int(0)
		return nil
	}, "SELECT ROW_COUNT()")
}

// among is the expression for what belongs to a row, by its id.
func among(ids, values []int64) string {
	if len(ids) == 1 {
		return list(values)
	}
	return "ELT(INTERVAL(id, " + list(ids) + "), " + list(values) + ")"
}

// each calls f with the row of each valid lease and returns the other leases. With
// an owner, a claim that belongs to another host is none.
func (k *commitment) each(leases []backends.Lease, owner backends.Identity, f func(j *job)) (lost []backends.Lease) {
	for _, l := range leases {
		var j *job
		if id, ok := batch.Number(l.Job); ok {
			j = k.jobs[id]
		}
		if j == nil || j.state != backends.StateClaimed || j.host != int64(l.Token.Host) || j.number != int64(l.Token.Number) ||
			owner != 0 && j.owner != int64(owner) {
			lost = append(lost, l)
			continue
		}
		f(j)
	}
	return lost
}

func (k *commitment) meet(r *backends.WriteResult, j *job, now instant, f backends.Disposition, cause backends.Cause) {
	j.meet(now, f)
	r.Failed.Add(j.queue, cause, j.state == backends.StateDead)
	if j.state == backends.StateReady {
		batch.Free(r, j.queue)
	}
}

// deliver records that a job claimed ahead was handed out; twice is once.
func (j *job) deliver(worker string) {
	j.record()
	if !j.hasWorker && worker != "" {
		j.worker, j.hasWorker = &worker, true
	}
}

// extend renews or binds a claim, whose worker then has it for certain. One that
// is only looked at is not written to.
func (j *job) extend(e backends.Extend, now instant) {
	if j.ahead || j.unrecorded > 0 {
		j.record()
	}
	lease := batch.MS(e.Lease)
	if lease <= 0 {
		lease = j.lease
	}
	switch {
	case e.Bind != 0:
		j.lease, j.due, j.owner = 0, j.deadline, int64(e.Bind)
		j.worker, j.hasWorker, j.change = &e.Worker, e.Worker != "", held
	case lease > 0:
		j.lease, j.due, j.change = lease, earlier(now.after(lease), j.deadline), held
	}
}

// kept remembers whether acks met jobs that the lean statement does not end, as
// they are likely to again: then it is not tried.
type kept struct{ n atomic.Int32 }

// keptFor is how many commits the memory lasts.
const keptFor = 1000

func (k *kept) note()      { k.n.Store(keptFor) }
func (k *kept) seen() bool { return k.n.Load() > 0 && k.n.Add(-1) >= 0 }
