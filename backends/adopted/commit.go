package adopted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// commitment is a batch with something for adopted tables, split by split.
type commitment struct {
	s     *Store
	batch backends.CommitContent // as it was given

	managed   subset // the engine's part of it
	settles   []part // the parts of writes about adopted jobs
	inserts   []inserts
	claims    []*claim
	separate  []int         // the numbers of claims that need transactions of their own
	positions map[int][]int // by write: the positions of the engine's jobs in its list

	tx    *txJob // not nil: the batch is one write about this job, in its transaction
	alone bool   // see changes
	apart bool   // no other commit waits for it; see limited

	closed map[int]error           // by claim: why none of its queues is tried
	each   map[int]bool            // the separate claims whose queues have a transaction each
	aside  map[int]error           // by write: why the transaction leaves it out, or has to
	queues map[int]map[string]bool // by write: its adopted queues, as far as the transaction got to know them
	doing  string                  // what the transaction does with adopted tables; empty: something else

	returned  []*statement.Change // what the settles changed
	ended     []int64             // the leases of the settles
	extended  []*lease.Lease      // those that go on
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

func newResults(b backends.CommitContent) backends.Results {
	return backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
}

// attempt is what the transactions of one Commit find out for each other.
type attempt struct {
	locked map[string]bool // queues in whose way other programs' locks were: claims leave them out
	probe  map[string]bool // obstructed queues that this Commit tries
	alone  bool            // no other commit waits for this one: CommitContent.WaitForLocks
}

func newAttempt(b backends.CommitContent) *attempt {
	return &attempt{locked: map[string]bool{}, probe: map[string]bool{}, alone: b.WaitForLocks}
}

// Commit implements backends.Backend. Writes about jobs that are claimed in open transactions come
// after all others, each in its transaction.
func (s *Store) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	if b.WaitForLocks {
		for _, w := range b.Writes {
			s.describeForJobs(ctx, w)
		}
	}
	rest, inTx := s.tx.pick(b)
	if len(inTx) == 0 {
		return s.commit(ctx, b, newAttempt(b))
	}
	res := newResults(b)
	if err := rest.commit(ctx, s, newAttempt(b), &res); err != nil {
		return backends.Results{}, err
	}
	inTx = slices.DeleteFunc(inTx, func(w txWrite) bool {
		if !b.WaitForLocks && s.Slow(w.job.queue.Queue) {
			res.Writes[w.n].Err = errTriedAlone
		}
		return isLocked(res.Writes[w.n].Err) // the whole write is tried again
	})
	s.settleInTx(ctx, inTx, b.WaitForLocks, b.Jitter, res.Writes)
	return res, nil
}

// commit commits a batch without writes about jobs in open transactions.
func (s *Store) commit(ctx context.Context, b backends.CommitContent, at *attempt) (backends.Results, error) {
	k := &commitment{s: s, batch: b, apart: at.alone}
	if err := k.split(at); err != nil {
		return backends.Results{}, err
	}
	if aside, why := k.needLocked(); why != nil {
		if b.WaitForLocks {
			return backends.Results{}, why
		}
		return s.commitWithout(ctx, b, aside, at)
	}
	if len(k.aside) > 0 { // new jobs for a table that is out of order
		return s.commitWithout(ctx, b, k.aside, at)
	}
	if len(k.settles)+len(k.claims)+len(k.separate)+len(k.inserts)+len(k.closed) == 0 {
		return s.Engine.Commit(ctx, b)
	}
	k.findQueues(nil)
	inTime := s.whenSlow(func() {})
	err := k.run(ctx)
	slow := !inTime()
	if err != nil {
		return s.failed(ctx, k, err, at)
	}
	if at.alone && slow { // still
		s.noteSlow(k.adoptedQueues()...)
	}
	k.succeeded()
	for n, err := range k.closed {
		k.res.Claims[n].Err = err
	}
	for i, n := range k.separate {
		res, err := s.claimInParts(ctx, b.Sidecar, k.batch.Claims[n], k.each[n], at)
		if errors.Is(err, backends.ErrEvicted) && i == 0 && len(b.Writes) == 0 && len(b.Claims) == len(k.separate) {
			return backends.Results{}, err
		}
		setClaimError(&res, err)
		k.res.Claims[n] = res
	}
	return k.res, nil
}

// needLocked returns the writes that need a locked table of the sidecar, with the errors that make the caller try each alone. why is
// the reason of one of them.
func (k *commitment) needLocked() (aside map[int]error, why error) {
	locked := k.s.LockedTables()
	if !locked.Some() {
		return nil, nil
	}
	aside = map[int]error{}
	add := func(n int, need backends.OwnTables) {
		if err := locked.Of(need); err != nil {
			aside[n], why = &backends.LockedError{Err: err}, err
			if backends.LacksRight(err) && !core.MustHappen(k.batch.Writes[n]) { // its client decides when to try again
				aside[n] = err
			}
		}
	}
	for i, n := range k.managed.writes {
		add(n, core.RightsFor(k.managed.Writes[i]))
	}
	for _, p := range k.settles {
		add(p.n, backends.OwnLeases)
	}
	return aside, why
}

// succeeded records that the tables of the commit are in order, and what settles can have made possible. It sets the
// errors of the writes that the transaction left out.
func (k *commitment) succeeded() {
	for n, why := range k.aside {
		k.res.Writes[n].Err = why
	}
	if !k.s.ObstacleSet().Some() {
		return
	}
	for _, p := range k.settles {
		for queue := range k.queues[p.n] {
			if _, aside := k.aside[p.n]; aside {
				continue
			}
			k.s.works(queue, backends.DoingSettle)
			if k.s.settled(queue) {
				addQueues(&k.res.Writes[p.n].MadeReady, queue)
			}
		}
	}
	for _, ins := range k.inserts {
		for _, j := range ins.jobs {
			k.s.works(j.Queue, backends.DoingEnqueue)
		}
	}
	for _, c := range k.claims {
		for _, queue := range c.reached {
			k.s.works(queue, backends.DoingClaim)
		}
	}
}

// failed goes on after the failure of a transaction. If one part of several is the cause, the others are carried out
// apart from it.
func (s *Store) failed(ctx context.Context, k *commitment, err error, at *attempt) (backends.Results, error) {
	b := k.batch
	var parted bool
	switch {
	case errors.Is(err, errSlow):
		return s.slowApart(ctx, k, at)
	case errors.Is(err, errRowsLocked), errors.Is(err, errAside):
		return s.commitWithout(ctx, b, k.aside, at)
	case ctx.Err() != nil || backends.Retryable(err) && !isLocked(err) || errors.Is(err, backends.ErrEvicted) || errors.Is(err, backends.ErrUnknownOutcome):
		return backends.Results{}, err
	case len(k.claims) > 0 && (len(b.Writes) > 0 || len(b.Claims) > 1 || len(b.Claims[0].Queues) > 1):
		if parted = k.doing != "" || isLocked(err); parted {
			return s.claimApart(ctx, b, at)
		}
	case len(k.claims) > 0:
		res, err := s.claimFailed(ctx, b.Sidecar, b.Claims[0], err, at)
		if err != nil && !isOfTable(err) && !backends.IsRefused(err) {
			return backends.Results{}, err
		}
		res.Err = err
		return backends.Results{Claims: []backends.ClaimResult{res}, Writes: []backends.WriteResult{}}, nil
	case isLocked(err):
		locked := s.noteLockedTables(ctx, k.queues, err)
		if aside := k.writesOf(locked); len(aside) > 0 && !b.WaitForLocks {
			return s.commitWithout(ctx, b, aside, at)
		}
	case k.doing != "":
		return s.writesApart(ctx, k, err, at)
	}
	return backends.Results{}, err
}

// claimFailed goes on after the claim of one queue, alone in its transaction, failed with why.
func (s *Store) claimFailed(ctx context.Context, sidecar backends.Identity, c backends.Claim, why error, at *attempt) (backends.ClaimResult, error) {
	queue := c.Queues[0].Queue
	at.locked[queue] = true
	if core.RefusesRow(why) {
		var res backends.ClaimResult
		if res, why = s.claimCarefully(ctx, sidecar, c, nil, true); why == nil {
			s.works(queue, backends.DoingClaim)
			return res, nil
		}
	}
	switch {
	case isOfSlot(why):
		delete(at.locked, queue) // other claims of the batch can succeed
		return backends.ClaimResult{}, why
	case isLocked(why):
		if !s.isTableLocked(ctx, queue) {
			return backends.ClaimResult{}, nil // a later claim tries again
		}
		return backends.ClaimResult{}, s.obstruct(ctx, queue, backends.DoingClaim, why)
	case isOfTable(why) || backends.IsRefused(why):
		return backends.ClaimResult{}, s.obstruct(ctx, queue, backends.DoingClaim, why)
	}
	return backends.ClaimResult{}, why
}

// writesApart commits the writes of each adopted queue apart from those of others, after one of them failed with why. A
// write that fails alone is an obstacle if its table is the cause.
func (s *Store) writesApart(ctx context.Context, k *commitment, why error, at *attempt) (backends.Results, error) {
	b, groups, names := k.batch, map[string][]int{}, k.queues
	for n := range b.Writes {
		of := strings.Join(slices.Sorted(maps.Keys(names[n])), ",")
		groups[of] = append(groups[of], n)
	}
	if len(groups) == 1 && len(b.Writes) > 1 { // the caller tries each alone
		res := newResults(b)
		for n := range b.Writes {
			res.Writes[n].Err = &backends.LockedError{Err: why}
		}
		return res, nil
	}
	if len(groups) == 1 {
		queues := slices.Sorted(maps.Keys(names[0]))
		if len(queues) != 1 || backends.IsRefused(why) || !isOfTable(why) {
			return backends.Results{}, why
		}
		res := newResults(b)
		res.Writes[0].Err = s.obstruct(ctx, queues[0], k.doing, why)
		return res, nil
	}
	res := newResults(b)
	for i, of := range slices.Sorted(maps.Keys(groups)) { // those without adopted queues first
		part := subset{CommitContent: b.Empty()}
		for _, n := range groups[of] {
			part.addWrite(n, b.Writes[n])
		}
		err := part.commit(ctx, s, at, &res)
		if err != nil && i == 0 {
			return backends.Results{}, err
		}
		for _, n := range groups[of] {
			if err != nil {
				res.Writes[n].Err = err
			}
		}
	}
	return res, nil
}

// run commits everything but the claims that need transactions of their own.
func (k *commitment) run(ctx context.Context) error {
	if len(k.settles)+len(k.claims)+len(k.inserts) == 0 && k.managed.empty() {
		k.res = newResults(k.batch)
		return nil
	}
	hooks := backends.TxHooks{Claims: len(k.claims) > 0, Writes: len(k.settles)+len(k.inserts) > 0}
	if !hooks.Claims && !hooks.Writes { // the rest of a batch whose claims are closed or come later
		k.res = newResults(k.batch)
		got, err := k.s.Engine.Commit(ctx, k.managed.CommitContent)
		if err == nil {
			k.merge(got)
		}
		return err
	}
	hooks.Before = func(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error {
		k.res, k.doing = newResults(k.batch), backends.DoingSettle
		err := k.s.limited(ctx, k.apart || k.tx != nil, func(ctx context.Context) error { return k.settle(ctx, sql, b) })
		if err == nil {
			k.doing = ""
		}
		return err
	}
	hooks.Freed = func() (queues []string) {
		for _, r := range k.res.Writes {
			queues = append(queues, r.MadeReady...)
		}
		return queues
	}
	if len(k.claims)+len(k.inserts) > 0 {
		hooks.After = func(ctx context.Context, sql backends.SQL, r *backends.Results) error {
			return k.s.limited(ctx, k.apart || k.tx != nil, func(ctx context.Context) error {
				k.doing = backends.DoingEnqueue
				if err := k.insert(ctx, sql, r); err != nil {
					return err
				}
				k.doing = backends.DoingClaim
				for _, c := range k.claims {
					if err := c.run(ctx, sql); err != nil {
						return err
					}
					if c.dry {
						return core.ErrDryRun
					}
				}
				k.doing = ""
				return nil
			})
		}
	}
	commit := k.s.Engine.CommitWith
	if k.tx != nil {
		commit = k.tx.conn.CommitWith
	}
	got, err := commit(ctx, k.managed.CommitContent, hooks)
	if errors.Is(err, statement.ErrNotAllRows) {
		k.alone = true
		got, err = commit(ctx, k.managed.CommitContent, hooks)
	}
	if err != nil {
		for _, c := range k.claims {
			c.rolledBack()
		}
		return err
	}
	for _, c := range k.claims {
		k.s.held.keep(c.given)
	}
	k.s.held.forget(k.ended...)
	k.s.held.keep(k.extended)
	k.s.returned(k.returned)
	k.s.readyIn(0, k.reordered...)
	k.merge(got)
	return nil
}

// merge adds the engine's results and those of claims.
func (k *commitment) merge(got backends.Results) {
	k.res.Groups, k.res.Batches = got.Groups, got.Batches
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
	r.Err = cmp.Or(r.Err, got.Err)
	r.Lost, r.Alone = append(r.Lost, got.Lost...), append(r.Alone, got.Alone...)
	r.Failed.AddAll(got.Failed)
	r.Pending = append(r.Pending, got.Pending...)
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
func (k *commitment) settle(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error {
	k.follows = map[int]int{}
	k.ended, k.extended = nil, nil
	if len(k.settles) == 0 {
		return nil
	}
	claims, err := k.lock(ctx, sql)
	if err != nil {
		return err
	}
	k.doing = backends.DoingSettle
	x := &changes{dialect: k.s.dialect, alone: k.alone || k.tx != nil}
	var all []settled
	for _, p := range k.settles {
		if _, aside := k.aside[p.n]; aside {
			continue
		}
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
		if id := change.Lease.ID; k.tx == nil {
			k.ended = append(k.ended, id)
			if _, extends := k.batch.Writes[change.write].(backends.Extend); extends && change.Statement.Matched > 0 {
				k.extended = append(k.extended, change.Lease)
			}
		}
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
	k.doing, k.aside = "", nil // the table of the leases is not adopted
	ids = slices.Compact(ids)
	claims, err := lockLeases(ctx, sql, k.s.dialect, ids)
	if err == nil && len(claims) < len(ids) {
		err = k.s.addEmptied(ctx, sql, claims, ids)
	}
	if err != nil {
		return nil, err
	}
	k.doing = backends.DoingSettle
	k.findQueues(claims)
	if err := k.setAside(); err != nil {
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
// queues of one kind, or with each one for each queue. If one fails the result has the jobs of the others,
// which are claimed. The error is of a claim that no transaction carried out.
func (s *Store) claimInParts(ctx context.Context, sidecar backends.Identity, c backends.Claim, each bool, at *attempt) (backends.ClaimResult, error) {
	all := core.ClaimParts{Claim: c, Left: c.MaxBytes}
	var to int
	var failed, ofSlot error
	done := false
	for from := 0; from < len(c.Queues) && !all.Full(); from = to {
		kind := s.kind(c.Queues[from].Queue)
		for to = from + 1; !each && to < len(c.Queues) && s.kind(c.Queues[to].Queue) == kind; {
			to++
		}
		if each && at.locked[c.Queues[from].Queue] && !s.isObstructed(c.Queues[from].Queue, backends.DoingClaim) {
			done = true
			continue
		}
		got, err := s.claimKind(ctx, sidecar, kind, all.Next(c.Queues[from:to]), at)
		unavailable, _ := errors.AsType[*backends.UnavailableError](err)
		switch {
		case err == nil:
			done = true
			all.Add(got)
		case isOfSlot(err):
			ofSlot = cmp.Or(ofSlot, err)
		case unavailable != nil && unavailable.Queue != "": // all are of one queue, or each is
			failed = cmp.Or(failed, err) // the other queues are in order
		case kind == managedQueue && isOfTable(err): // adopted queues don't need the table
			failed = cmp.Or(failed, err)
		case all.Unless(err) == nil:
			all.Res.More = each
			return all.Res, nil
		default:
			return all.Res, err
		}
	}
	switch {
	case len(all.Res.Jobs) > 0:
		return all.Res, nil
	case ofSlot != nil:
		return all.Res, ofSlot
	case done:
		return all.Res, nil
	}
	return all.Res, failed
}

// isOfSlot reports whether the database refuses what a claim stores for its worker.
func isOfSlot(err error) bool {
	var slot *backends.SlotError
	return errors.As(err, &slot)
}

func (s *Store) claimKind(ctx context.Context, sidecar backends.Identity, kind queueKind, c backends.Claim, at *attempt) (backends.ClaimResult, error) {
	switch {
	case kind == managedQueue || len(c.Queues) > 1 && kind == adoptedQueue:
		res, err := s.commit(ctx, backends.CommitContent{Sidecar: sidecar, Claims: []backends.Claim{c}}, at)
		if err != nil {
			return backends.ClaimResult{}, err
		}
		return res.Claims[0], res.Claims[0].Err
	case kind == txQueue:
		if at.alone {
			defer s.noteTime(c.Queues)()
		}
		return s.claimInTx(ctx, c, at)
	}
	queue := c.Queues[0].Queue
	if s.isObstructed(queue, backends.DoingClaim) && (at.locked[queue] || !at.probe[queue]) {
		return backends.ClaimResult{}, s.obstruction(queue, backends.DoingClaim)
	}
	defer s.noteTime(c.Queues)()
	var res backends.ClaimResult
	err := s.limited(ctx, at.alone, func(ctx context.Context) (err error) {
		res, err = s.claimCarefully(ctx, sidecar, c, s.retryRows(queue), false)
		return err
	})
	if errors.Is(err, errSlow) {
		s.noteSlow(queue)
		return backends.ClaimResult{}, s.slowClaim(queue)
	}
	switch {
	case err == nil:
		s.works(queue, backends.DoingClaim)
	case ctx.Err() == nil && (isOfTable(err) || backends.IsRefused(err)):
		return s.claimFailed(ctx, sidecar, c, err, at)
	}
	return res, err
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
