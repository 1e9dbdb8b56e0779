package bridge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// member is the connection of one sidecar to a database that several share.
type member struct {
	faulty
	watchers int          // how many sidecars watch all, as engines for large fleets do it; 0: all do
	last     atomic.Int64 // time of the last heartbeat that reached the database
	reaped   atomic.Int64 // when this sidecar freed a job of a dead one; 0: never
	stopped  atomic.Bool  // it can't reach the database
}

func (m *member) cut() {
	m.heartbeat.Store(&errDown)
	m.commit.Store(&errDown)
	m.stopped.Store(true)
}

func (m *member) mend() {
	m.heartbeat.Store(nil)
	m.commit.Store(nil)
	m.stopped.Store(false)
}

func (m *member) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	r, err := m.faulty.Heartbeat(ctx, b)
	if err != nil {
		return r, err
	}
	m.last.Store(time.Now().UnixNano())
	if m.watchers == 0 {
		return r, nil
	}
	slices.SortFunc(r.Peers, func(a, b backends.Peer) int { return cmp.Compare(a.Sidecar, b.Sidecar) })
	n := 0
	for i, p := range r.Peers {
		if p.Sidecar < b.Sidecar && !p.Dead && !p.HasLeft && p.Left >= time.Duration(backends.InTime*float64(p.Timeout)) {
			n++
		}
		if r.Watched = n == m.watchers; r.Watched {
			if !b.AllPeers {
				r.Peers = r.Peers[:i+1]
			}
			break
		}
	}
	return r, nil
}

func (m *member) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	if m.stopped.Load() {
		return backends.MaintenanceResult{}, errDown
	}
	r, err := m.faulty.Maintain(ctx, w)
	if r.Reaped[backends.CauseSidecarLost] > 0 {
		m.reaped.Store(time.Now().UnixNano())
	}
	return r, err
}

// startMember starts a sidecar of the database.
func startMember(t *testing.T, db *memory.Backend, timeout time.Duration, watchers int) (*member, *sidecar) {
	t.Helper()
	m := &member{watchers: watchers}
	m.Backend = db
	o := options(m)
	o.Databases["main"] = Database{Backend: m, SidecarTimeout: timeout}
	s := start(t, o)
	t.Cleanup(m.mend) // so that it can stop
	return m, s
}

// pass lets the bubble's clock go on.
func pass(d time.Duration) { time.Sleep(d) }

// phasesOf returns how many phases of a heartbeat a test tries. An hour of the bubble's clock takes seconds.
func phasesOf(timeout time.Duration) int {
	if timeout == MaxSidecarTimeout {
		return 2
	}
	return 5
}

// wantFreed waits until one of the others frees the job of a sidecar whose last heartbeat was at last.
func wantFreed(t *testing.T, what string, last int64, timeout time.Duration, others ...*member) {
	t.Helper()
	for {
		for _, m := range others {
			if at := m.reaped.Load(); at > 0 {
				if took := time.Duration(at - last); took < timeout || took > timeout*4/3 {
					t.Errorf("%s: its job was free %v after its last heartbeat, want from %v to %v", what, took, timeout, timeout*4/3)
				}
				return
			}
		}
		if took := time.Duration(time.Now().UnixNano() - last); took > 2*timeout {
			t.Errorf("%s: its job is not free %v after its last heartbeat, want from %v to %v", what, took, timeout, timeout*4/3)
			return
		}
		pass(timeout / 200)
	}
}

// TestLeasesOutlastTheSidecarTimeout shows that the jobs of a sidecar that stops are free after its sidecar_timeout, at most a
// third later and not before: for all lengths, at each phase of its own heartbeats and of the other sidecar's, and if
// the other one has another sidecar_timeout.
func TestLeasesOutlastTheSidecarTimeout(t *testing.T) {
	for _, timeout := range []struct{ its, other time.Duration }{
		{MinSidecarTimeout, MinSidecarTimeout},
		{1700 * time.Millisecond, 1700 * time.Millisecond},
		{DefaultSidecarTimeout, DefaultSidecarTimeout},
		{MaxSidecarTimeout, MaxSidecarTimeout},
		{DefaultSidecarTimeout, 2 * time.Second},
		{2 * time.Second, DefaultSidecarTimeout},
		{MinSidecarTimeout, MaxSidecarTimeout},
	} {
		steps := phasesOf(max(timeout.its, timeout.other))
		for stops := range steps {
			for begins := range steps {
				synctest.Test(t, func(t *testing.T) {
					db := memory.New()
					m1, s1 := startMember(t, db, timeout.its, 0)
					phase := timeout.its / 6 / time.Duration(steps)
					pass(time.Duration(begins)*phase + 1)
					m2, _ := startMember(t, db, timeout.other, 0)
					pass(timeout.its + timeout.other)
					store(t, db, "q")
					s1.dial(t).claim1("q")
					for at := m1.last.Load(); m1.last.Load() == at; {
						pass(phase / 100)
					}
					pass(time.Duration(stops) * phase)
					m1.cut()
					wantFreed(t, fmt.Sprintf("%v beside %v, phases %d and %d", timeout.its, timeout.other, stops, begins), m1.last.Load(), timeout.its, m2)
				})
			}
		}
	}
}

// TestLeasesOutlastTheSidecarTimeoutInALargeFleet shows the same if only some sidecars watch the others, while those live
// and if all of them stop at the same moment.
func TestLeasesOutlastTheSidecarTimeoutInALargeFleet(t *testing.T) {
	for _, watchersStop := range []bool{false, true} {
		for _, timeout := range []time.Duration{MinSidecarTimeout, DefaultSidecarTimeout} {
			for phase := range 8 {
				synctest.Test(t, func(t *testing.T) {
					const watchers, all = 3, 20
					db := memory.New()
					var members []*member
					var sidecars []*sidecar
					for range all {
						m, s := startMember(t, db, timeout, watchers)
						members, sidecars = append(members, m), append(sidecars, s)
						pass(timeout / 6 / 7)
					}
					pass(2*timeout + time.Duration(phase)*timeout/6/8)
					order := make([]int, all)
					for i := range order {
						order[i] = i
					}
					slices.SortFunc(order, func(a, b int) int { return cmp.Compare(members[a].host.Load(), members[b].host.Load()) })
					stops := order[all-1-phase] // it watches no other
					store(t, db, "q")
					sidecars[stops].dial(t).claim1("q")
					members[stops].cut()
					if watchersStop {
						for _, i := range order[:watchers] {
							members[i].cut()
						}
					}
					what := fmt.Sprintf("%v, watchers stop too: %v, phase %d", timeout, watchersStop, phase)
					wantFreed(t, what, members[stops].last.Load(), timeout, members...)
				})
			}
		}
	}
}

// TestSidecarThatReturnsInTimeKeepsItsLeases shows a sidecar that can't reach the database, or is suspended, until shortly before
// its sidecar_timeout is over, beside another one that watches it.
func TestSidecarThatReturnsInTimeKeepsItsLeases(t *testing.T) {
	for _, timeout := range []time.Duration{MinSidecarTimeout, DefaultSidecarTimeout, MaxSidecarTimeout} {
		for phase := range phasesOf(timeout) {
			synctest.Test(t, func(t *testing.T) {
				db := memory.New()
				m1, s1 := startMember(t, db, timeout, 0)
				pass(time.Duration(phase) * timeout / 6 / 5)
				m2, _ := startMember(t, db, timeout, 0)
				pass(2 * timeout)
				store(t, db, "q")
				c := s1.dial(t)
				j := c.claim1("q")
				last, identity := m1.last.Load(), m1.host.Load()
				m1.heartbeat.Store(&errDown)
				retry := min(timeout/6/4, time.Second) + time.Millisecond // the next heartbeat follows within that time
				pass(time.Until(time.Unix(0, last).Add(timeout - retry)))
				m1.heartbeat.Store(nil)
				pass(2 * timeout)
				if now := m1.host.Load(); now != identity {
					t.Errorf("%v, phase %d: it was evicted", timeout, phase)
				}
				c.call(`{"op":"ack","lease":%q}`, j.Lease)
				if m2.reaped.Load() != 0 {
					t.Errorf("%v, phase %d: its job was freed %v after its last heartbeat", timeout, phase, time.Duration(m2.reaped.Load()-last))
				}
			})
		}
	}
}

// TestOutageEvictsNoSidecar shows that no sidecar is declared dead because an outage of the database delayed its heartbeats, also if the one that
// watches has another sidecar_timeout, so that the outage is short for it.
func TestOutageEvictsNoSidecar(t *testing.T) {
	for _, timeout := range []struct{ its, other time.Duration }{
		{2 * time.Second, 2 * time.Second},
		{2 * time.Second, DefaultSidecarTimeout},
		{DefaultSidecarTimeout, 2 * time.Second},
		{MinSidecarTimeout, MaxSidecarTimeout},
	} {
		for phase := range 5 {
			for _, outage := range []time.Duration{timeout.its * 8 / 10, timeout.its * 3 / 2, timeout.its * 3} {
				synctest.Test(t, func(t *testing.T) {
					db := memory.New()
					m1, s1 := startMember(t, db, timeout.its, 0)
					pass(time.Duration(phase) * timeout.its / 6 / 5)
					m2, _ := startMember(t, db, timeout.other, 0)
					pass(2 * min(timeout.its, timeout.other))
					store(t, db, "q")
					c := s1.dial(t)
					j := c.claim1("q")
					identity := m1.host.Load()
					m1.cut()
					m2.cut()
					pass(outage)
					m2.mend()
					pass(timeout.its / 2) // the other one can be so much earlier
					m1.mend()
					pass(2 * timeout.its)
					what := fmt.Sprintf("%v beside %v, phase %d, an outage of %v", timeout.its, timeout.other, phase, outage)
					if now := m1.host.Load(); now != identity {
						t.Errorf("%s: it was evicted", what)
						return
					}
					c.call(`{"op":"ack","lease":%q}`, j.Lease)
				})
			}
		}
	}
}
