package core

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// Stats implements backends.Inspector.
func (s *Store) Stats(ctx context.Context, queue string) (all []backends.QueueStats, err error) {
	var queues []string // nil: all
	if queue != "" {
		queues = []string{queue}
	}
	err = s.readJobs(ctx, func(ctx context.Context, r Reader) (err error) {
		if all, err = r.Stats(ctx, queues); err != nil {
			return err
		}
		for i := range all {
			if err := s.estimates.Fill(s.LocalTime(), &all[i], func(state backends.State) (int64, error) { return r.Count(ctx, all[i].Queue, state) }); err != nil {
				return err
			}
		}
		if reader, ok := r.(LimitsReader); ok {
			limits, err := reader.AllLimits(ctx)
			if err != nil {
				return err
			}
			all = withLimits(all, limits, queues == nil)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// withLimits adds the limits to the statistics, and the queues that have nothing else if whole is true.
func withLimits(all []backends.QueueStats, limits map[string]backends.Limits, whole bool) []backends.QueueStats {
	for i := range all {
		all[i].Limits = limits[all[i].Queue]
		delete(limits, all[i].Queue)
	}
	if !whole || len(limits) == 0 {
		return all
	}
	for queue, l := range limits {
		all = append(all, backends.QueueStats{Queue: queue, Limits: l})
	}
	slices.SortFunc(all, func(a, b backends.QueueStats) int { return strings.Compare(a.Queue, b.Queue) })
	return all
}

// Peek implements backends.Inspector.
func (s *Store) Peek(ctx context.Context, p backends.Peek) (views []backends.View, err error) {
	switch p.State {
	case "":
		p.State = backends.StateReady
	case backends.StateReady, backends.StateBlocked, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead:
	default:
		if len(p.IDs) == 0 && p.Key == "" {
			return nil, fmt.Errorf("no job is ever %q", p.State)
		}
	}
	err = s.readJobs(ctx, func(ctx context.Context, r Reader) error {
		if views = nil; !hasState(r, p.State) {
			return nil
		}
		ids, err := chosen(ctx, r, p)
		if err != nil || len(ids) == 0 {
			return err
		}
		if p.OnlyIDs {
			for _, id := range ids {
				views = append(views, backends.View{ID: ID(id)})
			}
			return nil
		}
		views, err = r.Views(ctx, p.Queue, ids)
		return err
	})
	if err != nil {
		return nil, err
	}
	return views, nil
}

// chosen returns the ids that p shows. It stops when their number or their bytes reach the limits of p, before
// any payload is read.
func chosen(ctx context.Context, r Reader, p backends.Peek) (ids []int64, err error) {
	var wanted []int64
	var after any
	switch {
	case len(p.IDs) > 0:
		if wanted = idsOf(p.IDs); len(wanted) == 0 {
			return nil, nil
		}
	case p.Key != "":
		id, found, err := r.KeyHolder(ctx, p.Queue, p.Key)
		if err != nil || !found {
			return nil, err
		}
		wanted = []int64{id}
	case p.After != "":
		id, ok := Number(p.After)
		found := false
		if ok {
			if after, found, err = r.Place(ctx, p, id); err != nil {
				return nil, err
			}
		}
		if !found {
			return nil, backends.ErrNoSuchJob
		}
	}
	size, full := int64(0), false
	err = r.Sizes(ctx, p, wanted, after, func(id, bytes int64) {
		size += bytes
		full = full || len(ids) == p.Max || p.MaxBytes > 0 && size > p.MaxBytes && len(ids) > 0
		if !full {
			ids = append(ids, id)
		}
	})
	return ids, err
}

// ClaimedBy implements backends.Backend.
func (s *Store) ClaimedBy(ctx context.Context, owner backends.Identity, after string, limit int) (all []backends.ClaimedJob, err error) {
	from, ok := Number(after)
	if !ok {
		from = math.MinInt64 // all jobs come after a text that isn't an id
	}
	err = s.readJobs(ctx, func(ctx context.Context, r Reader) (err error) {
		all, err = r.ClaimedBy(ctx, owner, from, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Cancelled implements backends.Inspector.
func (s *Store) Cancelled(ctx context.Context, owner backends.Identity) (claims []backends.Token, err error) {
	err = s.within(ctx, backends.OwnCancelled, func(ctx context.Context) error {
		return s.read(ctx, func(ctx context.Context, r Reader) (err error) {
			claims, err = r.Cancelled(ctx, owner)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return claims, nil
}
