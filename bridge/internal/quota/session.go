package quota

import (
	"sync/atomic"
)

// Session is a client's connection as the pipelines and the limits see it: what it holds
// and what it has still to read. Its address is the session's identity there.
type Session struct {
	Client Client
	memory *Memory // nil: nothing is limited
	Jobs   JobQuota
	unread unreadBytes

	Receiving atomic.Bool // a message came in part
	Blocked   atomic.Bool // a claim without an id waits, and what came behind it is not read
}

// Client are what the limits and the pipelines ask of a session.
type Client interface {
	// MayClaim reports whether the session may claim from all of the queues.
	MayClaim(queues []string) bool
	// MaxJobs is how many jobs the session may hold.
	MaxJobs() int
	// TooManyJobs is the error for a request that would exceed maxJobs.
	TooManyJobs() error
	// WakeClaims has the claims of all databases be gathered again.
	WakeClaims()
	// Evict closes the connection, whose client stands still while others wait for memory.
	// receiving: in the middle of a request, else in a reply.
	Evict(receiving bool)
}

func NewSession(c Client, m *Memory) Session { return Session{Client: c, memory: m} }
