package memory

import (
	"bytes"
	"context"
	"slices"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
)

// SaveProgress implements backends.ProgressKeeper.
func (b *Backend) SaveProgress(ctx context.Context, all []backends.LeaseProgress) (out []backends.ProgressOutcome, err error) {
	if err := b.fault(); err != nil {
		return nil, err
	}
	out = make([]backends.ProgressOutcome, len(all))
	err = b.do(ctx, func() error {
		for i := range all {
			j := b.claimedJob(all[i].Lease)
			if j == nil {
				out[i] = backends.ProgressLost
				continue
			}
			p := all[i].Progress
			p.Data, p.At = bytes.Clone(p.Data), b.now
			j.progress = &p
		}
		return nil
	})
	return out, err
}

// ProgressOf implements backends.ProgressKeeper.
func (b *Backend) ProgressOf(ctx context.Context, ids []string) (all map[string]backends.Progress, err error) {
	all = map[string]backends.Progress{}
	err = b.do(ctx, func() error {
		for _, id := range ids {
			if j := b.jobs[id]; j != nil && j.progress != nil {
				all[id] = *j.progress
			}
		}
		return nil
	})
	return all, err
}

// ForgetProgress implements backends.ProgressKeeper.
func (b *Backend) ForgetProgress(ctx context.Context, ids []string) error {
	return b.do(ctx, func() error {
		for _, id := range ids {
			if j := b.jobs[id]; j != nil && (j.state == backends.StateDone || j.state == backends.StateDead) {
				j.progress = nil
			}
		}
		return nil
	})
}

// ProgressJobs implements backends.ProgressKeeper.
func (b *Backend) ProgressJobs(ctx context.Context, after string, limit int) (ids []string, err error) {
	from, _ := strconv.ParseInt(after, 10, 64) // 0: from the start
	err = b.do(ctx, func() error {
		var found []int64
		for _, j := range b.jobs {
			if j.progress != nil && j.seq > from {
				found = append(found, j.seq)
			}
		}
		slices.Sort(found)
		for _, n := range found[:min(limit, len(found))] {
			ids = append(ids, strconv.FormatInt(n, 10))
		}
		return nil
	})
	return ids, err
}
