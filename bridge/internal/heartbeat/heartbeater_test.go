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
// clock was set forward and every lease has expired at once. A dead sidecar is suspected within the lease period.
func TestNoSuspicionWhileAHeartbeatIsTrusted(t *testing.T) {
	t.Parallel()
	var now time.Duration
	k := Heartbeater{Config: Config{Times: NewTimes(20*time.Second, 0), Clock: func() time.Duration { return now }}}
	fresh := k.Times.sidecarTimeout().trusted() - k.Times.sidecarTimeout().margin() // as recordHeartbeat computes it, from before the heartbeat was sent
	observe := func(heartbeats uint64, expired bool) {
		k.watchPeers([]backends.Peer{{Host: 7, Heartbeats: heartbeats, Expired: expired}}, false)
	}
	observe(1, false)
	for ; now < fresh; now += k.Times.sidecarTimeout().every() / 4 {
		observe(1, now > 0)
		if n := len(k.Suspects()); n > 0 {
			t.Fatalf("suspected after %v, but it trusts its heartbeat for %v", now, fresh)
		}
	}
	observe(1, true)
	if s := k.Suspects(); len(s) != 1 || s[0] != (backends.Suspect{Host: 7, Heartbeats: 1}) {
		t.Errorf("after %v without a heartbeat: suspects %v", now, s)
	}
	observe(2, true) // it sent a heartbeat, by a clock that was set forward again
	if s := k.Suspects(); len(s) != 0 {
		t.Errorf("after a new heartbeat: suspects %v", s)
	}
	if worst := max(k.Times.sidecarTimeout().trusted(), k.Times.sidecarTimeout().every()+k.Times.sidecarTimeout().observe()) + k.Times.sidecarTimeout().every(); worst >= k.Times.Timeout() {
		t.Errorf("a sidecar that dies is declared dead after %v at worst, want less than the lease period of %v", worst, k.Times.Timeout())
	}
	// If all watchers die with it, the others find out in a heartbeat, and watch from then on.
	h := k.Times.sidecarTimeout()
	if worst := time.Duration((1-backends.InTime)*float64(h.trusted())) + h.every() + h.observe(); worst >= k.Times.Timeout() {
		t.Errorf("a sidecar that dies with all watchers is declared dead after %v at worst, want less than the lease period of %v", worst, k.Times.Timeout())
	}
	now, k.peers = 0, nil
	observe(3, true)
	if d := k.UntilSuspect(); d != h.observe() {
		t.Errorf("a new watcher's maintenance checks an expired peer in %v, want %v", d, h.observe())
	}
}

// TestStallRestartsTheWatch shows that a sidecar that was suspended, or could not send heartbeats, does not declare
// others dead that had the same problem. It starts to watch them again.
func TestStallRestartsTheWatch(t *testing.T) {
	t.Parallel()
	now := time.Second
	k := Heartbeater{Config: Config{Times: NewTimes(20*time.Second, 0), Clock: func() time.Duration { return now },
		Log: slog.New(slog.DiscardHandler), Revived: func() {}, Suspected: func() {}}}
	peers := func(expired bool) []backends.Peer { return []backends.Peer{{Host: 7, Heartbeats: 1, Expired: expired}} }
	h := k.Times.sidecarTimeout()
	send := func(expired bool) {
		t.Helper()
		kind := backends.HeartbeatRenew
		if k.identity == 0 {
			kind = backends.HeartbeatJoin
		}
		if !k.recordHeartbeat(backends.Heartbeat{Host: 1, Kind: kind}, now+h.trusted()-h.margin(), backends.HeartbeatResult{Peers: peers(expired)}) {
			t.Fatal("the heartbeat was not recorded")
		}
	}
	send(false)
	now += 2 * k.Times.Timeout() // all are suspended, for longer than the lease period
	send(true)
	if s := k.Suspects(); len(s) != 0 {
		t.Errorf("suspects %v, but no sidecar could send heartbeats", s)
	}
	for began := now; now-began < h.observe(); now += h.every() {
		if s := k.Suspects(); len(s) != 0 {
			t.Errorf("%v later: suspects %v", now-began, s)
		}
		send(true)
	}
	if s := k.Suspects(); len(s) != 1 {
		t.Errorf("after a full observation period without a heartbeat: suspects %v", s)
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
			r.Peers = append(r.Peers, backends.Peer{Host: backends.Identity(i + 1), DepthLeader: b.AllPeers && i == w.peers-1})
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
