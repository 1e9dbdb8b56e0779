package heartbeat

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
)

// TestAtMostOneDepthLeader runs sidecars that send heartbeats in any order. Heartbeats can see each other or, if they are
// sent at the same time, not. Sidecars can die or be late.
func TestAtMostOneDepthLeader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type side struct {
			depthLeader
			id      backends.Identity
			scraped bool
			lapsed  bool
			row     backends.Peer // as the others see it
		}
		var all []*side
		for i := range rapid.IntRange(2, 4).Draw(t, "sidecars") {
			all = append(all, &side{id: backends.Identity(i + 1), scraped: true})
		}
		peersOf := func(x *side) (peers []backends.Peer) {
			for _, o := range all {
				if o != x {
					peers = append(peers, o.row)
				}
			}
			return peers
		}
		atMostOne := func() {
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
		send := func(together ...*side) { // none sees what the others announce in this step
			visible := make([][]backends.Peer, len(together))
			announces := make([]bool, len(together))
			for i, x := range together {
				visible[i], announces[i] = peersOf(x), x.role != following
			}
			for i, x := range together {
				x.row = backends.Peer{Sidecar: x.id, DepthLeader: announces[i]}
			}
			for i, x := range together {
				x.requestedAt.Store(0)
				if x.scraped {
					x.requestedAt.Store(1)
				}
				x.update(x.id, announces[i], x.lapsed, visible[i], 2)
				x.lapsed = false
			}
			atMostOne()
		}
		pick := func(what string) *side { return all[rapid.IntRange(0, len(all)-1).Draw(t, what)] }
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				send(pick("one"))
			case 2:
				if x, y := pick("one"), pick("other"); x != y {
					send(x, y)
				}
			case 3:
				x := pick("late")
				x.row.Expired, x.lapsed = true, true
			case 4:
				x := pick("asked")
				x.scraped = !x.scraped
			case 5:
				send(all...)
			}
		}
		// If metrics are requested everywhere, and no heartbeat is late any more, one sidecar reads soon.
		for _, x := range all {
			x.scraped = true
		}
		for range 6 {
			for _, x := range all {
				send(x)
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
