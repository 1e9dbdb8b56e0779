package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// findOutFor bounds the last query about an outcome.
const findOutFor = 2 * time.Second

// `slot` is a row of qsidecar_commits, which one transaction at a time writes.
type txSlot struct {
	id        int32
	number    int64 // of the transaction that uses it
	abandoned bool  // its row is possibly locked for a while: a new one replaces it
}

func (s *Store) newTxSlot() *txSlot { return &txSlot{id: s.txSlots.Add(1)} }

// takeSlot waits for a free element of `s.slots` and increments its number. There are as many of them as connections.
func (s *Store) takeSlot(ctx context.Context) (*txSlot, error) {
	select {
	case l := <-s.slots:
		l.number++
		return l, nil
	case <-ctx.Done():
		return nil, core.Interrupted(ctx, "waiting for a connection to "+s.place)
	}
}

func (s *Store) giveSlot(l *txSlot) {
	if l.abandoned {
		l = s.newTxSlot()
	}
	s.slots <- l
}

// findOut finds out whether a commit happened whose reply was lost. If ctx has ended it tries once more, with a
// timeout of findOutFor.
func (s *Store) findOut(ctx context.Context, l *txSlot, cause error) error {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		last := ctx.Err() != nil
		happened, err := s.sealed(ctx, last, l)
		if err == nil {
			s.log.Warn("commit outcome resolved", "event", "commit_outcome_resolved", "address", s.place, "committed", happened, "error", cause)
			if happened {
				return nil
			}
			return backends.Unavailable(fmt.Errorf("%s: the commit failed: %w", s.place, cause))
		}
		if last {
			s.log.Error("commit outcome unknown", "event", "commit_outcome_unknown", "address", s.place, "error", errors.Join(cause, err))
			return backends.ErrUnknownOutcome
		}
		core.Pause(ctx, wait)
	}
}

// sealed sends one query. If the commit did not happen, it writes a later number, so that the commit cannot happen
// any more.
func (s *Store) sealed(ctx context.Context, last bool, l *txSlot) (happened bool, err error) {
	if last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), findOutFor)
		defer cancel()
	}
	var found int64
	err = s.sql.carryOut(ctx, s.db, []call{{s.sql.seal, []any{s.handle, l.id, l.number}, []reader{one(&found)}}})
	return found == l.number, err
}
