package bridge

import (
	"log/slog"
	"sync/atomic"
)

// account is a client's connection as the pipelines and the limits see it: what it holds
// and what it has still to read. Its address is the session's identity there.
type account struct {
	client sessionHooks
	memory *buffers // nil: nothing is limited
	jobs   jobQuota
	unread unreadBytes

	receiving atomic.Bool // a message came in part
	blocked   atomic.Bool // a claim without an id waits, and what came behind it is not read
}

// sessionHooks are what the limits and the pipelines ask of a session.
type sessionHooks interface {
	// mayClaim reports whether the session may claim from all of the queues.
	mayClaim(queues []string) bool
	// maxJobs is how many jobs the session may hold.
	maxJobs() int
	// tooManyJobs is the error for a request that would exceed maxJobs.
	tooManyJobs() error
	// wakeClaims has the claims of all databases be gathered again.
	wakeClaims()
	// evict closes the connection, whose client stands still while others wait for memory.
	// receiving: in the middle of a request, else in a reply.
	evict(receiving bool)
	// logAttrs name the session in a log line.
	logAttrs() []slog.Attr
}

func newAccount(c sessionHooks, m *buffers) account { return account{client: c, memory: m} }
