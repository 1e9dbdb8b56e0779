package mysql

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// trails are how far pruning has come.
type trails struct{ jobs, keys batch.Trail }

// since is an instant for an argument; the zero one is before all.
func since(t time.Time) instant {
	if t.IsZero() {
		return 1
	}
	return instant(t.UnixMicro())
}

// bitOff is what one transaction pruned.
type bitOff struct {
	deleted, found int
	last           instant // the last that was found; 0: there was none
}

// A pruning deletes what is over, from an instant on.
type pruning func(ctx context.Context, t *tx, b *bitOff, from instant, most int) error

// prune runs one as a transaction.
func (s *Store) prune(ctx context.Context, r *backends.MaintenanceResult, f pruning, trail *batch.Trail, from instant, most int) error {
	began := time.Now()
	var b bitOff
	err := s.write(ctx, func(ctx context.Context, t *tx) (err error) {
		b = bitOff{} // some of it is known with COMMIT only
		return f(ctx, t, &b, from, most)
	})
	if err == nil {
		if b.last != 0 {
			trail.Found(b.last.time())
		}
		r.AddPruned(b.deleted, b.found, most, time.Since(began))
	}
	return err
}

// pruneJobs deletes finished jobs whose time is over. Those that somebody has locked
// it leaves alone, with their lines: another sidecar is at them.
func (s *Store) pruneJobs(ctx context.Context, t *tx, b *bitOff, from instant, most int) error {
	var first instant
	var ids []int64
	t.askNow()
	t.each(func(r *result) error {
		if first == 0 {
			first = r.instant(0)
		}
		ids, b.last = append(ids, r.int(1)), r.instant(0)
		return nil
	}, "SELECT expires_at, job FROM qsidecar_expiring WHERE expires_at >= ? AND expires_at <= "+s.sql.clock+" ORDER BY expires_at, job LIMIT ?", from, most)
	if err := t.send(ctx); err != nil || len(ids) == 0 {
		return err
	}
	b.found = len(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var over, failed []int64
	seen := map[int64]bool{}
	t.each(func(r *result) error {
		id, state, expires := r.int(0), backends.State(r.text(1)), r.instant(2)
		seen[id] = true
		if (state == backends.StateDone || state == backends.StateDead) && expires != 0 && expires <= t.now {
			over = append(over, id)
			if r.int(3) != 0 {
				failed = append(failed, id)
			}
		}
		return nil
	}, "SELECT id, state, expires_at, last_error IS NOT NULL FROM "+byID+" WHERE id IN ("+list(ids)+") ORDER BY id FOR UPDATE"+s.sql.skip)
	if err := t.send(ctx); err != nil {
		return err
	}
	elsewhere, err := t.there(ctx, slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return seen[id] }))
	if err != nil {
		return err
	}
	b.deleted = len(over)
	if len(over) > 0 { // their keys know already how they ended
		t.wrote = true
		t.add(deleteByID + " WHERE id IN (" + list(over) + ")")
	}
	if len(failed) > 0 {
		t.add("DELETE FROM qsidecar_failures WHERE job IN (" + list(failed) + ")")
	}
	if ids = slices.DeleteFunc(ids, func(id int64) bool { return elsewhere[id] }); len(ids) == 0 {
		return nil
	}
	// One walk along the key: what lies between the first and the last line is these
	// jobs', but for those of the locked ones and what came in meanwhile.
	t.wrote = true
	t.add("DELETE FROM qsidecar_expiring WHERE expires_at >= ? AND expires_at <= ? AND job IN ("+list(ids)+")", first, b.last)
	return nil
}

// there finds which of some jobs are there, locked or not.
func (t *tx) there(ctx context.Context, ids []int64) (found map[int64]bool, err error) {
	found = map[int64]bool{}
	if len(ids) == 0 {
		return found, nil
	}
	t.each(func(r *result) error {
		found[r.int(0)] = true
		return nil
	}, "SELECT id FROM qsidecar_jobs WHERE id IN ("+list(ids)+")")
	return found, t.send(ctx)
}

// pruneKeys deletes keys whose jobs have ended and whose time is over, in the order
// of the names: everything that locks keys does it in this order.
func (s *Store) pruneKeys(ctx context.Context, t *tx, b *bitOff, from instant, most int) error {
	over := map[string][][]byte{}
	t.askNow()
	t.each(func(r *result) error {
		over[r.text(0)] = append(over[r.text(0)], r.bytes(1))
		b.found, b.last = b.found+1, r.instant(2)
		return nil
	}, "SELECT queue, `key`, over_at FROM qsidecar_keys FORCE INDEX (qsidecar_keys_over) WHERE over_at >= ? AND over_at <= "+s.sql.clock+" ORDER BY over_at LIMIT ?", from, most)
	if err := t.send(ctx); err != nil || b.found == 0 {
		return err
	}
	t.wrote = true
	for _, queue := range slices.Sorted(maps.Keys(over)) {
		slices.SortFunc(over[queue], bytes.Compare)
		args := []any{queue, t.now}
		for _, k := range over[queue] {
			args = append(args, k)
		}
		t.add("DELETE FROM qsidecar_keys WHERE queue = ? AND over_at <= ? AND `key` IN ("+marks(len(args)-2)+")", args...)
		t.each(func(r *result) error {
			b.deleted += int(r.int(0))
			return nil
		}, "SELECT ROW_COUNT()")
	}
	return nil
}
