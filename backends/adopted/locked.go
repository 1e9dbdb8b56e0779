package adopted

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

func locked(err error) bool {
	var l *backends.LockedError
	return errors.As(err, &l)
}

// apart is a commit in which another program's lock was in the way of a claim, or of a
// write beside it: the writes are made by themselves, and then each adopted queue is
// asked by itself. One whose rows are locked is blocked: it has nothing to give just
// now, and must hold up no other.
func (s *Store) apart(ctx context.Context, b backends.Batch, blocked map[string]bool) (backends.Results, error) {
	res := backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	rest := backends.Batch{Host: b.Host}
	var others, mine []int
	asked := map[string]bool{}
	for n, c := range b.Claims {
		if !s.allOf(c, ofAdopted) {
			others, rest.Claims = append(others, n), append(rest.Claims, c)
			continue
		}
		mine = append(mine, n)
		for _, p := range c.Queues {
			asked[p.Queue] = true
		}
	}
	if len(b.Writes) > 0 {
		got, err := s.commit(ctx, backends.Batch{Host: b.Host, Writes: b.Writes, WaitForLocks: b.WaitForLocks}, blocked)
		if err != nil {
			return backends.Results{}, err
		}
		res.Writes = got.Writes
	} else if len(asked) == 1 {
		maps.Copy(blocked, asked) // that one it was
	}
	for _, n := range mine {
		res.Claims[n] = s.claimEach(ctx, b.Host, b.Claims[n], blocked)
	}
	if len(others) == 0 {
		return res, nil
	}
	got, err := s.commit(ctx, rest, blocked)
	for i, n := range others {
		switch {
		case err == nil:
			res.Claims[n] = got.Claims[i]
		case errors.Is(err, backends.ErrEvicted):
			res.Claims[n].More = true // what came before is done and must be told: it is asked again
		default:
			res.Claims[n].Err = err
		}
	}
	return res, nil
}

// without is the batch whose claims ask no queue that is blocked.
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

func (s *Store) allOf(c backends.Claim, kind int) bool {
	for _, p := range c.Queues {
		if s.kind(p.Queue) != kind {
			return false
		}
	}
	return len(c.Queues) > 0
}

// claimEach asks one adopted queue after another, each in a commit by itself.
func (s *Store) claimEach(ctx context.Context, host backends.Identity, c backends.Claim, blocked map[string]bool) (all backends.ClaimResult) {
	left := c.MaxBytes
	for _, p := range c.Queues {
		if blocked[p.Queue] {
			continue
		}
		if len(all.Jobs) == len(c.Slots) || all.More {
			break
		}
		one := backends.Claim{Queues: []backends.Policy{p}, Slots: c.Slots[len(all.Jobs):], MaxBytes: left, MaxPayload: c.MaxPayload, Strict: c.Strict || len(all.Jobs) > 0}
		res, err := s.commit(ctx, backends.Batch{Host: host, Claims: []backends.Claim{one}}, blocked)
		switch {
		case err == nil:
		case len(all.Jobs) > 0 || errors.Is(err, backends.ErrEvicted):
			all.More = true
			return all
		default:
			all.Err = err
			return all
		}
		got := res.Claims[0]
		all.Jobs, all.More = append(all.Jobs, got.Jobs...), got.More
		for i := range got.Jobs {
			left -= int64(len(got.Jobs[i].Payload))
		}
		if left <= 0 && c.MaxBytes > 0 {
			all.More = true
		}
	}
	return all
}

// errRowsLocked says that rows are locked which commitment.locked names the writes of.
// Nothing was written.
var errRowsLocked = backends.Refused(errors.New("another program has rows locked"))

// lockRows locks the rows of the writes without waiting for those that another program
// has locked, and notes the writes that these are of.
func (k *commitment) lockRows(ctx context.Context, sql backends.SQL, x *settling) error {
	if k.batch.WaitForLocks || !k.s.Info().Concurrent { // with one writer at a time no row is locked
		return nil
	}
	rows := map[*table][]string{}
	k.eachRow(x, func(_ int, t *table, l *lease) { rows[t] = append(rows[t], l.item) })
	got, err := find(ctx, sql, rows, func(t *table, columns, these string) string {
		return t.g.SelectLocked(columns, t.name, these, t.keyNames(), 0, true)
	})
	if err != nil {
		return err
	}
	missing := map[*table][]string{}
	for t, items := range rows {
		items = slices.DeleteFunc(items, func(item string) bool { return got[t][item] })
		if len(items) > 0 {
			missing[t] = items
		}
	}
	// Those that are gone are lost, and lock nothing.
	there, err := find(ctx, sql, missing, func(t *table, columns, these string) string {
		return t.g.SelectUnlocked(columns, t.name, these)
	})
	if err != nil {
		return err
	}
	k.locked = map[int]bool{}
	k.eachRow(x, func(n int, t *table, l *lease) {
		if there[t][l.item] {
			k.locked[n] = true
		}
	})
	if len(k.locked) > 0 {
		return errRowsLocked
	}
	return nil
}

// find runs a query for rows by their keys in each table, and returns the keys that it found.
func find(ctx context.Context, sql backends.SQL, rows map[*table][]string, query func(t *table, columns, these string) string) (map[*table]map[string]bool, error) {
	found := map[*table]map[string]bool{}
	var all []*backends.Statement
	for t, items := range rows {
		found[t] = map[string]bool{}
		items = slices.Compact(slices.Sorted(slices.Values(items)))
		all = append(all, t.amongst(items, func(w *writing, these string) *backends.Statement {
			return &backends.Statement{Text: query(t, outputs(t.keyTexts()...), these), Args: w.args,
				Row: func(cells [][]byte) error { found[t][t.item(cells)] = true; return nil }}
		})...)
	}
	if len(all) == 0 {
		return found, nil
	}
	return found, sql.Do(ctx, all...)
}

// eachRow calls f with each valid lease of the writes that change its row, and with its
// write's number and table.
func (k *commitment) eachRow(x *settling, f func(n int, t *table, l *lease)) {
	for _, p := range k.parts {
		if e, ok := p.Write.(backends.Extend); ok && e.Bind == 0 {
			continue // a worker's own transaction may have the row locked
		}
		for _, proof := range batch.LeasesOf(p.Write) {
			l := x.valid(proof, ownerOf(p.Write))
			if l == nil {
				continue
			}
			if t := k.s.tableOf(l.queue); t != nil {
				f(p.n, t, l)
			}
		}
	}
}

// adopts are the writes that are about adopted tables.
func (k *commitment) adopts() map[int]bool {
	all := map[int]bool{}
	for _, p := range k.parts {
		all[p.n] = true
	}
	for _, st := range k.stores {
		all[st.n] = true
	}
	return all
}

// setAside commits the batch without the writes whose rows are locked, or may be: these are
// to be tried alone.
func (s *Store) setAside(ctx context.Context, b backends.Batch, these map[int]bool, blocked map[string]bool) (backends.Results, error) {
	res := backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	rest := b
	rest.Writes = nil
	var of []int
	for n, w := range b.Writes {
		if these[n] {
			res.Writes[n].Err = &backends.LockedError{Err: errors.New("it is to be tried alone")}
			continue
		}
		rest.Writes, of = append(rest.Writes, w), append(of, n)
	}
	if len(rest.Writes)+len(rest.Claims) == 0 {
		return res, nil
	}
	got, err := s.commit(ctx, rest, blocked)
	if err != nil {
		return backends.Results{}, err
	}
	for i, n := range of {
		res.Writes[n] = got.Writes[i]
	}
	res.Claims = got.Claims
	return res, nil
}
