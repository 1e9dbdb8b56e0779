package heartbeat

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
)

// TestNoSuspicionWhileAHeartbeatIsTrusted shows that no peer suspects a sidecar that can still trust its own heartbeat, even if the database's
// clock was set forward and every heartbeat has expired at once: neither a peer that saw its last heartbeat come, nor one that
// begins to watch. The peer's timeout counts, not the own one.
func TestNoSuspicionWhileAHeartbeatIsTrusted(t *testing.T) {
	t.Parallel()
	const its, own = 20 * time.Second, 3 * time.Second
	for _, sawIt := range []bool{true, false} {
		var now time.Duration
		k := Heartbeater{Config: Config{Times: NewTimes(own, 0), Clock: func() time.Duration { return now }}}
		see := func(heartbeats uint64, expired bool) {
			k.watchPeers([]backends.Peer{{Sidecar: 7, Heartbeats: heartbeats, Expired: expired, Timeout: its}}, false)
			k.lastSent = now
		}
		want := its
		if sawIt {
			see(1, false)
		} else {
			want -= timeout(its).headStart()
		}
		if trusted := timeout(its).trusted(); trusted >= want {
			t.Errorf("it trusts its heartbeat for %v, and can be suspect after %v", trusted, want)
		}
		for ; now < want; now += its / 100 {
			see(2, true)
			if s, d := k.Suspects(), k.UntilSuspect(); len(s) > 0 || d != want-now {
				t.Fatalf("saw it: %v: after %v suspects %v, and the next in %v, want none before %v", sawIt, now, s, d, want)
			}
		}
		see(2, true)
		if s := k.Suspects(); len(s) != 1 || s[0] != (backends.Suspect{Sidecar: 7, Heartbeats: 2, Timeout: its}) {
			t.Errorf("saw it: %v: after %v without a heartbeat: suspects %v", sawIt, now, s)
		}
		see(3, true) // it sent a heartbeat, by a clock that was set forward again
		if s := k.Suspects(); len(s) != 0 {
			t.Errorf("saw it: %v: after a new heartbeat: suspects %v", sawIt, s)
		}
	}
}

// TestSidecarThatLeftIsNotWatchedForItsGrace shows that a sidecar that begins to watch frees the jobs of one that left with a
// long restart grace when that is over.
func TestSidecarThatLeftIsNotWatchedForItsGrace(t *testing.T) {
	t.Parallel()
	now := time.Second
	k := Heartbeater{Config: Config{Times: NewTimes(20*time.Second, 0), Clock: func() time.Duration { return now }}}
	left := []backends.Peer{{Sidecar: 7, Heartbeats: 1, Timeout: time.Hour, HasLeft: true, Expired: true}}
	k.watchPeers(left, false)
	if d := k.UntilSuspect(); d <= 0 || d > 20*time.Second {
		t.Errorf("suspect in %v, want within the own timeout", d)
	}
}

// TestWatcherKeepsThePaceOfItsPeers shows that a sidecar that watches sends heartbeats as often as the peer with the shortest
// timeout, and one that others watch only as often as its own timeout needs.
func TestWatcherKeepsThePaceOfItsPeers(t *testing.T) {
	t.Parallel()
	k := Heartbeater{Config: Config{Times: NewTimes(time.Minute, 0), Clock: func() time.Duration { return 0 }}}
	const living, dead, left = 6 * time.Second, 3 * time.Second, 2 * time.Second
	k.watchPeers([]backends.Peer{
		{Sidecar: 7, Timeout: living}, {Sidecar: 8, Timeout: time.Hour}, {Sidecar: 9, Timeout: dead, Dead: true}, {Sidecar: 10, Timeout: left, HasLeft: true},
	}, false)
	if got := k.pause(); got != time.Second {
		t.Errorf("a heartbeat every %v, want %v", got, living/6)
	}
	if k.watched = true; k.pause() != 10*time.Second {
		t.Errorf("a watched sidecar sends a heartbeat every %v, want 10s", k.pause())
	}
}

// TestStallRestartsTheWatch shows that a sidecar that was suspended, or could not send heartbeats, does not declare
// others dead that had the same problem. It starts to watch them again.
func TestStallRestartsTheWatch(t *testing.T) {
	t.Parallel()
	now := time.Second
	k := Heartbeater{Config: Config{Times: NewTimes(20*time.Second, 0), Clock: func() time.Duration { return now },
		Log: slog.New(slog.DiscardHandler), Revived: func() {}, Suspected: func() {}}}
	peers := func(expired bool) []backends.Peer {
		return []backends.Peer{{Sidecar: 7, Heartbeats: 1, Expired: expired, Timeout: k.Times.Timeout()}}
	}
	h := k.Times.sidecarTimeout()
	send := func(expired bool) {
		t.Helper()
		kind := backends.HeartbeatRenew
		if k.identity == 0 {
			kind = backends.HeartbeatJoin
		}
		if !k.recordHeartbeat(backends.Heartbeat{Sidecar: 1, Kind: kind, Timeout: k.Times.Timeout()}, now, backends.HeartbeatResult{Peers: peers(expired)}) {
			t.Fatal("the heartbeat was not recorded")
		}
	}
	send(false)
	now += 2 * k.Times.Timeout() // all are suspended, for longer than the lease period
	send(true)
	if s := k.Suspects(); len(s) != 0 {
		t.Errorf("suspects %v, but no sidecar could send heartbeats", s)
	}
	for began := now; now-began < time.Duration(h); now += h.every() {
		if s := k.Suspects(); len(s) != 0 {
			t.Errorf("%v later: suspects %v", now-began, s)
		}
		send(true)
	}
	if s := k.Suspects(); len(s) != 1 {
		t.Errorf("after a full timeout without a heartbeat: suspects %v", s)
	}
}

// hanging is a database in which one heartbeat gets no answer, as if its connection was cut.
type hanging struct {
	backends.Backend
	sent  int
	hangs int // which heartbeat hangs
}

func (h *hanging) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	if h.sent++; h.sent == h.hangs {
		<-ctx.Done()
		return backends.HeartbeatResult{}, backends.ErrUnknownOutcome
	}
	return h.Backend.Heartbeat(ctx, b)
}

// watched is a database with many sidecars that others watch.
type watched struct {
	backends.Backend
	peers     int
	rows      int // that heartbeats returned
	announced int
}

func (w *watched) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	r, err := w.Backend.Heartbeat(ctx, b)
	r.Watched = true
	for i := range w.peers {
		if b.AllPeers || i < backends.Watchers {
			r.Peers = append(r.Peers, backends.Peer{Sidecar: backends.Identity(i + 1), DepthLeader: b.AllPeers && i == w.peers-1})
		}
	}
	w.rows += len(r.Peers)
	if b.DepthLeader {
		w.announced++
	}
	return r, err
}

// TestWatchedSidecarReadsFewPeers shows that a watched sidecar from which metrics are requested finds the leader among
// all peers, and how many rows it reads for that in an hour, with 100 and with 10,000 peers.
func TestWatchedSidecarReadsFewPeers(t *testing.T) {
	read := func(peers int) int {
		now := time.Second
		db := &watched{Backend: memory.New(), peers: peers}
		k := New(Config{
			Backend: backendref.New(db, nil, nil), Times: NewTimes(30*time.Second, 0), Leases: lease.NewTable(func(map[string]string) (string, string) { return "", "" }),
			Log: slog.New(slog.DiscardHandler), Clock: func() time.Duration { return now }, Revived: func() {},
		})
		for begun := now; now < begun+time.Hour; now += k.Times.sidecarTimeout().every() {
			k.depthLeader.requestedAt.Store(int64(now))
			if err := k.Send(t.Context()); err != nil || !k.Watched() {
				t.Fatal(k.Watched(), err)
			}
		}
		if db.announced > 0 {
			t.Errorf("with %d peers: announced %d times beside a leader", peers, db.announced)
		}
		return db.rows
	}
	few, many := read(100), read(10_000)
	t.Logf("rows read in an hour: %d with 100 peers, %d with 10,000", few, many)
	if many > 2*few {
		t.Error("they grow with the number of peers")
	}
}

// TestHeartbeatOutlastsOneHungConnection shows that a heartbeat that gets no answer delays the next one by so little
// that the one before is still valid.
func TestHeartbeatOutlastsOneHungConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &hanging{Backend: memory.New(), hangs: 3}
		began := time.Now()
		m := metrics.New().Databases.Of("db")
		k := New(Config{
			Backend: backendref.New(db, nil, nil),
			Times:   NewTimes(30*time.Second, 0),
			Leases:  lease.NewTable(func(map[string]string) (string, string) { return "", "" }),
			Metrics: func() *metrics.Database { return m },
			Log:     slog.New(slog.DiscardHandler),
			Clock:   func() time.Duration { return time.Since(began) },
			Revived: func() {},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		synctest.Wait()
		for time.Since(began) < time.Minute {
			time.Sleep(time.Second) // the bubble's clock
			synctest.Wait()
			if k.Fresh() == 0 {
				t.Fatalf("%v after the start: the heartbeat is late (%d sent)", time.Since(began), db.sent)
			}
		}
		if db.sent <= db.hangs {
			t.Errorf("only %d heartbeats were sent", db.sent)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNextIdentityWaitsForTheEndOfTheLast shows that a sidecar whose identity was dropped joins again only when the leases of that
// identity are dropped. Otherwise those of the next one, whose jobs run, would be lost with them.
func TestNextIdentityWaitsForTheEndOfTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, proceed := time.Now(), make(chan struct{})
		m := metrics.New().Databases.Of("db")
		k := New(Config{
			Backend:         backendref.New(memory.New(), nil, nil),
			Times:           NewTimes(30*time.Second, 0),
			Leases:          lease.NewTable(func(map[string]string) (string, string) { return "", "" }),
			Metrics:         func() *metrics.Database { return m },
			Log:             slog.New(slog.DiscardHandler),
			Clock:           func() time.Duration { return time.Since(began) },
			Revived:         func() {},
			Lost:            func(lease.Lost) {},
			IdentityDropped: func() { <-proceed },
		})
		if err := k.Send(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // so that it can join again at once
		go k.DropIdentity(k.Identity())
		synctest.Wait()
		joined := make(chan error, 1)
		go func() { joined <- k.Send(t.Context()) }()
		if synctest.Wait(); k.Identity() != 0 {
			t.Error("it has the next identity while the leases of the last one are being dropped")
		}
		close(proceed)
		if err := <-joined; err != nil || k.Identity() == 0 {
			t.Errorf("afterwards it has no identity: %v", err)
		}
	})
}
