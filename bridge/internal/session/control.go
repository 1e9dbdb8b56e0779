package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// reloadTimeout bounds how long a request to reload waits. Reload connects to new databases first.
	reloadTimeout = time.Minute

	// fleetTimeout bounds how long a request waits for a heartbeat that reads the sidecars.
	fleetTimeout = 5 * time.Second
)

// reloadConfig reads the config again.
func (s *Session) reloadConfig() finisher {
	c := s.shared.Control()
	if c == nil {
		return fail(protocol.Errorf(protocol.CodeUnsupported, "this sidecar has no config to read again"))
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := context.WithTimeoutCause(s.shared.Stopping(), reloadTimeout, fmt.Errorf("reload: not done within %v", reloadTimeout))
		defer cancel()
		changes, why, err := c.Reload(ctx)
		if err != nil && errors.Is(ctx.Err(), context.Canceled) {
			return &protocol.Reply{Error: protocol.Errorf(protocol.CodeDraining, "the config was not reloaded: the sidecar is stopping")}, nil
		}
		if err != nil {
			return &protocol.Reply{Error: protocol.Errorf(protocol.CodeBadRequest, "the config was not reloaded, what ran before goes on: %s", s.replyLimit().FitText(err.Error()))}, nil
		}
		return &protocol.Reply{Changes: s.replyLimit().FitChanges(changes), Why: why}, nil
	})}
}

// report answers the ops that only the Control can answer.
func (s *Session) report(op protocol.Op) finisher {
	c := s.shared.Control()
	if c == nil {
		return fail(protocol.Errorf(protocol.CodeUnsupported, "%s: this sidecar has no config", op))
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := s.untilGone(op, inspectTimeout)
		defer cancel()
		reply, err := c.Report(ctx, op)
		if err != nil {
			return s.failure(err), nil
		}
		s.replyLimit().FitReport(reply)
		return reply, nil
	})}
}

func (s *Session) status() finisher {
	st := s.shared.Status()
	s.replyLimit().FitSessions(st)
	return answerWith(&protocol.Reply{Status: st})
}

// fleet lists the sidecars of all databases. A database that can't be read is left out if another one can.
func (s *Session) fleet() finisher {
	p := s.shared.Plan()
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := s.untilGone(protocol.OpFleet, fleetTimeout)
		defer cancel()
		all := []protocol.Sidecar{}
		var errs error
		for _, db := range p.Databases {
			peers, age, err := db.Fleet(ctx)
			errs = errors.Join(errs, err)
			self := db.Identity()
			for i := range peers {
				all = append(all, wirejob.FromPeer(db.Name, &peers[i], age, self))
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
