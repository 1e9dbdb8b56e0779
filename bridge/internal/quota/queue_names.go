package quota

import (
	"sync"
	"time"
)

// QueueNames records the queue names for which "*" stands in the config. Each counts for the user that used it first,
// so that a user with a name per job does not use up the names of others. When a user has used up three quarters of
// the limit, names of empty queues that were not used for a while are removed.
type QueueNames struct {
	mu    sync.Mutex
	all   map[string]*queueName
	users map[uint32]int
	next  time.Time // earliest time of the next check for empty queues
}

// queueName is one name.
type queueName struct {
	user uint32
	used time.Time
}

const (
	// QueueNameAge is the minimum time that a name is remembered, and the minimum time between two checks for empty
	// queues.
	QueueNameAge = 10 * time.Second
	// checkShare bounds the share of time for these checks if they are slow: one part in checkShare.
	checkShare = 20
	// QueueNameTimeout bounds the query of one database.
	QueueNameTimeout = 30 * time.Second
)

// Use reports whether the name is known or can be added under the user's limit. If look is true, the caller must find
// out which queues are empty and call Forget.
func (n *QueueNames) Use(name string, user uint32, most int) (ok, look bool) {
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
		n.next, look = now.Add(QueueNameTimeout), true
	}
	return m != nil, look
}

// Forget removes and returns the names that have no jobs and were not used for QueueNameAge before began.
func (n *QueueNames) Forget(began time.Time, hasJobs func(name string) bool) (gone []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.next = now.Add(max(QueueNameAge, checkShare*now.Sub(began)))
	for name, m := range n.all {
		if began.Sub(m.used) < QueueNameAge || hasJobs(name) {
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

// Count returns how many names are known.
func (n *QueueNames) Count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.all)
}
