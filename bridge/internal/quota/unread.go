package quota

import (
	"sync"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/backends"
)

// MaxUnread is how many bytes a client may have to read, of jobs and replies, before its
// further claims wait; see buffers.each for when there is little room.
const MaxUnread = 8 << 20

// reportStep is how many bytes a session may owe without that they count, and by how much what
// counts may differ from what it owes: so small replies cost nothing here.
const reportStep = 16 << 10

// owed are the bytes that a session's client has still to read: jobs that were claimed
// for it, and replies in its outbox.
type unreadBytes struct {
	bytes   atomic.Int64
	starved atomic.Bool // its claims wait until it reads

	mu       sync.Mutex
	reported int64 // to the buffers
}

// AddUnread counts bytes that the client has to read from now on, or, below 0, has read.
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

// Overloaded reports whether the client reads too slowly to get more jobs now. If so its
// claims are looked at again when it has read something.
func (s *Session) Overloaded() bool {
	if s.unread.bytes.Load() < s.maxUnread() {
		return false
	}
	s.unread.starved.Store(true)
	if s.unread.bytes.Load() >= s.maxUnread() {
		return true
	}
	s.unread.starved.Store(false) // it read now
	return false
}

func (s *Session) maxUnread() int64 {
	if s.memory == nil {
		return MaxUnread
	}
	return s.memory.perSession()
}

// AddClaimed counts jobs that were claimed for the session and are not in its outbox yet.
func (s *Session) AddClaimed(jobs []backends.Job) { s.AddUnread(JobBytes(jobs)) }

// JobBytes is what jobs take in memory, but for what each takes anyway.
func JobBytes(jobs []backends.Job) (n int64) {
	for i := range jobs {
		j := &jobs[i]
		n += int64(len(j.Payload) + len(j.Key) + len(j.LastError))
		for name, value := range j.Headers {
			n += int64(len(name) + len(value))
		}
	}
	return n
}
