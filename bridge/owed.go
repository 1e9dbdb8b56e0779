package bridge

import (
	"sync"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/backends"
)

// owedStep is how many bytes a session may owe without that they count, and by how much what
// counts may differ from what it owes: so small replies cost nothing here.
const owedStep = 16 << 10

// owed are the bytes that a session's client has still to read: jobs that were claimed
// for it, and replies in its outbox.
type unreadBytes struct {
	bytes   atomic.Int64
	starved atomic.Bool // its claims wait until it reads

	mu   sync.Mutex
	told int64 // to the buffers
}

// owe counts bytes that the client has to read from now on, or, below 0, has read.
func (s *account) owe(n int64) {
	if n == 0 {
		return
	}
	s.unread.bytes.Add(n)
	s.unread.mu.Lock()
	now := s.unread.bytes.Load()
	if now < owedStep {
		now = 0
	}
	if diff := now - s.unread.told; diff >= owedStep || diff <= -owedStep || now == 0 && diff != 0 {
		s.unread.told = now
		s.memory.send(s, diff, now > 0)
	}
	s.unread.mu.Unlock()
	if n < 0 && s.unread.starved.CompareAndSwap(true, false) {
		s.client.wakeClaims()
	}
}

// overloaded reports whether the client reads too slowly to get more jobs now. If so its
// claims are looked at again when it has read something.
func (s *account) overloaded() bool {
	if s.unread.bytes.Load() < s.mayOwe() {
		return false
	}
	s.unread.starved.Store(true)
	if s.unread.bytes.Load() >= s.mayOwe() {
		return true
	}
	s.unread.starved.Store(false) // it read just now
	return false
}

func (s *account) mayOwe() int64 {
	if s.memory == nil {
		return backlogHigh
	}
	return s.memory.each()
}

// load counts jobs that were claimed for the session and are not in its outbox yet.
func (s *account) load(jobs []backends.Job) { s.owe(jobBytes(jobs)) }

// jobBytes is what jobs take in memory, but for what each takes anyway.
func jobBytes(jobs []backends.Job) (n int64) {
	for i := range jobs {
		j := &jobs[i]
		n += int64(len(j.Payload) + len(j.Key) + len(j.LastError))
		for name, value := range j.Headers {
			n += int64(len(name) + len(value))
		}
	}
	return n
}
