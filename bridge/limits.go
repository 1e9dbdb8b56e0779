package bridge

import (
	"cmp"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Defaults of Limits.
const (
	DefaultConnections       = 10_000
	DefaultJobsPerConnection = 10_000
	DefaultBufferMemory      = quota.DefaultBufferMemory
	DefaultQueueNames        = 10_000
)

// Limits bound the resources that clients can use. Only the client over a limit is refused, with `busy`.
type Limits struct {
	Connections       int // in total. Defaults to 10,000
	PerUser           int // connections of one user; 0: only Connections limits them
	JobsPerConnection int // jobs that one connection holds. Defaults to 10,000
	BufferMemory      int // bytes of messages, see quota.Memory; 1 MiB at least. Defaults to 256 MiB
	QueueNames        int // names of queues of the "*" entry that one user's clients use. Defaults to 10,000
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, DefaultConnections)
	l.JobsPerConnection = cmp.Or(l.JobsPerConnection, DefaultJobsPerConnection)
	l.BufferMemory = cmp.Or(l.BufferMemory, DefaultBufferMemory)
	l.QueueNames = cmp.Or(l.QueueNames, DefaultQueueNames)
	return l
}

func (l Limits) validate(bad func(format string, args ...any)) {
	for key, n := range map[string]int{"connections": l.Connections, "jobs_per_connection": l.JobsPerConnection, "queue_names": l.QueueNames} {
		if n < 1 {
			bad("limits.%s: %d is below 1", key, n)
		}
	}
	if l.BufferMemory < 1<<20 {
		bad("limits.buffer_memory: %d bytes is below 1 MiB", l.BufferMemory)
	}
	if l.PerUser < 0 {
		bad("limits.connections_per_user: %d is negative", l.PerUser)
	}
}

const (
	// maxRefusals is how many connections over the limit get an error reply at a time. Others are closed without a
	// reply.
	maxRefusals = 64
	// refuseTimeout is how long such a connection has to send its first bytes, which show its codec.
	refuseTimeout = time.Second
)

// full returns the error for one more connection if a limit is reached, or nil. b.mu is held.
func (b *Bridge) full(who *unixsocket.Peer) *protocol.Error {
	l := b.plan.Load().opts.Limits
	if n := len(b.sessions); n >= l.Connections {
		return protocol.Errorf(protocol.CodeBusy, "the sidecar has %d connections, which is its limit (limits.connections in its config): close some, or let programs share one", n)
	}
	if who != nil && l.PerUser > 0 && b.users[who.UID] >= l.PerUser {
		user := fmt.Sprintf("user %d has", who.UID)
		if !who.IsKnown() {
			user = "all users of other user namespaces together have"
		}
		return protocol.Errorf(protocol.CodeBusy, "%s %d connections, which is the limit (limits.connections_per_user in the sidecar's config): close some, or let programs share one",
			user, b.users[who.UID])
	}
	return nil
}

// refuse sends the error why to a connection over the limit, in the connection's own codec. The caller closes the
// connection.
func (b *Bridge) refuse(conn unixsocket.Conn, who *unixsocket.Peer, why *protocol.Error) {
	b.mu.Lock()
	refusing := b.refusing < maxRefusals && !b.closing
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
	if err := conn.SetDeadline(time.Now().Add(refuseTimeout)); err != nil {
		return // the connection is gone
	}
	r := protocol.NewReader(conn, 64<<10) // any first message will do
	_, codec, err := r.Next()
	if codec = cmp.Or(codec, r.Codec()); codec == 0 && err != nil {
		return
	}
	_, _ = conn.Write(codec.AppendReply(nil, &protocol.Reply{Error: why})) // ignored: the connection can be gone
}
