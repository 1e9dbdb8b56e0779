package quota

import (
	"sync/atomic"
)

// Session is a client connection as the pipelines and limits see it: what it holds and what it has still to read.
// Its address is the session's identity.
type Session struct {
	Client Client
	memory *Memory // nil: nothing is limited
	Jobs   JobQuota
	unread unreadBytes

	Receiving atomic.Bool // in the middle of a message
	Blocked   atomic.Bool // a claim without an id waits; nothing after it is read
}

// Client is what the limits and the pipelines ask of a session. Its methods must not block.
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

// NewSession returns the Session of a client. A nil memory limits nothing.
func NewSession(c Client, m *Memory) Session { return Session{Client: c, memory: m} }
