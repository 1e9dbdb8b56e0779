package bridge

import (
	"sync/atomic"
	"time"
)

// leaseTimes are a database's host lease and restart grace, which a reload may change.
type leaseTimes struct{ host, grace atomic.Int64 }

func newLeaseTimes(timeout, grace time.Duration) *leaseTimes {
	t := &leaseTimes{}
	t.set(timeout, grace)
	return t
}

func (t *leaseTimes) set(timeout, grace time.Duration) {
	t.host.Store(int64(timeout))
	t.grace.Store(int64(grace))
}

func (t *leaseTimes) lease() hostLease        { return hostLease(t.host.Load()) }
func (t *leaseTimes) patience() time.Duration { return time.Duration(t.host.Load()) }
func (t *leaseTimes) restart() time.Duration  { return time.Duration(t.grace.Load()) }

// hostLease is H, and what follows from it.
type hostLease time.Duration

func (h hostLease) every() time.Duration   { return time.Duration(h) / 6 }
func (h hostLease) trusted() time.Duration { return time.Duration(h) * 13 / 20 }
func (h hostLease) observe() time.Duration { return h.trusted() - h.margin() }

// margin is how much earlier than the database the sidecar stops trusting its
// own beat.
func (h hostLease) margin() time.Duration { return time.Duration(h) / 20 }

// answer is how long the database may take for one of the keeper's questions.
func (h hostLease) answer() time.Duration { return time.Duration(h) / 2 }
