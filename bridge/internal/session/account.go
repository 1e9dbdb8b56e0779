package session

import (
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// MaxJobs is how many jobs the session can hold.
func (s *Session) MaxJobs() int { return s.shared.Plan().JobsPerConnection }

// TooManyJobs returns the error for a request that would exceed MaxJobs.
func (s *Session) TooManyJobs() error {
	return protocol.Errorf(protocol.CodeBusy, "this connection holds %d jobs, and its limit is %d (limits.jobs_per_connection in the sidecar's config): settle some first",
		s.quota.Jobs.Count(), s.MaxJobs())
}

// MayClaim reports whether the session is allowed to claim from all of the queues.
func (s *Session) MayClaim(queues []string) bool { return s.noClaim(queues) < 0 }

// WakeClaims includes the waiting claims of all databases in the next commits again.
func (s *Session) WakeClaims() {
	for _, db := range s.shared.Plan().Databases {
		db.WakeClaims()
	}
}

// Evict implements quota.Client.
func (s *Session) Evict(receiving bool) {
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
	s.Cut()
	_ = s.conn.SetReadDeadline(time.Now())
}

const (
	// openCost is the approximate memory of an open request, in bytes.
	openCost = 8 << 10
	// minOpen is how many open requests a session can always have, regardless of other sessions.
	minOpen = 16
)

// crowded reports whether the open requests of all sessions use up the memory and this session has more than
// minOpen. Then its next requests are carried out one after another, and claims that wait are refused.
func (s *Session) crowded() bool {
	return len(s.slots) > minOpen && s.shared.Concurrent.Load() >= s.shared.Memory.Max()/openCost
}
