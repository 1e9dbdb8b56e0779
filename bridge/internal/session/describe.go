package session

import (
	"cmp"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/protocol"
)

// Describe returns the session for the status of the sidecar, with its leases in the plan's databases.
func (s *Session) Describe(p *plan.Plan) protocol.SessionStatus {
	st := protocol.SessionStatus{Session: s.id, Socket: s.Socket, AgeMS: time.Since(s.began).Milliseconds(),
		Waiting: s.waiting.Load(), Open: int64(len(s.slots))}
	s.mu.Lock()
	st.Worker = s.worker
	s.mu.Unlock()
	if s.Peer != nil && s.Peer.IsKnown() {
		st.UID = protocol.Some(int64(s.Peer.UID))
	}
	if s.Peer != nil && s.Peer.PID != 0 {
		st.PID = protocol.Some(int64(s.Peer.PID))
	}
	now := time.Now()
	for _, db := range p.Databases {
		for _, h := range db.HeldBy(&s.quota, now) {
			st.Queues = append(st.Queues, protocol.QueueLeases{Queue: h.Queue, Leases: h.Jobs, OldestJob: h.Oldest, OldestLeaseMS: h.Age.Milliseconds()})
		}
	}
	slices.SortFunc(st.Queues, func(a, b protocol.QueueLeases) int {
		return cmp.Or(cmp.Compare(b.OldestLeaseMS, a.OldestLeaseMS), cmp.Compare(a.Queue, b.Queue))
	})
	for _, l := range st.Queues {
		st.Leases += l.Leases
		st.OldestLeaseMS = max(st.OldestLeaseMS, l.OldestLeaseMS)
	}
	st.Queues = slices.Clip(st.Queues[:min(len(st.Queues), protocol.MaxSessionQueues)])
	return st
}

// Busy reports whether the client waits for a reply, other than that of a watch.
func (s *Session) Busy() bool { return len(s.slots) > s.watch.waiting() }
