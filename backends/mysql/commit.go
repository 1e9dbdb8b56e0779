package mysql

import (
	"context"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Commit implements backends.Backend.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	k := &commitment{s: s, batch: b}
	if err := s.write(ctx, k.run); err != nil {
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
	plain  bool // acks are tried by the plain statement
}

// run implements work. What is locked is locked in a fixed order: jobs by their
// ids, keys, and then what nobody waits for; queues' rows come last.
func (k *commitment) run(ctx context.Context, t *tx) error {
	k.res = backends.Results{Writes: make([]backends.WriteResult, len(k.batch.Writes)), Claims: nil}
	k.jobs, k.keys, k.stores, k.claims, k.end = map[int64]*job{}, map[batch.Key]*remembered{}, nil, nil, ending{}
	if !k.ask(t) {
		return k.carryOut(ctx, t)
	}
	k.startClaims()
	if !k.mayFree() { // then what they may get does not depend on the writes
		k.askClaims(t)
	}
	if err := t.send(ctx); err != nil {
		return err
	}
	if len(k.batch.Claims) > 0 && !k.end.alive {
		return backends.ErrHostLost
	}
	if err := k.carryOut(ctx, t); err != nil {
		return err
	}
	return k.goOnClaims(ctx, t)
}

// ask queues what must be known, and locked, before anything is changed. false:
// nothing, the writes are plain enqueues.
func (k *commitment) ask(t *tx) bool {
	var ids []int64
	instants := len(k.batch.Claims) > 0
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
	if !instants && len(ids)+len(keyed) == 0 {
		return false
	}
	k.askNow(t)
	t.lock(k.jobs, ids, "")
	k.lockKeys(t, keyed)
	return true
}

// askNow asks for the transaction's instant, and with claims for the life of their host.
func (k *commitment) askNow(t *tx) {
	t.each(func(r *result) error {
		t.now = r.instant(0)
		k.end.alive = r.int(1) != 0
		return nil
	}, "SELECT "+t.s.sql.clock+", EXISTS (SELECT 1 FROM qsidecar_hosts WHERE host = ? AND NOT dead AND NOT has_left)", int64(k.batch.Host))
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
			r.Lost = k.each(w.Leases, 0, func(j *job) { j.done(w.Result) })
			if len(r.Lost) == 0 {
				k.store(i, w.Enqueue, t.now)
			}
		case backends.Nack:
			r.Lost = k.each(w.Leases, 0, func(j *job) { k.meet(r, j, t.now, j.standing().Nacked(w)) })
		case backends.Release:
			r.Lost = k.each(w.Leases, w.Owner, func(j *job) { k.meet(r, j, t.now, j.standing().Released(w)) })
		case backends.Extend:
			r.Lost = k.each(w.Leases, 0, func(j *job) { j.extend(w, t.now) })
		case backends.Deliver:
			for _, h := range w.Handed {
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

func (k *commitment) meet(r *backends.WriteResult, j *job, now instant, f backends.Fate) {
	j.meet(now, f)
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
