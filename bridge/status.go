package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// Control is the interface of a Bridge to the process that it runs in.
type Control interface {
	// Reload reads the config again and reloads the Bridge with it. It returns the changes as text for people. If
	// nothing changed, changes is empty and why gives the reason. After an error the previous config stays in use.
	// ctx is cancelled when the sidecar stops.
	Reload(ctx context.Context) (changes []string, why string, err error)

	// Config returns the number of the running config, counted from 1. If a newer config could not be applied, it
	// also returns the error and the time of the first failure; otherwise failed is nil.
	Config() (generation int64, failed error, since time.Time)

	// Report returns the reply to the ops config and check, which concern more than the Bridge. ctx is cancelled when
	// the reply can't be sent any more.
	Report(ctx context.Context, op protocol.Op) (*protocol.Reply, error)

	// Admin returns the address of metrics and health, or "" if they are not served.
	Admin() string
}

// reloadTimeout bounds how long a request to reload waits. Reload connects to new databases first.
const reloadTimeout = time.Minute

// SetControl sets the Control that the ops reload, config, check and status use. Call it before Run. Without it reload,
// config and check are unsupported.
func (b *Bridge) SetControl(c Control) { b.control = c }

func (s *session) reloadConfig() finisher {
	c := s.bridge.control
	if c == nil {
		return fail(protocol.Errorf(protocol.CodeUnsupported, "this sidecar has no config to read again"))
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, cancel := context.WithTimeoutCause(s.bridge.runCtx, reloadTimeout, fmt.Errorf("reload: not done within %v", reloadTimeout))
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
func (s *session) report(op protocol.Op) finisher {
	c := s.bridge.control
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

func (s *session) status() finisher {
	st := s.bridge.status()
	s.replyLimit().FitSessions(st)
	return answerWith(&protocol.Reply{Status: st})
}

// status returns the current state of the sidecar.
func (b *Bridge) status() *protocol.Status {
	p := b.plan.Load()
	st := &protocol.Status{UptimeMS: time.Since(b.began).Milliseconds(), Generation: 1,
		Sockets: []protocol.SocketStatus{}, Databases: []protocol.DatabaseStatus{}, Sessions: []protocol.SessionStatus{}}
	if b.control != nil {
		generation, failed, since := b.control.Config()
		st.Generation, st.Admin = generation, b.control.Admin()
		if failed != nil {
			st.ConfigError, st.FailedAt = failed.Error(), protocol.Some(since.UnixMilli())
		}
	}
	b.mu.Lock()
	sessions := make([]*session, 0, len(b.sessions))
	for s := range b.sessions {
		sessions = append(sessions, s)
	}
	b.mu.Unlock()
	for _, s := range sessions {
		st.Sessions = append(st.Sessions, s.shown(p))
	}
	slices.SortFunc(st.Sessions, func(a, b protocol.SessionStatus) int {
		return cmp.Or(-cmp.Compare(a.AgeMS, b.AgeMS), cmp.Compare(a.Session, b.Session))
	})
	on := make(map[string]int64)
	for _, s := range sessions {
		on[s.socket]++
	}
	for _, socket := range p.opts.Sockets {
		s := protocol.SocketStatus{Path: socket.Path, Sessions: on[socket.Path]}
		if err := b.socketError(socket.Path); err != nil {
			s.Error = err.Error()
		}
		st.Sockets = append(st.Sockets, s)
	}
	for _, db := range p.databases {
		st.Databases = append(st.Databases, db.shown(p))
	}
	slices.SortFunc(st.Databases, func(a, b protocol.DatabaseStatus) int { return cmp.Compare(a.Name, b.Name) })
	return st
}

// obstacleText is the longest error of an obstacle in a status, in bytes. The log has all of it.
const obstacleText = 500

func (b *database) shown(p *plan) protocol.DatabaseStatus {
	info := b.CurrentInfo()
	d := protocol.DatabaseStatus{Name: p.nameOf(b), Engine: info.Engine, Version: info.Version, Address: info.Address, Cluster: info.Cluster,
		HeartbeatAgeMS: -1, Draining: !p.serves(b), Leases: int64(b.HeldBySessions())}
	if age := b.HeartbeatAge(); age >= 0 {
		d.HeartbeatAgeMS = age.Milliseconds()
	}
	if err := b.LastErr(); err != nil {
		d.Error = err.Error()
	}
	if err := b.ReplicaErr(); err != nil {
		d.ReplicaError = err.Error()
	}
	obstacles := b.Obstacles()
	d.ObstacleCount = int64(len(obstacles))
	for _, o := range obstacles[:min(len(obstacles), protocol.MaxObstacles)] {
		d.Obstacles = append(d.Obstacles, protocol.Obstacle{
			Queue: o.Queue, Table: o.Table, Job: o.Job, Doing: o.Doing, Error: textfmt.OneLine(o.Err.Error(), obstacleText),
			AgeMS: max(time.Since(o.Since), 0).Milliseconds(), NextTryMS: max(time.Until(o.NextTry), 0).Milliseconds(),
		})
	}
	if u, ok := b.Usage(); ok {
		d.PoolMax, d.PoolInUse, d.PoolIdle = int64(u.Max), int64(u.InUse), int64(u.Idle)
	}
	return d
}

func (s *session) shown(p *plan) protocol.SessionStatus {
	st := protocol.SessionStatus{Session: s.id, Socket: s.socket, AgeMS: time.Since(s.began).Milliseconds(),
		Waiting: s.waiting.Load(), Open: int64(len(s.slots))}
	s.mu.Lock()
	st.Worker = s.worker
	s.mu.Unlock()
	if s.peer != nil && s.peer.IsKnown() {
		st.UID = protocol.Some(int64(s.peer.UID))
	}
	if s.peer != nil && s.peer.PID != 0 {
		st.PID = protocol.Some(int64(s.peer.PID))
	}
	now := time.Now()
	for _, b := range p.databases {
		for _, h := range b.HeldBy(&s.quota, now) {
			st.Queues = append(st.Queues, protocol.QueueLeases{Queue: h.Queue, Leases: h.Jobs, OldestJob: h.Oldest, OldestLeaseMS: h.Age.Milliseconds()})
		}
	}
	slices.SortFunc(st.Queues, func(a, b protocol.QueueLeases) int {
		return cmp.Or(cmp.Compare(b.OldestLeaseMS, a.OldestLeaseMS), cmp.Compare(a.Queue, b.Queue))
	})
	for _, l := range st.Queues {
		st.Leases += l.Leases
		st.OldestLeaseMS = max(st.OldestLeaseMS, l.OldestLeaseMS)
	}
	st.Queues = slices.Clip(st.Queues[:min(len(st.Queues), protocol.MaxSessionQueues)])
	return st
}
