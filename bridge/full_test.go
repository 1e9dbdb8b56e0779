package bridge

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// roomless is a backend whose disk is too full for a job's payload, and which refuses the whole commit.
type roomless struct{ faulty }

func (r *roomless) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	if r.block.Load() == nil {
		for _, w := range b.Writes {
			if e, ok := w.(backends.Enqueue); ok && len(e.Jobs[0].Payload) > 0 {
				return backends.Results{}, backends.DiskFull(errors.New("no space left"))
			}
		}
	}
	return r.faulty.Commit(ctx, b)
}

// TestFullDiskHurtsOnlyWhatNeedsRoom shows that jobs that the disk has no space for are unavailable. The other
// members of their commit, and requests that arrive while they are tried again, are carried out.
func TestFullDiskHurtsOnlyWhatNeedsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &roomless{faulty{Backend: memory.New()}}
		s := start(t, options(db))
		c := s.dial(t)
		var leases []string
		for range 16 {
			c.call(`{"op":"enqueue","queue":"q"}`)
			leases = append(leases, c.claim1("q").Lease)
		}
		gate := make(chan struct{})
		db.block.Store(&gate)
		c.send(`{"op":"enqueue","queue":"first","id":100}`) // its commit delays the others
		eventually(t, func() bool { return db.blocked.Load() == 1 })
		for i, lease := range leases {
			c.send(`{"op":"enqueue","queue":"out","payload":"big","id":%d}`, 2*i)
			c.send(`{"op":"ack","lease":%q,"id":%d}`, lease, 2*i+1)
		}
		eventually(t, func() bool {
			return s.pipeline().Snapshot().QueuedWrites >= 2*len(leases)
		})
		db.block.Store(nil)
		close(gate)
		for n := range 2*len(leases) + 1 {
			r := c.receive()
			id := r.ID.(float64)
			switch big := id != 100 && int(id)%2 == 0; {
			case big && (r.OK || r.Error.Code != "unavailable"):
				t.Errorf("request %v, which needs room: ok=%v %+v", id, r.OK, r.Error)
			case !big && !r.OK:
				t.Errorf("request %v, which needs no room: %+v", id, r.Error)
			case big && n < len(leases):
				t.Errorf("request %v, which needs room, was answered before those that need none", id)
			}
		}
	})
}
