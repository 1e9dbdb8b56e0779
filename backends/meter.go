package backends

import (
	"sync/atomic"
	"time"
)

// Metered is a Backend that measures its use of the server.
type Metered interface {
	// Usage returns the measurements. It sends nothing to the server.
	Usage() Usage
}

// Usage is what a Backend uses now and has done so far. Its counts never decrease.
type Usage struct {
	// Connections for commits, maintenance and queries. Max 0: the engine has no pool.
	Max, InUse, Idle int
	Waits            uint64        // number of waits for a free connection
	Waited           time.Duration // total duration of these waits

	RoundTrips RoundTrips
	Retries    [len(RetryCauses)]uint64 // transactions that were tried again, by cause

	OldPrimaries uint64 // connections to a primary that another one has replaced, which were refused
}

// RetryCauses are the reasons for retries of transactions, as Usage.Retries counts them.
var RetryCauses = [...]string{RetryConflict: "conflict", RetryCertification: "certification", RetryConnection: "connection", RetryOther: "other"}

// The indexes of RetryCauses.
const (
	RetryConflict      = iota // a deadlock, a serialization failure, or a lock that was not free in time
	RetryCertification        // another node of a cluster changed the same rows first
	RetryConnection           // the connection broke before the commit
	RetryOther
)

// RoundTripBuckets are the upper bounds of RoundTrips.Within.
var RoundTripBuckets = [...]time.Duration{
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// RoundTrips counts round trips to the server. One lasts from sending its statements until all are answered.
type RoundTrips struct {
	Count  uint64
	Sum    time.Duration
	Within [len(RoundTripBuckets)]uint64 // how many took at most this long; each is counted in one bucket only
}

// Meter collects the counts of a Backend. Its zero value is ready to use. Its methods can be called
// concurrently.
type Meter struct {
	count   atomic.Uint64
	sum     atomic.Int64
	within  [len(RoundTripBuckets)]atomic.Uint64
	retries [len(RetryCauses)]atomic.Uint64
	waits   atomic.Uint64
	old     atomic.Uint64
	waited  atomic.Int64
}

// RoundTrip counts a round trip that began at began and ends now.
func (m *Meter) RoundTrip(began time.Time) {
	took := time.Since(began)
	for i, most := range RoundTripBuckets {
		if took <= most {
			m.within[i].Add(1)
			break
		}
	}
	m.sum.Add(int64(took))
	m.count.Add(1)
}

// Retry counts a transaction that is tried again.
func (m *Meter) Retry(cause int) { m.retries[cause].Add(1) }

// OldPrimary counts a refused connection to an old primary.
func (m *Meter) OldPrimary() { m.old.Add(1) }

// Wait counts a wait for a connection that began at began and ends now.
func (m *Meter) Wait(began time.Time) {
	m.waits.Add(1)
	m.waited.Add(int64(time.Since(began)))
}

// Usage returns the counts.
func (m *Meter) Usage() Usage {
	u := Usage{OldPrimaries: m.old.Load(), Waits: m.waits.Load(), Waited: time.Duration(m.waited.Load())}
	for i := range u.Retries {
		u.Retries[i] = m.retries[i].Load()
	}
	for i := range u.RoundTrips.Within { // before the count, so that the count is never less than the sum of Within
		u.RoundTrips.Within[i] = m.within[i].Load()
	}
	u.RoundTrips.Sum, u.RoundTrips.Count = time.Duration(m.sum.Load()), m.count.Load()
	return u
}

// Since returns the difference between u and an earlier Usage. The numbers of connections are 0 in it, because
// they describe the present.
func (u Usage) Since(before Usage) Usage {
	u.Max, u.InUse, u.Idle = 0, 0, 0
	u.Waits -= before.Waits
	u.OldPrimaries -= before.OldPrimaries
	u.Waited -= before.Waited
	u.RoundTrips.Count -= before.RoundTrips.Count
	u.RoundTrips.Sum -= before.RoundTrips.Sum
	for i, n := range before.RoundTrips.Within {
		u.RoundTrips.Within[i] -= n
	}
	for i, n := range before.Retries {
		u.Retries[i] -= n
	}
	return u
}

// Add adds the counts of a Usage, such as that of the Backend used before.
func (u *Usage) Add(before Usage) {
	u.Waits += before.Waits
	u.OldPrimaries += before.OldPrimaries
	u.Waited += before.Waited
	u.RoundTrips.Count += before.RoundTrips.Count
	u.RoundTrips.Sum += before.RoundTrips.Sum
	for i, n := range before.RoundTrips.Within {
		u.RoundTrips.Within[i] += n
	}
	for i, n := range before.Retries {
		u.Retries[i] += n
	}
}
