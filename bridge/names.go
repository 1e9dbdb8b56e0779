package bridge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// names remembers which names of queues clients made up, for which "*" stands. Each counts
// for the user who used it first, so that one who makes up a name for each job takes none
// from others. When a user has used up three quarters of what is allowed, names are
// forgotten that were not used since a look before, and whose queues are empty.
type queueNames struct {
	mu    sync.Mutex
	all   map[string]*queueName
	users map[uint32]int
	next  time.Time // not before that the next look
}

// madeUp is one name.
type queueName struct {
	user uint32
	used time.Time
}

const (
	// namesAge is how long a name is remembered at least, and how long it is from one look
	// to the next.
	namesAge = 10 * time.Second
	// namesShare bounds what looks may take of the time where they are slow.
	namesShare = 20
	// namesTimeout bounds a look into one database.
	namesTimeout = 30 * time.Second
)

// known reports whether the name is known, or there is room for it to be from now on.
// look: a look for names to forget is due, which the caller begins.
func (n *queueNames) known(name string, user uint32, most int) (ok, look bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	m := n.all[name]
	if m == nil && n.users[user] < most {
		if n.all == nil {
			n.all, n.users = make(map[string]*queueName), make(map[uint32]int)
		}
		m = &queueName{user: user}
		n.all[name] = m
		n.users[user]++
	}
	if m != nil {
		m.used = now
	}
	if n.users[user] >= most-most/4 && now.After(n.next) {
		n.next, look = now.Add(namesTimeout), true
	}
	return m != nil, look
}

// forget forgets the names that were not used for namesAge before a look that began at
// began, and have no jobs. It returns them.
func (n *queueNames) forget(began time.Time, hasJobs func(name string) bool) (gone []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.next = now.Add(max(namesAge, namesShare*now.Sub(began)))
	for name, m := range n.all {
		if began.Sub(m.used) < namesAge || hasJobs(name) {
			continue
		}
		gone = append(gone, name)
		delete(n.all, name)
		if n.users[m.user]--; n.users[m.user] == 0 {
			delete(n.users, m.user)
		}
	}
	return gone
}

// roomForName holds a queue's name against the limit of those that clients make up.
func (s *session) roomForName(p *plan, name string) error {
	if _, named := p.opts.Queues[name]; named {
		return nil
	}
	var user uint32
	if s.peer != nil {
		user = s.peer.UID
	}
	most := p.opts.Limits.QueueNames
	ok, look := s.bridge.queueNames.known(name, user, most)
	if look {
		s.bridge.forgetNames()
	}
	if ok {
		return nil
	}
	e := protocol.Errorf(protocol.CodeBusy, "the queue %s would be one name too many: %d that clients of this user made up have jobs, or had them just now, which is the limit "+
		"(limits.queue_names in the sidecar's config): name queues in the config, or use fewer", name, most)
	e.RetryMS = protocol.Some(namesAge.Milliseconds())
	return e
}

// forgetNames begins to look which names have no jobs any more. A session calls it.
func (b *Bridge) forgetNames() {
	b.serving.Go(func() { // a reload under way may take its time
		b.reload.Lock()
		defer b.reload.Unlock()
		if r := b.running; r != nil {
			r.left.Go(func() { b.lookForNames(r.stop) })
		}
	})
}

func (b *Bridge) lookForNames(ctx context.Context) {
	p, began := b.plan.Load(), time.Now()
	used := make(map[string]bool)
	for _, db := range p.databases {
		if err := db.usedNames(ctx, used); err != nil {
			b.log.Warn("which queues are empty is not known, so no name that clients made up is forgotten", "database", p.nameOf(db), "error", err)
			return
		}
	}
	gone := b.queueNames.forget(began, func(name string) bool { return used[name] })
	for _, db := range p.databases {
		db.ReadyLimits.Forget(gone)
	}
}

// usedNames adds the names of queues that have jobs.
func (b *database) usedNames(ctx context.Context, used map[string]bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, namesTimeout, fmt.Errorf("no answer within %v", namesTimeout))
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
