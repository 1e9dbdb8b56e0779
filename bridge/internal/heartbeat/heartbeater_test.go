package heartbeat

import (
	"log/slog"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
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
		if !k.recordHeartbeat(1, kind, now+h.trusted()-h.margin(), false, peers(expired)) {
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
