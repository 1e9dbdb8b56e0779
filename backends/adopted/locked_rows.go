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

// claimApart commits a batch in which another program's lock was in the way of a claim, or of a
// write beside it. It commits the writes by themselves, and then claims from each adopted queue by
// itself. A queue whose rows are locked is blocked: it must not delay the others.
func (s *Store) claimApart(ctx context.Context, b backends.Batch, blocked map[string]bool) (backends.Results, error) {
	res := newResults(b)
	writes, others := subset{Batch: b.Empty()}, subset{Batch: b.Empty()}
	for n, w := range b.Writes {
		writes.addWrite(n, w)
	}
	others.WaitForLocks = false // it has no writes
	var adopted []int
	claimed := map[string]bool{}
	for n, c := range b.Claims {
		if kind, mixed := s.kindOf(c); mixed || kind != adoptedQueue {
			others.addClaim(n, c)
			continue
		}
		adopted = append(adopted, n)
		for _, p := range c.Queues {
			claimed[p.Queue] = true
		}
	}
	if err := writes.commit(ctx, s, blocked, &res); err != nil {
		return backends.Results{}, err
	}
	if writes.empty() && len(claimed) == 1 {
		maps.Copy(blocked, claimed) // the lock was there
	}
	for _, n := range adopted {
		var err error
		res.Claims[n], err = s.claimInParts(ctx, b.Host, b.Claims[n], true, blocked)
		setClaimError(&res.Claims[n], err)
	}
	if err := others.commit(ctx, s, blocked, &res); err != nil {
		for _, n := range others.claims {
			setClaimError(&res.Claims[n], err)
		}
	}
	return res, nil
}

// without is the batch whose claims leave out the blocked queues.
func without(b backends.Batch, blocked map[string]bool) backends.Batch {
	if len(blocked) == 0 {
		return b
	}
	b.Claims = slices.Clone(b.Claims)
	for n := range b.Claims {
		b.Claims[n].Queues = slices.DeleteFunc(slices.Clone(b.Claims[n].Queues), func(p backends.Policy) bool { return blocked[p.Queue] })
	}
	return b
}

// errRowsLocked: other programs have locked rows of the writes in commitment.locked. Nothing was
// written.
var errRowsLocked = backends.Refused(errors.New("another program has rows locked"))

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
	k.locked = map[int]bool{}
	k.eachRow(claims, func(n int, q *statement.Queue, l *lease.Lease) {
		if locked[q][l.Item] {
			k.locked[n] = true
		}
	})
	if len(k.locked) > 0 {
		return errRowsLocked
	}
	return nil
}

// eachRow calls f with each valid lease of the writes that change its row, and with the number of
// its write.
func (k *commitment) eachRow(claims leases, f func(n int, q *statement.Queue, l *lease.Lease)) {
	for _, p := range k.settles {
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

func (m itemSets) add(q *statement.Queue, item string) {
	if m[q] == nil {
		m[q] = map[string]bool{}
	}
	m[q][item] = true
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

// adoptedWrites are the writes that are about adopted tables.
func (k *commitment) adoptedWrites() map[int]bool {
	all := map[int]bool{}
	for _, p := range k.settles {
		all[p.n] = true
	}
	for _, ins := range k.inserts {
		all[ins.n] = true
	}
	return all
}

// commitWithout commits the batch without the writes whose rows are locked, or can be. The caller tries
// these alone.
func (s *Store) commitWithout(ctx context.Context, b backends.Batch, locked map[int]bool, blocked map[string]bool) (backends.Results, error) {
	res := newResults(b)
	rest := subset{Batch: b.Empty()}
	for n, w := range b.Writes {
		if locked[n] {
			res.Writes[n].Err = &backends.LockedError{Err: errors.New("the caller tries it alone")}
		} else {
			rest.addWrite(n, w)
		}
	}
	for n, c := range b.Claims {
		rest.addClaim(n, c)
	}
	if err := rest.commit(ctx, s, blocked, &res); err != nil {
		return backends.Results{}, err
	}
	return res, nil
}
