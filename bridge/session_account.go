package bridge

import (
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// MaxJobs is how many jobs the session can hold.
func (s *session) MaxJobs() int { return s.bridge.plan.Load().opts.Limits.JobsPerConnection }

// TooManyJobs returns the error for a request that would exceed MaxJobs.
func (s *session) TooManyJobs() error {
	return protocol.Errorf(protocol.CodeBusy, "this connection holds %d jobs, and its limit is %d (limits.jobs_per_connection in the sidecar's config): settle some first",
		s.quota.Jobs.Count(), s.MaxJobs())
}

// MayClaim reports whether the session is allowed to claim from all of the queues.
func (s *session) MayClaim(queues []string) bool { return s.noClaim(queues) < 0 }

// WakeClaims includes the waiting claims of all databases in the next commits again.
func (s *session) WakeClaims() {
	for _, b := range s.bridge.plan.Load().databases {
		b.WakeClaims()
	}
}

const (
	// openCost is the approximate memory of an open request, in bytes.
	openCost = 8 << 10
	// minOpen is how many open requests a session can always have, regardless of other sessions.
	minOpen = 16
)

// crowded reports whether the open requests of all sessions use up the memory and this session has more than
// minOpen. Then its next requests are carried out one after another, and claims that wait are refused.
func (s *session) crowded() bool {
	return len(s.slots) > minOpen && s.bridge.concurrent.Load() >= s.bridge.memory.Max()/openCost
}

// Evict implements quota.Client.
func (s *session) Evict(receiving bool) {
	s.evicted.Store(true)
	if s.conn == nil {
		return
	}
	if receiving {
		if s.quota.Blocked.Load() {
			s.hangUp(errStalled) // ends the wait of its claim
		}
		_ = s.conn.SetReadDeadline(time.Now()) // the reader then sends the reason; an error means that the connection is gone
		return
	}
	s.log().Warn("stalled client disconnected", "event", "client_stalled", "limit", "limits.buffer_memory")
	s.cut()
	_ = s.conn.SetReadDeadline(time.Now())
}

// resized reserves memory for the reader's buffer.
func (s *session) resized(size int) error {
	if err := s.bridge.memory.Receive(&s.quota, s.gone.Done(), size); err != nil {
		return busyMemory(err)
	}
	return nil
}

// busyMemory returns the reply for a request that got no memory.
func busyMemory(err error) *protocol.Error { return protocol.Errorf(protocol.CodeBusy, "%v", err) }
