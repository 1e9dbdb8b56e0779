package bridge

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// fleetTimeout bounds how long a request waits for a heartbeat that reads the sidecars.
const fleetTimeout = 5 * time.Second

// fleet lists the sidecars of all databases. A database that can't be read is left out if another one can.
func (s *session) fleet() finisher {
	p := s.bridge.plan.Load()
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := s.untilGone(protocol.OpFleet, fleetTimeout)
		defer cancel()
		all := []protocol.Sidecar{}
		var errs error
		for _, db := range p.databases {
			peers, age, err := db.Fleet(ctx)
			errs = errors.Join(errs, err)
			name, self := p.nameOf(db), db.Identity()
			for i := range peers {
				all = append(all, wirejob.FromPeer(name, &peers[i], age, self))
			}
		}
		if len(all) == 0 && errs != nil {
			return s.failure(errs), nil
		}
		slices.SortFunc(all, func(a, b protocol.Sidecar) int {
			return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Sidecar, b.Sidecar))
		})
		reply := &protocol.Reply{Sidecars: all}
		s.replyLimit().FitReport(reply)
		return reply, nil
	})}
}
