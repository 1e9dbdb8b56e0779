package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/user"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// maxUnchanged is the most jobs in the field unchanged of a reply. They fit the smallest max_reply.
const maxUnchanged = 200

// command starts an operator's command on the jobs of a queue.
func (s *Session) command(req *protocol.Request) finisher {
	p := s.shared.Plan()
	db, wire := p.Inspectable(req.Queue)
	if wire != nil {
		return fail(wire)
	}
	if req.Op == protocol.OpPause || req.Op == protocol.OpLimit { // the name is stored in the database
		if err := s.roomForName(p, req.Queue); err != nil {
			return answerWith(s.failure(err))
		}
	}
	op, key, c := req.Op, req.Key, wirejob.Command(req) // req holds another request by the time this one ends
	f := finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		stuck := time.AfterFunc(inspectTimeout, func() { cancel(fmt.Errorf("%s: no progress within %v", op, inspectTimeout)) })
		defer stuck.Stop()
		if key != "" {
			found, err := db.Peek(ctx, backends.Peek{Queue: c.Queue, Key: key, Max: 1})
			if err != nil {
				return s.failure(err), nil
			}
			if len(found) == 0 {
				return &protocol.Reply{Count: protocol.Some(int64(0))}, nil
			}
			c.IDs = []string{found[0].ID}
		}
		var left []protocol.Unchanged
		c.Unchanged = func(jobs []backends.JobState) {
			for _, j := range jobs[:min(len(jobs), maxUnchanged-len(left))] {
				left = append(left, protocol.Unchanged{ID: j.ID, State: protocol.State(j.State)})
			}
		}
		c.Progress = func() {
			stuck.Reset(inspectTimeout)
			if s.shared.Stopping().Err() != nil {
				cancel(errors.New("this sidecar is stopping"))
			}
		}
		isUnknown := !c.ChangesJobs() && unknownQueue(ctx, p, c.Queue)
		count, err := db.Command(ctx, c)
		if err != nil && count == 0 {
			return s.failure(err), nil
		}
		s.logCommanded(op, &c, count)
		if err != nil { // a large command runs as several transactions, and the earlier ones are committed
			wire := s.toClient(err)
			return &protocol.Reply{Error: protocol.Errorf(wire.Code, "%d jobs are done; send it again for the others: %v", count, err)}, nil
		}
		reply := &protocol.Reply{Unknown: isUnknown}
		if c.ChangesJobs() {
			reply.Count, reply.Unchanged = protocol.Some(count), left
			reply.Unknown = count == 0 && len(c.IDs) == 0 && unknownQueue(ctx, p, c.Queue)
		}
		return reply, nil
	})}
	f.keeps = len(c.IDs) > keepsIDs
	return f
}

// logCommanded logs an operator's command.
func (s *Session) logCommanded(op protocol.Op, c *backends.Command, count int64) {
	var jobs, uid, name slog.Attr
	if c.ChangesJobs() {
		jobs = slog.Int64("jobs", count)
	}
	if s.Peer != nil && s.Peer.IsKnown() {
		uid = slog.Any("uid", s.Peer.UID)
		if u, err := user.LookupId(strconv.FormatUint(uint64(s.Peer.UID), 10)); err == nil {
			name = slog.String("user", u.Username)
		}
	}
	s.shared.Log.Info("operator command", "event", "operator_command", s.logKeys(), "op", op, "queue", c.Queue, jobs, uid, name)
}
