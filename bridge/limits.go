package bridge

import (
	"cmp"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Defaults of Limits.
const (
	DefaultConnections = 10_000
	DefaultHeldJobs    = 10_000
	DefaultBuffered    = quota.DefaultBuffered
	DefaultQueueNames  = 10_000
)

// Limits bound what clients may take of the sidecar. What is over one is refused with
// `busy`, and harms nobody else.
type Limits struct {
	Connections int // in all. Defaults to 10,000
	PerUser     int // connections of one user; 0: no limit but the one above
	Held        int // jobs that one connection holds. Defaults to 10,000
	Buffered    int // bytes of messages, see buffers; 1 MiB at least. Defaults to 256 MiB
	QueueNames  int // names that clients of one user made up, for which "*" stands. Defaults to 10,000
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, DefaultConnections)
	l.Held = cmp.Or(l.Held, DefaultHeldJobs)
	l.Buffered = cmp.Or(l.Buffered, DefaultBuffered)
	l.QueueNames = cmp.Or(l.QueueNames, DefaultQueueNames)
	return l
}

func (l Limits) validate(bad func(format string, args ...any)) {
	for key, n := range map[string]int{"connections": l.Connections, "held": l.Held, "queue_names": l.QueueNames} {
		if n < 1 {
			bad("limits.%s: %d is below 1", key, n)
		}
	}
	if l.Buffered < 1<<20 {
		bad("limits.buffered: %d bytes is below 1 MiB", l.Buffered)
	}
	if l.PerUser < 0 {
		bad("limits.connections_per_user: %d is negative", l.PerUser)
	}
}

const (
	// turnedAway is how many connections over the limit are told so at a time; more
	// are closed without a word.
	turnedAway = 64
	// turnAwayTimeout is how long such a connection has to say which codec it speaks.
	turnAwayTimeout = time.Second
)

// full says why there is no place for one more connection; nil: there is. b.mu is held.
func (b *Bridge) full(who *unixsocket.Peer) *protocol.Error {
	l := b.plan.Load().opts.Limits
	if n := len(b.sessions); n >= l.Connections {
		return protocol.Errorf(protocol.CodeBusy, "the sidecar has %d connections, which is its limit (limits.connections in its config): close some, or let programs share one", n)
	}
	if who != nil && l.PerUser > 0 && b.users[who.UID] >= l.PerUser {
		return protocol.Errorf(protocol.CodeBusy, "user %d has %d connections, which is the limit (limits.connections_per_user in the sidecar's config): close some, or let programs share one",
			who.UID, b.users[who.UID])
	}
	return nil
}

// turnAway tells a connection that there is no place for it, in its own codec, and
// returns; the caller closes it.
func (b *Bridge) turnAway(conn unixsocket.Conn, who *unixsocket.Peer, why *protocol.Error) {
	b.mu.Lock()
	refusing := b.refusing < turnedAway && !b.closing
	if refusing {
		b.refusing++
		b.serving.Add(1)
	}
	b.mu.Unlock()
	if !refusing {
		return
	}
	defer func() {
		b.mu.Lock()
		b.refusing--
		b.mu.Unlock()
		b.serving.Done()
	}()
	time.Sleep(b.rejectDelay(who, 0))
	if err := conn.SetDeadline(time.Now().Add(turnAwayTimeout)); err != nil {
		return // it is gone
	}
	r := protocol.NewReader(conn, 64<<10) // whatever it says first
	_, codec, err := r.Next()
	if codec = cmp.Or(codec, r.Codec()); codec == 0 && err != nil {
		return
	}
	_, _ = conn.Write(codec.AppendReply(nil, &protocol.Reply{Error: why})) // it may be gone
}
