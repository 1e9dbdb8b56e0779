package bridge

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestSuspicion: whoever watches does not suspect a sidecar that may still trust
// its own beat, also where the database's clock was set forward and every end has
// passed at once; and a dead one is suspected within the lease period.
func TestSuspicion(t *testing.T) {
	t.Parallel()
	var now time.Duration
	k := keeper{times: newLeaseTimes(Database{HostLease: 20 * time.Second}), clock: func() time.Duration { return now }}
	fresh := k.times.lease().trusted() - k.times.lease().margin() // as beaten says, after its beat was asked for
	look := func(beats uint64, expired bool) {
		k.watch([]backends.Peer{{Host: 7, Beats: beats, Expired: expired}})
	}
	look(1, false)
	for ; now < fresh; now += k.times.lease().every() / 4 {
		look(1, now > 0)
		if n := len(k.suspects()); n > 0 {
			t.Fatalf("suspected after %v, and its beat is good for %v by its own clock", now, fresh)
		}
	}
	look(1, true)
	if s := k.suspects(); len(s) != 1 || s[0] != (backends.Suspect{Host: 7, Beats: 1}) {
		t.Errorf("after %v without a beat: suspects %v", now, s)
	}
	look(2, true) // it beat, by a clock that was set forward again
	if s := k.suspects(); len(s) != 0 {
		t.Errorf("it beat just now: suspects %v", s)
	}
	if worst := max(k.times.lease().trusted(), k.times.lease().every()+k.times.lease().observe()) + k.times.lease().every(); worst >= k.times.patience() {
		t.Errorf("a sidecar that dies is given up after %v at worst, want less than the lease period of %v", worst, k.times.patience())
	}
}
