package session

import (
	"context"
	"errors"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/progress"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// reportProgress notes how far a job is. It waits for the database only if this sidecar doesn't have the lease.
func (s *Session) reportProgress(req *protocol.Request) finisher {
	id, lease, ok := wirejob.ParseLease(req.Lease)
	if !ok {
		return fail(leaseLost())
	}
	db, err := s.shared.Plan().Owner(id)
	switch {
	case err != nil:
		return answerWith(s.failure(err))
	case db == nil:
		return fail(leaseLost())
	case !db.Info.Progress:
		return fail(protocol.Errorf(protocol.CodeUnsupported, "progress: %v (%s)", backends.ErrNoProgress, db.Info.Engine))
	}
	if err := s.forbidsLeases(req.Op, db, []backends.Lease{lease}); err != nil {
		return answerWith(s.failure(err))
	}
	if db.HasAdopted() {
		if wire := s.refusesAdopted(db, lease); wire != nil {
			return fail(wire)
		}
	}
	confirm, err := db.ReportProgress(lease, wirejob.Progress(req))
	if err != nil {
		return answerWith(s.progressFailed(err))
	}
	if confirm == nil {
		return answerWith(&protocol.Reply{})
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		if err := confirm(context.WithoutCancel(s.gone)); err != nil {
			return s.progressFailed(err), nil
		}
		return &protocol.Reply{}, nil
	})}
}

// refusesAdopted returns an error if the lease is of a job in an adopted table.
func (s *Session) refusesAdopted(db *plan.Database, lease backends.Lease) *protocol.Error {
	queues, err := db.QueuesOf([]backends.Lease{lease}, locateTimeout)
	if err != nil {
		return s.toClient(err)
	}
	for _, q := range queues {
		if db.Adopted(q) {
			return protocol.Errorf(protocol.CodeUnsupported,
				"progress: the queue %s is in an adopted table, to which the sidecar adds nothing: store the progress in a column of that table", q)
		}
	}
	return nil
}

func (s *Session) progressFailed(err error) *protocol.Reply {
	switch {
	case errors.Is(err, progress.ErrLost):
		return &protocol.Reply{Error: leaseLost()}
	case errors.Is(err, progress.ErrBusy):
		return &protocol.Reply{Error: protocol.Errorf(protocol.CodeBusy, "%v", err)}
	}
	return s.failure(err)
}
