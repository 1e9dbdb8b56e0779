package adopted

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// commitment is a batch in which there is something for adopted tables.
type commitment struct {
	s       *Store
	batch   backends.Batch // as it was given
	managed backends.Batch // the engine's part of it
	of      []int          // whose write each of the engine's is
	claimOf []int
	parts   []part // of the writes that are about adopted jobs
	claims  []*claiming
	later   []int // claims of several kinds of queues, or of held jobs
	stores  []storing
	at      map[int][]int // where the engine's jobs stand in a write's list

	held   *held        // not nil: the batch is one write about its job, in its transaction
	single bool         // see settling
	locked map[int]bool // the writes whose rows other programs have locked; see lockRows

	res    backends.Results
	follow map[int]int // what is stored with an ack: by the ack's number, the write's number in the engine's batch
}

// part is a write, or as much of it as is about adopted jobs.
type part struct {
	n int
	backends.Write
}

// Commit implements backends.Backend. What is about held jobs is done when all else
// is, each in its own transaction.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	rest, held := s.holds.pick(b)
	if len(held) == 0 {
		return s.commit(ctx, b, map[string]bool{})
	}
	res := backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	if len(rest.batch.Writes)+len(rest.batch.Claims) > 0 {
		got, err := s.commit(ctx, rest.batch, map[string]bool{})
		if err != nil {
			return backends.Results{}, err
		}
		for i, n := range rest.of {
			res.Writes[n] = got.Writes[i]
		}
		res.Claims = got.Claims
	}
	held = slices.DeleteFunc(held, func(h heldWrite) bool { return locked(res.Writes[h.n].Err) }) // it is tried again as a whole
	s.settleHeld(ctx, held, res.Writes)
	return res, nil
}

// commit carries out what is not about held jobs, but for claims of them. It asks no
// queue that is blocked, and notes those that are found to be; see apart.
func (s *Store) commit(ctx context.Context, b backends.Batch, blocked map[string]bool) (backends.Results, error) {
	k := &commitment{s: s, batch: without(b, blocked)}
	if err := k.split(); err != nil {
		return backends.Results{}, err
	}
	if len(k.parts)+len(k.claims)+len(k.later)+len(k.stores) == 0 {
		return s.Adopter.Commit(ctx, b)
	}
	err := k.together(ctx)
	switch {
	case errors.Is(err, errRowsLocked):
		return s.setAside(ctx, k.batch, k.locked, blocked)
	case locked(err) && len(k.claims) > 0:
		return s.apart(ctx, k.batch, blocked)
	case locked(err) && !b.WaitForLocks:
		return s.setAside(ctx, k.batch, k.adopts(), blocked)
	}
	if err != nil {
		return backends.Results{}, err
	}
	for i, n := range k.later {
		res, err := s.claimInTurn(ctx, b.Host, k.batch.Claims[n], blocked)
		switch {
		case errors.Is(err, backends.ErrEvicted) && i == 0 && len(b.Writes) == 0 && len(b.Claims) == len(k.later):
			return backends.Results{}, err
		case errors.Is(err, backends.ErrEvicted):
			res.More = true // what came before is done and must be told: it is asked again
		default:
			res.Err = err
		}
		k.res.Claims[n] = res
	}
	return k.res, nil
}

// together commits all but the claims of both kinds of queues.
func (k *commitment) together(ctx context.Context) error {
	also := backends.TxHooks{Claims: len(k.claims) > 0, Writes: len(k.parts)+len(k.stores) > 0}
	also.Before = func(ctx context.Context, sql backends.SQL, b *backends.Batch) error {
		k.res = backends.Results{Writes: make([]backends.WriteResult, len(k.batch.Writes)), Claims: make([]backends.ClaimResult, len(k.batch.Claims))}
		return k.settle(ctx, sql, b)
	}
	also.Freed = func() (queues []string) {
		for _, r := range k.res.Writes {
			queues = append(queues, r.MadeReady...)
		}
		return queues
	}
	if len(k.claims)+len(k.stores) > 0 {
		also.After = func(ctx context.Context, sql backends.SQL, r *backends.Results) error {
			if err := k.store(ctx, sql, r); err != nil {
				return err
			}
			for _, c := range k.claims {
				if err := c.run(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if len(k.parts)+len(k.claims)+len(k.stores)+len(k.managed.Writes)+len(k.managed.Claims) == 0 {
		k.res.Claims = make([]backends.ClaimResult, len(k.batch.Claims))
		return nil
	}
	commit := k.s.Adopter.CommitWith
	if k.held != nil {
		commit = k.held.conn.CommitWith
	}
	got, err := commit(ctx, k.managed, also)
	if errors.Is(err, errNotAll) {
		k.single = true
		got, err = commit(ctx, k.managed, also)
	}
	if err != nil {
		return err
	}
	k.collect(got)
	return nil
}

// collect puts the parts' answers together.
func (k *commitment) collect(got backends.Results) {
	for i, n := range k.of {
		r := &k.res.Writes[n]
		k.stored(n, got.Writes[i].Stored)
		r.Lost = append(r.Lost, got.Writes[i].Lost...)
		r.Failed.AddAll(got.Writes[i].Failed)
		for _, q := range got.Writes[i].MadeReady {
			batch.Free(r, q)
		}
	}
	for n, at := range k.follow {
		r := &k.res.Writes[n]
		k.stored(n, got.Writes[at].Stored)
		for _, q := range got.Writes[at].MadeReady {
			batch.Free(r, q)
		}
	}
	for i, n := range k.claimOf {
		k.res.Claims[n] = got.Claims[i]
	}
	next := 0
	for n, c := range k.batch.Claims {
		if next < len(k.claims) && !slices.ContainsFunc(c.Queues, func(p backends.Policy) bool { return k.s.kind(p.Queue) != ofAdopted }) {
			k.res.Claims[n] = k.claims[next].res
			next++
		}
	}
}

// stored puts what the engine stored among what went into adopted tables.
func (k *commitment) stored(n int, got []backends.Stored) {
	at, mixed := k.at[n]
	r := &k.res.Writes[n]
	if !mixed {
		r.Stored = got
		return
	}
	for i, s := range got {
		if r.Stored == nil {
			r.Stored = make([]backends.Stored, len(batch.JobsOf(k.batch.Writes[n])))
		}
		r.Stored[at[i]] = s
	}
}

// settle carries out the writes about adopted jobs.
func (k *commitment) settle(ctx context.Context, sql backends.SQL, b *backends.Batch) error {
	k.follow = map[int]int{}
	if len(k.parts) == 0 {
		return nil
	}
	var ids []int64
	for _, p := range k.parts {
		for _, l := range batch.LeasesOf(p.Write) {
			id, _ := handled(l.Job)
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	x := &settling{s: k.s, single: k.single || k.held != nil}
	if k.held != nil {
		l := *k.held.lease // Before may be called again
		l.failures = slices.Clone(l.failures)
		x.leases = map[int64]*lease{l.id: &l}
	} else {
		if err := x.load(ctx, sql, slices.Compact(ids)); err != nil {
			return err
		}
		if err := k.lockRows(ctx, sql, x); err != nil {
			return err
		}
	}
	for _, p := range k.parts {
		if err := k.write(x, p); err != nil {
			return err
		}
	}
	if err := x.flush(ctx, sql); err != nil {
		return err
	}
	for _, e := range x.ends {
		r := &k.res.Writes[e.write]
		if e.statement.Matched == 0 {
			r.Lost = append(r.Lost, e.lease)
			continue
		}
		if e.fell {
			r.Failed.Add(e.l.queue, e.why, e.dead)
		}
		if e.frees {
			batch.Free(r, e.l.queue)
		}
	}
	for _, p := range k.parts {
		if w, ok := p.Write.(backends.Ack); ok && len(w.Enqueue) > 0 && len(k.res.Writes[p.n].Lost) == 0 {
			k.follow[p.n] = len(b.Writes)
			b.Writes = append(b.Writes, backends.Enqueue{Jobs: w.Enqueue})
		}
	}
	return nil
}

// ownerOf is whose claims alone a write is about; 0: anybody's.
func ownerOf(w backends.Write) backends.Identity {
	if r, ok := w.(backends.Release); ok {
		return r.Owner
	}
	return 0
}

// write collects what one write wants.
func (k *commitment) write(x *settling, p part) error {
	owner := ownerOf(p.Write)
	for _, proof := range batch.LeasesOf(p.Write) {
		l := x.valid(proof, owner)
		if l == nil {
			k.res.Writes[p.n].Lost = append(k.res.Writes[p.n].Lost, proof)
			continue
		}
		t := k.s.tableOf(l.queue)
		if k.held != nil {
			t = k.held.table // a reload may have mapped the queue elsewhere
		}
		if t == nil {
			return backends.Refused(fmt.Errorf("the job is of the queue %s, which lives in an adopted table that this sidecar's config does not have (any more)", l.queue))
		}
		var e *ending
		var err error
		switch w := p.Write.(type) {
		case backends.Ack:
			e, err = x.ack(t, l, w.Result)
		case backends.Nack:
			e, err = x.end(t, l, l.standing().AfterNack(w), backends.CauseNacked, nil)
		case backends.Release:
			e, err = x.end(t, l, l.standing().AfterRelease(w), w.Cause, nil)
		case backends.Extend:
			e = x.extend(t, l, w)
		}
		if err != nil {
			return err
		}
		e.write, e.lease = p.n, proof
	}
	return nil
}

// claimInTurn makes a claim of several kinds of queues, or of held jobs, one run of a kind after
// another: each is a commit by itself.
func (s *Store) claimInTurn(ctx context.Context, host backends.Identity, c backends.Claim, blocked map[string]bool) (all backends.ClaimResult, err error) {
	left := c.MaxBytes
	for from := 0; from < len(c.Queues) && len(all.Jobs) < len(c.Slots) && !all.More; {
		to := from + 1
		kind := s.kind(c.Queues[from].Queue)
		for to < len(c.Queues) && s.kind(c.Queues[to].Queue) == kind {
			to++
		}
		run := backends.Claim{Queues: c.Queues[from:to], Slots: c.Slots[len(all.Jobs):], MaxBytes: left, MaxPayload: c.MaxPayload, Strict: c.Strict || len(all.Jobs) > 0}
		var got backends.ClaimResult
		if kind == ofHeld {
			got, err = s.hold(ctx, run)
		} else if res, failed := s.commit(ctx, backends.Batch{Host: host, Claims: []backends.Claim{run}}, blocked); failed != nil {
			err = failed
		} else {
			got = res.Claims[0]
		}
		if err != nil {
			if len(all.Jobs) > 0 {
				return all, nil // they are claimed
			}
			return all, err
		}
		all.Failed.AddAll(got.Failed)
		all.Jobs, all.More = append(all.Jobs, got.Jobs...), got.More
		for i := range got.Jobs {
			left -= int64(len(got.Jobs[i].Payload))
		}
		if left <= 0 && c.MaxBytes > 0 {
			all.More = true
		}
		from = to
	}
	return all, nil
}
