package bridge

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/protocol"
)

// roomForName checks a queue's name against the limit of auto-created queues.
func (s *session) roomForName(p *plan, name string) error {
	if _, named := p.opts.Queues[name]; named {
		return nil
	}
	var user uint32
	if s.peer != nil {
		user = s.peer.UID
	}
	most := p.opts.Limits.QueueNames
	ok, look := s.bridge.queueNames.Use(name, user, most)
	if look {
		s.bridge.forgetNames()
	}
	if ok {
		return nil
	}
	e := protocol.Errorf(protocol.CodeBusy, "can't create queue %q: this user's clients use %d auto-created queues, which is the limit "+
		"(limits.queue_names in the sidecar's config): name queues in the config, or use fewer", name, most)
	e.RetryMS = protocol.Some(quota.QueueNameAge.Milliseconds())
	return e
}

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
	p, began := b.plan.Load(), time.Now()
	used := make(map[string]bool)
	for _, db := range p.databases {
		if err := db.usedNames(ctx, used); err != nil {
			b.log.Warn("can't find unused queues", "event", "unused_queues_unknown", "database", p.nameOf(db), "error", err)
			return
		}
	}
	gone := b.queueNames.Forget(began, func(name string) bool { return used[name] })
	for _, db := range p.databases {
		db.ReadyLimits.Forget(gone)
	}
}

// usedNames adds the names of queues that have jobs.
func (b *database) usedNames(ctx context.Context, used map[string]bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quota.QueueNameTimeout, fmt.Errorf("no answer within %v", quota.QueueNameTimeout))
	defer cancel()
	stats, err := b.Stats(ctx, "")
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
