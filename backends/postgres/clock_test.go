package postgres

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestClockSetBack: a sidecar that died before the server's clock was set back is
// given up no later for it; one that beats by the new clock lives; and one that
// left keeps the time that it left with.
func TestClockSetBack(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		d := newSchemas(t, p.Database(t)).take(t)
		s := d.Backend.(*Store)
		const lease = 10 * time.Second
		pulse := func(b backends.Beat) map[backends.Identity]backends.Peer {
			t.Helper()
			b.Lease = lease
			p, err := s.Beat(t.Context(), b)
			if err != nil || !p.Alive {
				t.Fatalf("%+v, %v", p, err)
			}
			peers := map[backends.Identity]backends.Peer{}
			for _, peer := range p.Peers {
				peers[peer.Host] = peer
			}
			return peers
		}
		const watching, dead, living, left = 1, 2, 3, 4
		for _, host := range []backends.Identity{dead, living, left} {
			pulse(backends.Beat{Host: host, Kind: backends.BeatJoin})
		}
		pulse(backends.Beat{Host: left, Kind: backends.BeatLeave})
		for host, peer := range pulse(backends.Beat{Host: watching, Kind: backends.BeatJoin}) {
			if peer.Expired {
				t.Errorf("host %d has ended before anything happened", host)
			}
		}
		d.Shift(-time.Minute)
		before := pulse(backends.Beat{Host: watching, Kind: backends.BeatRenew})
		if !before[dead].Expired || before[left].Expired {
			t.Errorf("after the jump: %+v", before)
		}
		pulse(backends.Beat{Host: living, Kind: backends.BeatRenew})
		suspects := []backends.Suspect{{Host: left, Beats: before[left].Beats}}
		for _, host := range []backends.Identity{dead, living} {
			suspects = append(suspects, backends.Suspect{Host: host, Beats: before[host].Beats})
		}
		if _, err := s.Sweep(t.Context(), backends.Sweep{Limit: 10, Suspects: suspects}); err != nil {
			t.Fatal(err)
		}
		after := pulse(backends.Beat{Host: watching, Kind: backends.BeatRenew})
		if p, there := after[dead]; there && !p.Dead {
			t.Errorf("the dead one was not given up: %+v", p)
		}
		if p, there := after[living]; !there || p.Dead || p.Expired {
			t.Errorf("the living one: %+v", p)
		}
		if p, there := after[left]; !there || p.Dead || p.Expired {
			t.Errorf("the one that left: %+v", p)
		}
	})
}
