package bridge

import (
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/permission"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Rule allows some users of a socket some ops on some queues.
type Rule = permission.Rule

// grant is the set of rights of a session under one plan.
type grant struct {
	plan *plan
	permission.Grant
}

// granted returns the session's rights under the current plan. If that plan does not have the session's socket any
// more, the rights stay as they were: the session is about to be closed, and requests that it sent before are carried
// out.
func (s *session) granted() *grant {
	p, was := s.bridge.plan.Load(), s.grant.Load()
	if was.plan == p {
		return was
	}
	g := &grant{p, was.Grant}
	if socket := p.socket(s.socket); socket.Path != "" {
		g = p.grants(&socket, s.peer)
	}
	s.grant.Store(g)
	return g
}

// grants returns the rights of a peer that connected to the socket.
func (p *plan) grants(socket *Socket, who *unixsocket.Peer) *grant {
	return &grant{p, permission.NewGrant(socket.Allow, who)}
}

// denied logs a request that is not allowed and returns the error for its client.
func (s *session) denied(op protocol.Op, queue string) *protocol.Error {
	what := "the op " + string(op)
	if queue != "" {
		what += " on the queue " + queue
	}
	rule := "a rule"
	if permission.IsSidecarWide(op) {
		rule = "a rule that names it in `ops`"
	}
	s.logDenied(op, queue)
	return protocol.Errorf(protocol.CodeForbidden, "%v has no right to %s on this socket: it needs %s under `allow` of the socket in the sidecar's config", s.peer, what, rule)
}

// forbids checks the request against the rules of its socket. It returns nil if the request is allowed, as far as it
// names its queues.
func (s *session) forbids(req *protocol.Request) *protocol.Error {
	g := s.granted()
	if g.All {
		return nil
	}
	if !g.Op(req.Op) {
		return s.denied(req.Op, "")
	}
	if req.Queue != "" && !g.Queue(req.Op, req.Queue) {
		return withField(s.denied(req.Op, req.Queue), "queue", -1)
	}
	for i, q := range req.Queues {
		if !g.Queue(req.Op, q) {
			return withField(s.denied(req.Op, q), "queues", i)
		}
	}
	if req.Op == protocol.OpEnqueue {
		if req.Jobs == nil && !g.Queue(req.Op, req.Job.Queue) {
			return withField(s.denied(req.Op, req.Job.Queue), "queue", -1)
		}
		if e := s.forbidsJobs(g, req.Jobs, "jobs"); e != nil {
			return e
		}
	}
	return s.forbidsJobs(g, req.Enqueue, "enqueue")
}

func (s *session) forbidsJobs(g *grant, jobs []protocol.NewJob, field string) *protocol.Error {
	for i := range jobs {
		if q := jobs[i].Queue; !g.Queue(protocol.OpEnqueue, q) {
			return withField(s.denied(protocol.OpEnqueue, q), field, i)
		}
	}
	return nil
}

func withField(e *protocol.Error, field string, index int) *protocol.Error {
	e.Field = field
	if index >= 0 {
		e.Index = protocol.Some(int64(index))
	}
	return e
}

// locateTimeout bounds the query for the queues of jobs.
const locateTimeout = 5 * time.Second

// forbidsLeases checks a settle against the rules, by the queues in the jobs' rows. A lease whose job is gone is not
// forbidden to any session: it is reported as lost.
func (s *session) forbidsLeases(op protocol.Op, db *database, leases []backends.Lease) error {
	g := s.granted()
	if g.Everywhere(op) {
		return nil
	}
	queues, err := db.QueuesOf(leases, locateTimeout)
	if err != nil {
		return err
	}
	for _, q := range queues {
		if q != "" && !g.Queue(op, q) {
			return s.denied(op, q)
		}
	}
	return nil
}

// seen removes the stats of queues that the session is not allowed to see.
func (s *session) seen(all []protocol.QueueStat) []protocol.QueueStat {
	g := s.granted()
	return slices.DeleteFunc(all, func(q protocol.QueueStat) bool { return !g.Queue(protocol.OpStats, q.Queue) })
}

// checkRules reports the errors in a socket's rules.
func (s *Socket) checkRules(bad func(format string, args ...any)) {
	for i := range s.Allow {
		s.Allow[i].Check(func(field, format string, args ...any) {
			bad("listen: socket %s: allow[%d].%s: %s", s.Path, i, field, fmt.Sprintf(format, args...))
		})
	}
}
