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
func (q *QueueNames) Use(name string, user uint32, most int) (ok, look bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	m := q.all[name]
	if m == nil && q.users[user] < most {
		if q.all == nil {
			q.all, q.users = make(map[string]*queueName), make(map[uint32]int)
		}
		m = &queueName{user: user}
		q.all[name] = m
		q.users[user]++
	}
	if m != nil {
		m.used = now
	}
	if q.users[user] >= most-most/4 && now.After(q.next) {
		q.next, look = now.Add(QueueNameTimeout), true
	}
	return m != nil, look
}

// Forget removes and returns the names that have no jobs and were not used for QueueNameAge before began.
func (q *QueueNames) Forget(began time.Time, hasJobs func(name string) bool) (gone []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.next = now.Add(max(QueueNameAge, checkShare*now.Sub(began)))
	for name, m := range q.all {
		if began.Sub(m.used) < QueueNameAge || hasJobs(name) {
			continue
		}
		gone = append(gone, name)
		delete(q.all, name)
		if q.users[m.user]--; q.users[m.user] == 0 {
			delete(q.users, m.user)
		}
	}
	return gone
}

// Count returns how many names are known.
func (q *QueueNames) Count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.all)
}
