package quota

import (
	"sync/atomic"
)

// Session is a client connection as the pipelines and limits see it: its jobs and its unread bytes. Its address is
// the session's identity.
type Session struct {
	Client Client
	Owner  Owner
	memory *Memory // nil: nothing is limited
	Jobs   JobQuota
	unread unreadBytes

	Receiving atomic.Bool // in the middle of a message
	Blocked   atomic.Bool // a claim without an id waits; nothing after it is read
}

// Client is the interface of the limits and the pipelines to a session. Its methods must not block.
type Client interface {
	// Identify returns the session's id and the name of its worker, which can be empty.
	Identify() (session, worker string)
	// MayClaim reports whether the session is allowed to claim from all of the queues.
	MayClaim(queues []string) bool
	// MaxJobs returns how many jobs the session can hold.
	MaxJobs() int
	// TooManyJobs returns the error for a request that would exceed MaxJobs.
	TooManyJobs() error
	// WakeClaims includes the session's waiting claims of all databases in the next commits again.
	WakeClaims()
	// Evict closes the connection, because its client stalls while others wait for memory. receiving is true in the
	// middle of a request, and false in the middle of a reply.
	Evict(receiving bool)
}

// Owner is the process at the other end of a connection, as far as the operating system reports it.
type Owner struct {
	UID uint32
	PID int32 // 0: unknown, as that of a process in another PID namespace
}

// share is what divides the memory with others: a process, or a session whose process is unknown. Such sessions must
// not share, because they are possibly of different containers. A process that forks gets as many shares.
type share struct {
	Owner
	alone *Session // nil: all sessions of a process
}

func (s *Session) share() share {
	if s.Owner.PID == 0 {
		return share{s.Owner, s}
	}
	return share{s.Owner, nil}
}

// NewSession returns the Session of a client. A nil memory limits nothing.
func NewSession(c Client, o Owner, m *Memory) Session { return Session{Client: c, Owner: o, memory: m} }
