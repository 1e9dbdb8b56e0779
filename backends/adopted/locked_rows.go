package adopted

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// claimApart commits a batch in which another program's lock, or the table of one queue, was in the way of a claim, or of
// a write beside it. It commits the writes by themselves, and then claims from each adopted queue by itself. A queue whose
// rows are locked must not delay the others.
func (s *Store) claimApart(ctx context.Context, b backends.CommitContent, at *attempt) (backends.Results, error) {
	res := newResults(b)
	writes, others := subset{CommitContent: b.Empty()}, subset{CommitContent: b.Empty()}
	for n, w := range b.Writes {
		writes.addWrite(n, w)
	}
	others.WaitForLocks = false // it has no writes
	var adopted []int
	for n, c := range b.Claims {
		open := c
		open.Queues = slices.DeleteFunc(slices.Clone(c.Queues), func(p backends.Policy) bool { return s.lockedOut(p.Queue) != nil })
		if kind, mixed := s.kindOf(open); mixed || kind != adoptedQueue {
			others.addClaim(n, c)
		} else {
			adopted = append(adopted, n)
		}
	}
	if err := writes.commit(ctx, s, at, &res); err != nil {
		return backends.Results{}, err
	}
	for _, n := range adopted {
		var err error
		res.Claims[n], err = s.claimInParts(ctx, b.Sidecar, b.Claims[n], true, at)
		setClaimError(&res.Claims[n], err)
	}
	if err := others.commit(ctx, s, at, &res); err != nil {
		for _, n := range others.claims {
			setClaimError(&res.Claims[n], err)
		}
	}
	return res, nil
}

var (
	// errRowsLocked: other programs have locked rows of the writes in commitment.aside. Nothing was written.
	errRowsLocked = backends.Refused(errors.New("another program has rows locked"))
	// errAside: the writes in commitment.aside have to leave the batch. Nothing was written.
	errAside = backends.Refused(errors.New("the table of a queue is out of order"))

	errTriedAlone = &backends.LockedError{Err: errors.New("the caller tries it alone")}
)

// leaveOut sets a write aside, because the table of a queue is out of order.
func (k *commitment) leaveOut(n int, queue, doing string) {
	if k.aside == nil {
		k.aside = map[int]error{}
	}
	k.aside[n] = k.s.asideError(k.batch, queue, doing)
}

// setAside sets the writes aside whose tables are out of order. If one of them has other parts, the error is errAside.
func (k *commitment) setAside() error {
	mixed := false
	for _, p := range k.settles {
		for queue := range k.queues[p.n] {
			if k.s.mustNotTry(k.batch, queue, backends.DoingSettle) {
				k.leaveOut(p.n, queue, backends.DoingSettle)
				a, isAck := p.Write.(backends.Ack)
				mixed = mixed || isAck && len(a.Enqueue) > 0 || len(backends.LeasesOf(p.Write)) < len(backends.LeasesOf(k.batch.Writes[p.n]))
			}
		}
	}
	if mixed {
		return errAside
	}
	return nil
}

// findQueues finds out the adopted queues of the writes.
func (k *commitment) findQueues(claims leases) {
	k.queues = map[int]map[string]bool{}
	add := func(n int, queue string) {
		if k.queues[n] == nil {
			k.queues[n] = map[string]bool{}
		}
		k.queues[n][queue] = true
	}
	for _, p := range k.settles {
		for _, proof := range backends.LeasesOf(p.Write) {
			if l := claims.provedBy(proof, ownerOf(p.Write)); l != nil {
				add(p.n, l.Queue)
			}
		}
	}
	for _, ins := range k.inserts {
		for _, j := range ins.jobs {
			add(ins.n, j.Queue)
		}
	}
}

// writesOf are the writes about the queues, with the error that makes the caller try each alone. Without queues they are
// all writes about adopted tables.
func (k *commitment) writesOf(queues map[string]bool) map[int]error {
	all := map[int]error{}
	for _, p := range k.settles {
		all[p.n] = errTriedAlone
	}
	for _, ins := range k.inserts {
		all[ins.n] = errTriedAlone
	}
	if len(queues) == 0 {
		return all
	}
	maps.DeleteFunc(all, func(n int, _ error) bool {
		for queue := range k.queues[n] {
			if queues[queue] {
				return false
			}
		}
		return true
	})
	return all
}

// checkLocks locks the rows of the settles, and does not wait for those that another program has
// locked: it notes the writes that these are of.
func (k *commitment) checkLocks(ctx context.Context, sql backends.SQL, claims leases) error {
	if k.batch.WaitForLocks || !k.s.Info().Concurrent { // with one writer at a time no row is locked
		return nil
	}
	rows := itemSets{}
	k.eachRow(claims, func(_ int, q *statement.Queue, l *lease.Lease) { rows.add(q, l.Item) })
	locked, err := lockRows(ctx, sql, rows)
	if err != nil {
		return err
	}
	found := false
	k.eachRow(claims, func(n int, q *statement.Queue, l *lease.Lease) {
		if locked[q][l.Item] {
			if found = true; k.aside == nil {
				k.aside = map[int]error{}
			}
			k.aside[n] = errTriedAlone
		}
	})
	if found {
		return errRowsLocked
	}
	return nil
}

// eachRow calls f with each valid lease of the writes that change its row, and with the number of
// its write.
func (k *commitment) eachRow(claims leases, f func(n int, q *statement.Queue, l *lease.Lease)) {
	for _, p := range k.settles {
		if _, aside := k.aside[p.n]; aside {
			continue
		}
		if e, ok := p.Write.(backends.Extend); ok && e.Bind == 0 {
			continue // a worker's own transaction can have the row locked
		}
		for _, proof := range backends.LeasesOf(p.Write) {
			l := claims.provedBy(proof, ownerOf(p.Write))
			if l == nil {
				continue
			}
			if q := k.s.settledIn(l.Queue); q != nil {
				f(p.n, q, l)
			}
		}
	}
}

// itemSets are sets of ids of jobs, by their queues.
type itemSets map[*statement.Queue]map[string]bool

func (i itemSets) add(q *statement.Queue, item string) {
	if i[q] == nil {
		i[q] = map[string]bool{}
	}
	i[q][item] = true
}

// lockRows locks the rows of the jobs, but waits for no lock. It returns those that it could not
// lock and that exist: others have locked them.
func lockRows(ctx context.Context, sql backends.SQL, rows itemSets) (locked itemSets, err error) {
	got, err := findItems(ctx, sql, rows, func(q *statement.Queue, where string, f func(string), args []any) *backends.Statement {
		return q.LockRows(where, true, f, args...)
	})
	if err != nil {
		return nil, err
	}
	missing := itemSets{}
	for q, items := range rows {
		for item := range items {
			if !got[q][item] {
				missing.add(q, item)
			}
		}
	}
	return findItems(ctx, sql, missing, func(q *statement.Queue, where string, f func(string), args []any) *backends.Statement {
		return q.UnlockedItems(where, f, args...)
	})
}

// findItems runs a query for the rows of the jobs, and returns those that it found.
func findItems(ctx context.Context, sql backends.SQL, rows itemSets, find func(q *statement.Queue, where string, f func(string), args []any) *backends.Statement) (itemSets, error) {
	found := itemSets{}
	var all []*backends.Statement
	for q, items := range rows {
		all = append(all, q.ForItems(slices.Sorted(maps.Keys(items)), func(b *condition.Builder, where string) *backends.Statement {
			return find(q, where, func(item string) { found.add(q, item) }, b.Args)
		})...)
	}
	return found, do(ctx, sql, all)
}

// commitWithout commits the batch without the writes aside, which get their errors.
func (s *Store) commitWithout(ctx context.Context, b backends.CommitContent, aside map[int]error, at *attempt) (backends.Results, error) {
	res := newResults(b)
	rest := subset{CommitContent: b.Empty()}
	for n, w := range b.Writes {
		if err := aside[n]; err != nil {
			res.Writes[n].Err = err
		} else {
			rest.addWrite(n, w)
		}
	}
	for n, c := range b.Claims {
		rest.addClaim(n, c)
	}
	if err := rest.commit(ctx, s, at, &res); err != nil {
		return backends.Results{}, err
	}
	return res, nil
}
