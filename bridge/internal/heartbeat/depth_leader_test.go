package heartbeat

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
)

// TestNeverTwoReaders runs sidecars that send heartbeats in any order. Heartbeats can see each other or, if they are
// sent at the same time, not. Sidecars can die or be late.
func TestNeverTwoReaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type side struct {
			depthLeader
			id     backends.Identity
			wants  bool
			lapsed bool
			row    backends.Peer // as the others see it
		}
		var all []*side
		for i := range rapid.IntRange(2, 4).Draw(t, "sidecars") {
			all = append(all, &side{id: backends.Identity(i + 1), wants: true})
		}
		seen := func(x *side) (peers []backends.Peer) {
			for _, o := range all {
				if o != x {
					peers = append(peers, o.row)
				}
			}
			return peers
		}
		alone := func() {
			n := 0
			for _, x := range all {
				if x.role == leading && !x.row.Expired { // an expired leader has stopped already, as its own clock is stricter
					n++
				}
			}
			if n > 1 {
				t.Fatalf("%d read", n)
			}
		}
		beat := func(together ...*side) { // none sees what the others announce in this step
			shown := make([][]backends.Peer, len(together))
			says := make([]bool, len(together))
			for i, x := range together {
				shown[i], says[i] = seen(x), x.role != following
			}
			for i, x := range together {
				x.row = backends.Peer{Host: x.id, DepthLeader: says[i]}
			}
			for i, x := range together {
				x.wantedAt.Store(0)
				if x.wants {
					x.wantedAt.Store(1)
				}
				x.update(x.id, says[i], x.lapsed, shown[i], 2)
				x.lapsed = false
			}
			alone()
		}
		pick := func(what string) *side { return all[rapid.IntRange(0, len(all)-1).Draw(t, what)] }
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				beat(pick("one"))
			case 2:
				if x, y := pick("one"), pick("other"); x != y {
					beat(x, y)
				}
			case 3:
				x := pick("late")
				x.row.Expired, x.lapsed = true, true
			case 4:
				x := pick("asked")
				x.wants = !x.wants
			case 5:
				beat(all...)
			}
		}
		// If metrics are requested everywhere, and no heartbeat is late any more, one sidecar reads soon.
		for _, x := range all {
			x.wants = true
		}
		for range 6 {
			for _, x := range all {
				beat(x)
			}
		}
		n := 0
		for _, x := range all {
			if x.role == leading {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%d read in the end, want 1", n)
		}
	})
}
