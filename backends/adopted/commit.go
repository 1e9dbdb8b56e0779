package adopted

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// commitment is a batch with something for adopted tables, split by split.
type commitment struct {
	s     *Store
	batch backends.Batch // as it was given

	managed   subset // the engine's part of it
	settles   []part // the parts of writes about adopted jobs
	inserts   []inserts
	claims    []*claim
	separate  []int         // the numbers of claims that need transactions of their own
	positions map[int][]int // by write: the positions of the engine's jobs in its list

	tx     *txJob       // not nil: the batch is one write about this job, in its transaction
	alone  bool         // see changes
	locked map[int]bool // the writes whose rows other programs have locked; see checkLocks

	returned  []*statement.Change // what the settles changed
	reordered []string            // queues whose new jobs can come before older ones

	res     backends.Results
	follows map[int]int // by ack: the number in the engine's batch of the write that stores its jobs
}

// part is a write, or the part of it that is about adopted jobs.
type part struct {
	n int // the write's number in the batch
	backends.Write
}

// settled is the change of a settle.
type settled struct {
	*statement.Change
	write int // its number in the batch
	proof backends.Lease
}

func newResults(b backends.Batch) backends.Results {
	return backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
}

// Commit implements backends.Backend. Writes about jobs that are claimed in open transactions come
// after all others, each in its transaction.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	rest, inTx := s.tx.pick(b)
	if len(inTx) == 0 {
		return s.commit(ctx, b, map[string]bool{})
	}
	res := newResults(b)
	if err := rest.commit(ctx, s, map[string]bool{}, &res); err != nil {
		return backends.Results{}, err
	}
	inTx = slices.DeleteFunc(inTx, func(w txWrite) bool { return isLocked(res.Writes[w.n].Err) }) // the whole write is tried again
	s.settleInTx(ctx, inTx, b.Jitter, res.Writes)
	return res, nil
}

// commit commits a batch without writes about jobs in open transactions. It claims from no blocked
// queue, and adds those that it finds to be blocked by other programs' locks; see claimApart.
func (s *Store) commit(ctx context.Context, b backends.Batch, blocked map[string]bool) (backends.Results, error) {
	k := &commitment{s: s, batch: without(b, blocked)}
	if err := k.split(); err != nil {
		return backends.Results{}, err
	}
	if len(k.settles)+len(k.claims)+len(k.separate)+len(k.inserts) == 0 {
		return s.Engine.Commit(ctx, b)
	}
	err := k.run(ctx)
	switch {
	case errors.Is(err, errRowsLocked):
		return s.commitWithout(ctx, k.batch, k.locked, blocked)
	case isLocked(err) && len(k.claims) > 0:
		return s.claimApart(ctx, k.batch, blocked)
	case isLocked(err) && !b.WaitForLocks:
		return s.commitWithout(ctx, k.batch, k.adoptedWrites(), blocked)
	}
	if err != nil {
		return backends.Results{}, err
	}
	for i, n := range k.separate {
		res, err := s.claimInParts(ctx, b.Host, k.batch.Claims[n], false, blocked)
		if errors.Is(err, backends.ErrEvicted) && i == 0 && len(b.Writes) == 0 && len(b.Claims) == len(k.separate) {
			return backends.Results{}, err
		}
		setClaimError(&res, err)
		k.res.Claims[n] = res
	}
	return k.res, nil
}

// run commits everything but the claims that need transactions of their own.
func (k *commitment) run(ctx context.Context) error {
	if len(k.settles)+len(k.claims)+len(k.inserts) == 0 && k.managed.empty() {
		k.res.Claims = make([]backends.ClaimResult, len(k.batch.Claims))
		return nil
	}
	hooks := backends.TxHooks{Claims: len(k.claims) > 0, Writes: len(k.settles)+len(k.inserts) > 0}
	hooks.Before = func(ctx context.Context, sql backends.SQL, b *backends.Batch) error {
		k.res = newResults(k.batch)
		return k.settle(ctx, sql, b)
	}
	hooks.Freed = func() (queues []string) {
		for _, r := range k.res.Writes {
			queues = append(queues, r.MadeReady...)
		}
		return queues
	}
	if len(k.claims)+len(k.inserts) > 0 {
		hooks.After = func(ctx context.Context, sql backends.SQL, r *backends.Results) error {
			if err := k.insert(ctx, sql, r); err != nil {
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
	commit := k.s.Engine.CommitWith
	if k.tx != nil {
		commit = k.tx.conn.CommitWith
	}
	got, err := commit(ctx, k.managed.Batch, hooks)
	if errors.Is(err, statement.ErrNotAllRows) {
		k.alone = true
		got, err = commit(ctx, k.managed.Batch, hooks)
	}
	if err != nil {
		for _, c := range k.claims {
			c.rolledBack()
		}
		return err
	}
	k.s.returned(k.returned)
	k.s.readyIn(0, k.reordered...)
	k.merge(got)
	return nil
}

// merge adds the engine's results and those of claims.
func (k *commitment) merge(got backends.Results) {
	for i, n := range k.managed.writes {
		k.mergeWrite(n, got.Writes[i])
	}
	for n, at := range k.follows {
		k.mergeWrite(n, backends.WriteResult{Stored: got.Writes[at].Stored, MadeReady: got.Writes[at].MadeReady})
	}
	for i, n := range k.managed.claims {
		k.res.Claims[n] = got.Claims[i]
	}
	for _, c := range k.claims {
		k.res.Claims[c.n] = c.res
	}
}

// mergeWrite adds the engine's result to that of write n. The engine's jobs can be some of those
// that the write stores.
func (k *commitment) mergeWrite(n int, got backends.WriteResult) {
	r := &k.res.Writes[n]
	r.Lost, r.Alone = append(r.Lost, got.Lost...), append(r.Alone, got.Alone...)
	r.Failed.AddAll(got.Failed)
	addQueues(&r.MadeReady, got.MadeReady...)
	positions, mixed := k.positions[n]
	if !mixed {
		r.Stored = got.Stored
		return
	}
	for i, stored := range got.Stored {
		k.stored(n)[positions[i]] = stored
	}
}

// stored are the results for the jobs that write n stores.
func (k *commitment) stored(n int) []backends.Stored {
	r := &k.res.Writes[n]
	if r.Stored == nil {
		r.Stored = make([]backends.Stored, len(core.JobsOf(k.batch.Writes[n])))
	}
	return r.Stored
}

// settle runs the writes about adopted jobs. Jobs for managed queues that an ack stores are added
// to the engine's batch if the lease is not lost.
func (k *commitment) settle(ctx context.Context, sql backends.SQL, b *backends.Batch) error {
	k.follows = map[int]int{}
	if len(k.settles) == 0 {
		return nil
	}
	claims, err := k.lock(ctx, sql)
	if err != nil {
		return err
	}
	x := &changes{dialect: k.s.dialect, alone: k.alone || k.tx != nil}
	var all []settled
	for _, p := range k.settles {
		made, err := k.write(x, p, claims)
		if err != nil {
			return err
		}
		all = append(all, made...)
	}
	if err := x.flush(ctx, sql); err != nil {
		return err
	}
	k.returned = x.rows
	k.s.returned(x.rows) // for the claims of this transaction
	for _, change := range all {
		r := &k.res.Writes[change.write]
		if change.Statement.Matched == 0 {
			r.Lost = append(r.Lost, change.proof)
			continue
		}
		if change.Failed {
			r.Failed.Add(change.Lease.Queue, change.Cause, change.Dead)
		}
		if change.MadeReady {
			addQueues(&r.MadeReady, change.Lease.Queue)
		}
	}
	for _, p := range k.settles {
		if w, ok := p.Write.(backends.Ack); ok && len(w.Enqueue) > 0 && len(k.res.Writes[p.n].Lost) == 0 {
			k.follows[p.n] = len(b.Writes)
			b.Writes = append(b.Writes, backends.Enqueue{Jobs: w.Enqueue})
		}
	}
	return nil
}

// lock locks the leases of the settles, and then their rows; see checkLocks. The lease of a job in
// an open transaction is in memory.
func (k *commitment) lock(ctx context.Context, sql backends.SQL) (leases, error) {
	if k.tx != nil {
		l := *k.tx.lease // a copy: the transaction can run again
		l.Failures = slices.Clone(l.Failures)
		l.Now += core.MS(time.Since(k.tx.began)) // it was read with the claim
		return leases{l.ID: &l}, nil
	}
	var ids []int64
	for _, p := range k.settles {
		for _, l := range backends.LeasesOf(p.Write) {
			id, _ := lease.ParseHandle(l.Job)
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	claims, err := lockLeases(ctx, sql, k.s.dialect, slices.Compact(ids))
	if err != nil {
		return nil, err
	}
	return claims, k.checkLocks(ctx, sql, claims)
}

// ownerOf is the only sidecar whose claims a write is about; 0: it is about all.
func ownerOf(w backends.Write) backends.Identity {
	if r, ok := w.(backends.Release); ok {
		return r.Owner
	}
	return 0
}

// write adds the changes of one write.
func (k *commitment) write(x *changes, p part, claims leases) (all []settled, err error) {
	for _, proof := range backends.LeasesOf(p.Write) {
		l := claims.provedBy(proof, ownerOf(p.Write))
		if l == nil {
			k.res.Writes[p.n].Lost = append(k.res.Writes[p.n].Lost, proof)
			continue
		}
		q := k.s.settledIn(l.Queue)
		if k.tx != nil {
			q = k.tx.queue // a reload can have moved the queue to another table
		}
		if q == nil {
			return nil, backends.Refused(fmt.Errorf("can't settle a job of the queue %s: its adopted table isn't in this sidecar's config", l.Queue))
		}
		var change *statement.Change
		switch w := p.Write.(type) {
		case backends.Ack:
			change, err = x.ack(q, l, w.Result)
		case backends.Nack:
			change, err = x.add(q.End(l, l.AttemptState().AfterNack(w, k.batch.Jitter.Of(l.Queue)), backends.CauseNacked))
		case backends.Release:
			change, err = x.add(q.End(l, l.AttemptState().AfterRelease(w, k.batch.Jitter.Of(l.Queue)), w.Cause))
		case backends.Extend:
			if change, err = x.add(q.Extend(l, w), nil); w.Bind != 0 && l.AttemptState().Alone() {
				k.res.Writes[p.n].Alone = append(k.res.Writes[p.n].Alone, proof)
			}
		}
		if err != nil {
			return nil, err
		}
		all = append(all, settled{change, p.n, proof})
	}
	return all, nil
}

// claimInParts makes a claim in several transactions, in the order of its queues: one for each run of
// queues of one kind, or with each one for each queue. If one fails the result has the jobs of those
// before it, which are claimed.
func (s *Store) claimInParts(ctx context.Context, host backends.Identity, c backends.Claim, each bool, blocked map[string]bool) (backends.ClaimResult, error) {
	all := claimParts{claim: c, left: c.MaxBytes}
	var to int
	for from := 0; from < len(c.Queues) && !all.full(); from = to {
		kind := s.kind(c.Queues[from].Queue)
		for to = from + 1; !each && to < len(c.Queues) && s.kind(c.Queues[to].Queue) == kind; {
			to++
		}
		if each && blocked[c.Queues[from].Queue] {
			continue
		}
		got, err := s.claimKind(ctx, host, kind, all.next(c.Queues[from:to]), blocked)
		switch {
		case err == nil:
			all.add(got)
		case len(all.res.Jobs) > 0:
			all.res.More = each
			return all.res, nil
		default:
			return all.res, err
		}
	}
	return all.res, nil
}

func (s *Store) claimKind(ctx context.Context, host backends.Identity, kind queueKind, c backends.Claim, blocked map[string]bool) (backends.ClaimResult, error) {
	if kind == txQueue {
		return s.claimInTx(ctx, c)
	}
	res, err := s.commit(ctx, backends.Batch{Host: host, Claims: []backends.Claim{c}}, blocked)
	if err != nil {
		return backends.ClaimResult{}, err
	}
	return res.Claims[0], nil
}

// setClaimError sets the error of a claim, besides others that are committed. These have to reach the
// caller, which claims again if the sidecar was evicted.
func setClaimError(res *backends.ClaimResult, err error) {
	if errors.Is(err, backends.ErrEvicted) {
		res.More = true
	} else {
		res.Err = err
	}
}

// claimParts is a claim that runs in several transactions.
type claimParts struct {
	claim backends.Claim
	res   backends.ClaimResult
	left  int64 // bytes that the result can still hold
}

func (p *claimParts) full() bool { return len(p.res.Jobs) == len(p.claim.Slots) || p.res.More }

// next is the rest of the claim, of these queues.
func (p *claimParts) next(queues []backends.Policy) backends.Claim {
	c := p.claim
	c.Queues, c.Slots, c.MaxBytes, c.Strict = queues, c.Slots[len(p.res.Jobs):], p.left, c.Strict || len(p.res.Jobs) > 0
	return c
}

func (p *claimParts) add(got backends.ClaimResult) {
	p.res.Failed.AddAll(got.Failed)
	p.res.Jobs, p.res.More = append(p.res.Jobs, got.Jobs...), got.More
	for i := range got.Jobs {
		p.left -= int64(len(got.Jobs[i].Payload))
	}
	if p.left <= 0 && p.claim.MaxBytes > 0 {
		p.res.More = true
	}
}
