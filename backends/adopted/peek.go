package adopted

import (
	"context"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// maxDepth is how far one can page into a state, in jobs.
const maxDepth = backends.StatsExact

// Peek implements backends.Inspector. In adopted tables jobs come in the order of claims, whatever
// their state, and one can page as far as the 10,000th.
func (s *Store) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	if !s.Adopted(p.Queue) {
		return s.Engine.Peek(ctx, p)
	}
	views, err := s.peek(ctx, p)
	return views, s.named(p.Queue, err)
}

func (s *Store) peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	q := s.queues()[p.Queue]
	if q == nil {
		return nil, s.obstruction(p.Queue, backends.DoingClaim)
	}
	if p.Key != "" {
		return nil, &backends.UnsupportedError{Queue: p.Queue, What: "a job cannot have a key"}
	}
	if p.Newest && len(p.IDs) == 0 {
		return nil, &backends.UnsupportedError{Queue: p.Queue, What: statement.NoNewest}
	}
	items := p.IDs
	var err error
	if len(items) == 0 {
		if items, err = s.page(ctx, q, p); err != nil || len(items) == 0 {
			return nil, err
		}
	}
	if p.OnlyIDs {
		views := make([]backends.View, len(items))
		for i, item := range items {
			views[i].ID = item
		}
		return views, nil
	}
	if items, err = s.cutAtSize(ctx, q, items, p.MaxBytes); err != nil || len(items) == 0 {
		return nil, err
	}
	views := map[string]*backends.View{}
	found := leases{}
	if err := s.Query(ctx, append(q.Views(items, views), found.query(lease.Select(s.dialect, lease.OfJobs(s.dialect)), q.Queue, items))...); err != nil {
		return nil, err
	}
	for _, l := range found {
		if v := views[l.Item]; v != nil {
			q.AddLease(v, l)
		}
	}
	s.tx.show(q.Queue, views)
	var all []backends.View
	for _, item := range items {
		if v := views[item]; v != nil && (len(p.IDs) > 0 || v.State == p.State || !q.ClaimInTx) {
			all = append(all, *v)
		}
	}
	return all, nil
}

// page finds the ids of a page.
func (s *Store) page(ctx context.Context, q *statement.Queue, p backends.Peek) (items []string, err error) {
	where := q.InState(p.State)
	switch {
	case where != nil:
		limit := int64(p.Max)
		if p.After != "" {
			limit = maxDepth
		}
		st := q.Items(query.And(where...), q.OrderBy(), s.dialect.IntArg(1), func(item string) { items = append(items, item) }, limit)
		if err := s.Query(ctx, st); err != nil {
			return nil, err
		}
	case p.State != backends.StateClaimed: // no row is in it
		return nil, nil
	default:
		for _, j := range s.tx.ofQueue(q.Queue) {
			items = append(items, j.lease.Item)
		}
	}
	if p.After != "" {
		at := slices.Index(items, p.After)
		if at < 0 {
			return nil, backends.ErrNoSuchJob
		}
		items = items[at+1:]
	}
	return items[:min(len(items), p.Max)], nil
}

// cutAtSize cuts a list of ids where the payloads and results of the jobs together exceed limit,
// after at least one.
func (s *Store) cutAtSize(ctx context.Context, q *statement.Queue, items []string, limit int64) ([]string, error) {
	sizes := map[string]int64{}
	statements := q.Sizes(items, sizes)
	if limit <= 0 || len(statements) == 0 {
		return items, nil
	}
	err := s.Query(ctx, statements...)
	for i, item := range items {
		if limit -= sizes[item]; limit < 0 && i > 0 {
			return items[:i], err
		}
	}
	return items, err
}
