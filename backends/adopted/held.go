package adopted

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
)

// Another program can empty qsidecar_leases, as the clean-up of a test suite does. The rows of the claimed jobs then look like those
// of the table's own consumers, and nothing would give them back. So the Store remembers its claims. If a lease is gone, and no
// row of the table is as old as the lease, the table was emptied, and the lease counts as stored.

// heldSample is how many leases maintenance looks for.
const heldSample = 10

// heldLeases are the claims of a Store and of those before it, by the ids of their leases.
type heldLeases struct {
	mu  sync.Mutex
	all map[int64]lease.Lease

	suspects []int64 // not nil: maintenance has found the table emptied, and these can be gone
}

// keep remembers claims as they are stored now.
func (h *heldLeases) keep(leases []*lease.Lease) {
	if len(leases) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[int64]lease.Lease{}
	}
	for _, l := range leases {
		if l.Sidecar != 0 && !l.InTx {
			h.all[l.ID] = *l
		}
	}
}

// forget ends keep.
func (h *heldLeases) forget(ids ...int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		delete(h.all, id)
	}
}

// find returns copies of some of the claims: those of the ids, or a sample.
func (h *heldLeases) find(ids []int64, most int) (all []*lease.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	add := func(l lease.Lease) {
		l.Failures, l.Stored = slices.Clone(l.Failures), false
		all = append(all, &l)
	}
	if ids == nil {
		for _, l := range h.all {
			if len(all) == most {
				break
			}
			add(l)
		}
		return all
	}
	for _, id := range ids {
		if l, ok := h.all[id]; ok {
			add(l)
		}
	}
	return all
}

// emptied returns those of the missing leases that an emptied table took away, as of now. A row that is as old as a lease shows that
// the table has not been emptied since.
func (s *Store) emptied(ctx context.Context, sql func(ctx context.Context, statements ...*backends.Statement) error, missing []*lease.Lease) (gone []*lease.Lease, err error) {
	d := s.dialect
	for _, l := range missing {
		older, taken := false, false
		err := sql(ctx, &backends.Statement{
			Text: d.SelectFirst(query.Columns(d.ToText("l.id")), lease.From(d), "l.changed_at <= "+d.IntArg(1), "", d.IntArg(2)), Args: []any{l.Now, int64(1)},
			Row: func([][]byte) error { older = true; return nil },
		}, &backends.Statement{
			Text: "SELECT " + query.Columns(d.ToText("l.id")) + " FROM " + lease.From(d) + " WHERE " + lease.OfJobs(d), Args: []any{l.Queue, []string{l.Item}},
			Row: func([][]byte) error { taken = true; return nil },
		})
		if err != nil {
			return nil, err
		}
		if !older && !taken {
			gone = append(gone, l)
		}
	}
	if len(gone) == 0 {
		return nil, nil
	}
	return gone, sql(ctx, &backends.Statement{Text: "SELECT " + query.Columns(d.ToText(d.NowMillis())), Row: func(cells [][]byte) error {
		var now int64
		err := query.Int(cells[0], &now)
		for _, l := range gone {
			l.Now = now
		}
		return err
	}})
}

// addEmptied adds the leases among ids that an emptied table took away.
func (s *Store) addEmptied(ctx context.Context, sql backends.SQL, to leases, ids []int64) error {
	missing := slices.DeleteFunc(s.held.find(ids, 0), func(l *lease.Lease) bool { return to[l.ID] != nil })
	if len(missing) == 0 {
		return nil
	}
	gone, err := s.emptied(ctx, sql.Do, missing)
	for _, l := range gone {
		to[l.ID] = l
	}
	return err
}

// findHeld is a query for at most n of the leases that the Store remembers. found gets their ids. It always names n ids: some engines
// need another statement for each number.
func (s *Store) findHeld(some []*lease.Lease, n int, found map[int64]bool) *backends.Statement {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(some[min(i, len(some)-1)].ID)
	}
	d := s.dialect
	return &backends.Statement{Text: "SELECT " + query.Columns(d.ToText("l.id")) + " FROM " + lease.From(d) + " WHERE " + d.AnyOf(1, lease.IDColumn), Args: []any{ids},
		Row: func(cells [][]byte) error {
			var id int64
			err := query.Int(cells[0], &id)
			found[id] = true
			return err
		}}
}

// restoreHeld stores the leases again that an emptied table took away, if some of the sample are missing. It forgets those that
// ended in another way. It acts in the call after the one that found out: what is settled between them is forgotten then.
func (s *Store) restoreHeld(ctx context.Context, sample []*lease.Lease, found map[int64]bool) error {
	s.held.mu.Lock()
	suspects := s.held.suspects
	s.held.suspects = nil
	s.held.mu.Unlock()
	if suspects != nil {
		return s.restore(ctx, s.held.find(suspects, 0))
	}
	missing := slices.DeleteFunc(sample, func(l *lease.Lease) bool { return found[l.ID] })
	if len(missing) == 0 {
		return nil
	}
	gone, err := s.emptied(ctx, s.Query, missing)
	if err != nil {
		return err
	}
	for _, l := range missing {
		if !slices.Contains(gone, l) {
			s.held.forget(l.ID)
		}
	}
	if len(gone) > 0 {
		s.held.mu.Lock()
		defer s.held.mu.Unlock()
		s.held.suspects = slices.Collect(maps.Keys(s.held.all))
	}
	return nil
}

// restore stores those of the leases again that an emptied table took away.
func (s *Store) restore(ctx context.Context, all []*lease.Lease) error {
	return s.transaction(ctx, nil, func(ctx context.Context, sql backends.SQL) error {
		var lost []*lease.Lease
		for some := range slices.Chunk(all, lease.MaxRows) {
			found := map[int64]bool{}
			if err := sql.Do(ctx, s.findHeld(some, lease.MaxRows, found)); err != nil {
				return err
			}
			gone, err := s.emptied(ctx, sql.Do, slices.DeleteFunc(slices.Clone(some), func(l *lease.Lease) bool { return found[l.ID] }))
			if err != nil {
				return err
			}
			lost = append(lost, gone...)
		}
		saves, err := lease.Save(s.dialect, lost)
		if err != nil {
			return err
		}
		return do(ctx, sql, saves)
	})
}
