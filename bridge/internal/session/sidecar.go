package session

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/failurelog"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Sidecar is what a session needs of the sidecar that serves it. Its methods don't block.
type Sidecar interface {
	// Plan returns the current configuration: rights, policies, limits, and the database of each queue. It never changes,
	// and a request keeps the one that it began with.
	Plan() *plan.Plan
	// Stopping returns a context that is done when the sidecar begins to drain.
	Stopping() context.Context
	// Control returns nil if the sidecar has no config to read again.
	Control() Control
	// Status returns the current state of the sidecar, with all of its sessions.
	Status() *protocol.Status
	// ForgetNames starts a query for the names of queues that have no jobs any more.
	ForgetNames()
}

// Control carries out the ops that concern the process. Both methods can take time.
type Control interface {
	// Reload reads the config again. It returns the changes as text for people, or why nothing changed.
	Reload(ctx context.Context) (changes []string, why string, err error)
	// Report returns the reply to the ops config and check.
	Report(ctx context.Context, op protocol.Op) (*protocol.Reply, error)
}

// Shared is what the sessions of a sidecar share.
type Shared struct {
	Sidecar
	Log     *slog.Logger
	Memory  quota.Memory
	Events  jobevents.Hub
	Names   quota.QueueNames // of auto-created queues
	rejects quota.RejectLimiter
	failed  failurelog.Log

	Concurrent atomic.Int64 // requests of all sessions that their readers do not wait for
}

// RejectDelay returns how long to delay the end of a connection that was refused, or that sent so many bytes in vain.
func (s *Shared) RejectDelay(who *unixsocket.Peer, bytes int) time.Duration {
	if who == nil {
		return 0
	}
	return s.rejects.Delay(who.UID, bytes)
}
