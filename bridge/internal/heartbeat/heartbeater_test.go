package heartbeat

import (
	"log/slog"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestSuspicion shows that no peer suspects a sidecar that can still trust its own heartbeat, even if the database's
// clock was set forward and every lease has expired at once. A dead sidecar is suspected within the lease period.
func TestSuspicion(t *testing.T) {
	t.Parallel()
	var now time.Duration
	k := Heartbeater{Config: Config{Times: NewTimes(20*time.Second, 0), Clock: func() time.Duration { return now }}}
	fresh := k.Times.sidecarTimeout().trusted() - k.Times.sidecarTimeout().margin() // as noteBeat computes it, from before the heartbeat was sent
	look := func(beats uint64, expired bool) {
		k.watchPeers([]backends.Peer{{Host: 7, Heartbeats: beats, Expired: expired}}, false)
	}
	look(1, false)
	for ; now < fresh; now += k.Times.sidecarTimeout().every() / 4 {
		look(1, now > 0)
		if n := len(k.Suspects()); n > 0 {
			t.Fatalf("suspected after %v, and its beat is good for %v by its own clock", now, fresh)
		}
	}
	look(1, true)
	if s := k.Suspects(); len(s) != 1 || s[0] != (backends.Suspect{Host: 7, Heartbeats: 1}) {
		t.Errorf("after %v without a beat: suspects %v", now, s)
	}
	look(2, true) // it sent a heartbeat, by a clock that was set forward again
	if s := k.Suspects(); len(s) != 0 {
		t.Errorf("it beat just now: suspects %v", s)
	}
	if worst := max(k.Times.sidecarTimeout().trusted(), k.Times.sidecarTimeout().every()+k.Times.sidecarTimeout().observe()) + k.Times.sidecarTimeout().every(); worst >= k.Times.Timeout() {
		t.Errorf("a sidecar that dies is given up after %v at worst, want less than the lease period of %v", worst, k.Times.Timeout())
	}
}

// TestStandstill shows that a sidecar that was suspended, or could not send heartbeats, does not declare others dead
// that had the same problem. It starts to watch them again.
func TestStandstill(t *testing.T) {
	t.Parallel()
	now := time.Second
	k := Heartbeater{Config: Config{Times: NewTimes(20*time.Second, 0), Clock: func() time.Duration { return now },
		Log: slog.New(slog.DiscardHandler), Revived: func() {}, Suspected: func() {}}}
	peers := func(expired bool) []backends.Peer { return []backends.Peer{{Host: 7, Heartbeats: 1, Expired: expired}} }
	h := k.Times.sidecarTimeout()
	beat := func(expired bool) {
		t.Helper()
		kind := backends.HeartbeatRenew
		if k.identity == 0 {
			kind = backends.HeartbeatJoin
		}
		if !k.noteBeat(1, kind, now+h.trusted()-h.margin(), false, peers(expired)) {
			t.Fatal("the beat counts for nothing")
		}
	}
	beat(false)
	now += 2 * k.Times.Timeout() // all are suspended, for longer than the lease period
	beat(true)
	if s := k.Suspects(); len(s) != 0 {
		t.Errorf("suspects %v, and nobody could beat", s)
	}
	for began := now; now-began < h.observe(); now += h.every() {
		if s := k.Suspects(); len(s) != 0 {
			t.Errorf("%v later: suspects %v", now-began, s)
		}
		beat(true)
	}
	if s := k.Suspects(); len(s) != 1 {
		t.Errorf("it does not beat, and others can: suspects %v", s)
	}
}
