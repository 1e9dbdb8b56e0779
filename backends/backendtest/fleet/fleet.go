// Package fleet checks how many sidecars of one database share the work of watching each other.
package fleet

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
)

const (
	// first and last have the smallest and the largest identity: databases compare them as signed numbers.
	first   backends.Identity = 1 << 63
	last    backends.Identity = 1000
	timeout                   = 30 * time.Second
)

// Check checks what HeartbeatResult.Watched and Maintenance.Watched promise. take returns an empty database for a test.
func Check(t *testing.T, take func(t *testing.T) *backendtest.Database) {
	for name, test := range map[string]func(d *db){
		"FewWatchAll": fewWatchAll, "ClockSetBackEndsWatches": clockSetBackEndsWatches, "WatchedSidecarDoesItsOwnWork": watchedSidecarDoesItsOwnWork,
	} {
		t.Run(name, func(t *testing.T) { test(&db{t, take(t)}) })
	}
}

type db struct {
	*testing.T
	*backendtest.Database
}

func (d *db) heartbeat(b backends.Heartbeat) backends.HeartbeatResult {
	d.Helper()
	b.Name, b.Timeout = "sidecar", timeout
	r, err := d.Heartbeat(d.Context(), b)
	if err != nil || !r.Alive {
		d.Fatalf("heartbeat %+v: %+v, %v", b, r, err)
	}
	return r
}

func (d *db) join(first backends.Identity, n int) {
	d.Helper()
	for i := range n {
		d.heartbeat(backends.Heartbeat{Sidecar: first + backends.Identity(i), Kind: backends.HeartbeatJoin})
	}
}

// wantPeers checks how many peers a heartbeat of last returns.
func (d *db) wantPeers(all, watched bool, want int) {
	d.Helper()
	r := d.heartbeat(backends.Heartbeat{Sidecar: last, Kind: backends.HeartbeatRenew, AllPeers: all})
	if r.Watched != watched || len(r.Peers) != want {
		d.Errorf("watched is %v and %d peers are listed, want %v and %d", r.Watched, len(r.Peers), watched, want)
	}
}

func fewWatchAll(d *db) {
	d.join(first, 1)
	d.join(last, 1)
	d.join(100, backends.Watchers-2) // one watcher is missing
	d.wantPeers(false, false, backends.Watchers-1)
	d.join(200, 5)
	const others = backends.Watchers + 4
	d.wantPeers(false, true, backends.Watchers)
	d.wantPeers(true, true, others)
	if r := d.heartbeat(backends.Heartbeat{Sidecar: first, Kind: backends.HeartbeatRenew}); r.Watched || len(r.Peers) != others {
		d.Errorf("a watcher is watched: %v, and sees %d peers", r.Watched, len(r.Peers))
	}
	d.heartbeat(backends.Heartbeat{Sidecar: first, Kind: backends.HeartbeatLeave})
	d.wantPeers(false, true, backends.Watchers+1) // also the one that left, which does not watch
	d.AdvanceClock(timeout*(100-100*backends.InTime)/100 - time.Second)
	d.wantPeers(false, true, backends.Watchers+1)
	d.AdvanceClock(2 * time.Second)
	d.wantPeers(false, false, others) // all others are late
}

// A stopped watcher must not seem to be in time until the clock has caught up.
func clockSetBackEndsWatches(d *db) {
	d.join(last, 1)
	d.join(100, backends.Watchers)
	d.wantPeers(false, true, backends.Watchers)
	d.AdvanceClock(-2 * timeout)
	d.wantPeers(false, false, backends.Watchers)
}

func watchedSidecarDoesItsOwnWork(d *db) {
	d.join(last, 1)
	number := uint64(0)
	commit := func(b backends.CommitContent) backends.Results {
		d.Helper()
		r, err := d.Commit(d.Context(), b)
		if err != nil {
			d.Fatal(err)
		}
		return r
	}
	claim := func(lease time.Duration) backends.Lease {
		d.Helper()
		number++
		jobs := commit(backends.CommitContent{Sidecar: last, Claims: []backends.Claim{{
			Queues: []backends.Policy{{Queue: "q", MaxAttempts: 3}}, Slots: []backends.Slot{{Token: backends.Token{Sidecar: last, Number: number}, Lease: lease}}, MaxBytes: 1000, MaxPayload: 1000,
		}}}).Claims[0].Jobs
		if len(jobs) != 1 {
			d.Fatalf("claimed %d jobs", len(jobs))
		}
		return backends.Lease{Job: jobs[0].ID, Token: jobs[0].Token}
	}
	commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}, {Queue: "q"}, {Queue: "p", Delay: time.Minute}}}}})
	commit(backends.CommitContent{Writes: []backends.Write{backends.Extend{Leases: []backends.Lease{claim(0)}, Bind: 99}}})
	claim(time.Minute)
	d.AdvanceClock(time.Hour)
	maintain := func(watched bool) backends.MaintenanceResult {
		d.Helper()
		r, err := d.Maintain(d.Context(), backends.Maintenance{Sidecar: last, Watched: watched, Waiting: []string{"p"}, Limit: 10})
		if err != nil {
			d.Fatal(err)
		}
		return r
	}
	if r := maintain(true); r.Promoted != 1 || !slices.Equal(r.Ready, []string{"p"}) || r.Reaped[backends.CauseLeaseEnded] != 1 || r.Reaped[backends.CauseSidecarLost] != 0 {
		d.Errorf("a watched sidecar did %+v, want its own work", r)
	}
	if r := maintain(false); r.Reaped[backends.CauseSidecarLost] != 1 {
		d.Errorf("a watcher did %+v, want the job of an unknown owner reaped", r)
	}
}
