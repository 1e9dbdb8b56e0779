package quota

import (
	"sync"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/backends"
)

// MaxUnread is how many unread bytes of jobs and replies a client can have before its further claims wait.
// Memory.perSession lowers it when memory is short.
const MaxUnread = 8 << 20

// reportStep is by how many bytes the count of a session can differ from the last report to Memory. So small replies
// cost nothing.
const reportStep = 16 << 10

// unreadBytes counts the bytes that a client has not read yet: jobs that were claimed for it, and replies in its
// outbox.
type unreadBytes struct {
	bytes   atomic.Int64
	starved atomic.Bool // its claims wait until it reads

	mu       sync.Mutex
	reported int64 // to Memory
}

// AddUnread adds n bytes that the client has not read yet. If n is negative, the client has read them.
func (s *Session) AddUnread(n int64) {
	if n == 0 {
		return
	}
	s.unread.bytes.Add(n)
	s.unread.mu.Lock()
	now := s.unread.bytes.Load()
	if now < reportStep {
		now = 0
	}
	if diff := now - s.unread.reported; diff >= reportStep || diff <= -reportStep || now == 0 && diff != 0 {
		s.unread.reported = now
		s.memory.setUnread(s, diff, now > 0)
	}
	s.unread.mu.Unlock()
	if n < 0 && s.unread.starved.CompareAndSwap(true, false) {
		s.Client.WakeClaims()
	}
}

// Overloaded reports whether the client reads too slowly to get more jobs. If so, AddUnread wakes its claims when
// it has read something.
func (s *Session) Overloaded() bool {
	if s.unread.bytes.Load() < s.maxUnread() {
		return false
	}
	s.unread.starved.Store(true)
	if s.unread.bytes.Load() >= s.maxUnread() {
		return true
	}
	s.unread.starved.Store(false) // it read in between
	return false
}

func (s *Session) maxUnread() int64 {
	if s.memory == nil {
		return MaxUnread
	}
	return s.memory.perSession()
}

// AddClaimed adds jobs that were claimed for the session and are not in its outbox yet.
func (s *Session) AddClaimed(jobs []backends.Job) { s.AddUnread(JobBytes(jobs)) }

// JobBytes returns the size of the variable parts of jobs in memory.
func JobBytes(jobs []backends.Job) (n int64) {
	for i := range jobs {
		j := &jobs[i]
		n += int64(len(j.Payload) + len(j.Key) + len(j.LastError))
		if j.Progress != nil {
			n += int64(len(j.Progress.Data))
		}
		for name, value := range j.Headers {
			n += int64(len(name) + len(value))
		}
	}
	return n
}
