package bridge

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// forgetNames starts a query for the names that have no jobs any more. A session calls it.
func (b *Bridge) forgetNames() {
	b.serving.Go(func() { // in a goroutine, because a reload in progress can take time
		b.reload.Lock()
		defer b.reload.Unlock()
		if r := b.running; r != nil {
			r.left.Go(func() { b.forgetUnusedNames(r.stop) })
		}
	})
}

func (b *Bridge) forgetUnusedNames(ctx context.Context) {
	c, began := b.config.Load(), time.Now()
	used := make(map[string]bool)
	for _, db := range c.Databases {
		if err := usedNames(ctx, db, used); err != nil {
			b.log.Warn("can't find unused queues", "event", "unused_queues_unknown", "database", db.Name, "error", err)
			return
		}
	}
	gone := b.shared.Names.Forget(began, func(name string) bool { return used[name] })
	for _, db := range c.Databases {
		db.ReadyLimits.Forget(gone)
	}
}

// usedNames adds the names of queues that have jobs.
func usedNames(ctx context.Context, db *plan.Database, used map[string]bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quota.QueueNameTimeout, fmt.Errorf("no answer within %v", quota.QueueNameTimeout))
	defer cancel()
	stats, err := db.Stats(ctx, "")
	if err != nil {
		return err
	}
	for i := range stats {
		if q := &stats[i]; q.Ready+q.Scheduled+q.Claimed+q.Dead+q.Done > 0 || q.Paused {
			used[q.Queue] = true
		}
	}
	return nil
}
