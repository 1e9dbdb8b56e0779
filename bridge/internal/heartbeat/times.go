package heartbeat

import (
	"sync/atomic"
	"time"
)

// Times are the sidecar timeout and the restart grace of a database, which a reload can change.
type Times struct{ host, grace atomic.Int64 }

// NewTimes returns times with these values.
func NewTimes(timeout, grace time.Duration) *Times {
	t := &Times{}
	t.Set(timeout, grace)
	return t
}

// Set changes both.
func (t *Times) Set(timeout, grace time.Duration) {
	t.host.Store(int64(timeout))
	t.grace.Store(int64(grace))
}

func (t *Times) sidecarTimeout() timeout { return timeout(t.host.Load()) }

// Timeout returns the sidecar timeout. It also bounds other things that must not outlast the trust of other sidecars in this one,
// or that have no better limit: one commit, a session's wait for its settle, the wait for memory for a write, and a query of an
// operator. A quarter of it bounds a heartbeat, and the last one before a hand-out.
func (t *Times) Timeout() time.Duration { return time.Duration(t.host.Load()) }

// RestartGrace returns how long the leases of sessions outlive an orderly exit.
func (t *Times) RestartGrace() time.Duration { return time.Duration(t.grace.Load()) }

// timeout is H, the sidecar timeout, and computes the times that follow from it.
type timeout time.Duration

func (t timeout) every() time.Duration { return time.Duration(t) / 6 }

// trusted is for how long a sidecar trusts a heartbeat, from when it was sent.
func (t timeout) trusted() time.Duration { return time.Duration(t) * 13 / 20 }

// headStart is how long a peer counts as watched when it is first seen. The rest of H is longer than trusted.
func (t timeout) headStart() time.Duration { return time.Duration(t) * 3 / 10 }

// answer is the timeout of a heartbeat. If one connection hangs, the heartbeat before is still trusted when the
// next attempt, on another connection, gets its answer, even if its comparison took as long as it can: H/6 + H/6 + H/4 and a pause of H/24
// are below 13/20 H.
func (t timeout) answer() time.Duration { return time.Duration(t) / 4 }

// comparing is the timeout of all queries that compare the claimed rows after a heartbeat.
func (t timeout) comparing() time.Duration { return time.Duration(t) / 6 }
