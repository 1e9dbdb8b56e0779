package session

import (
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/permission"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/protocol"
)

// grant is the set of rights of a session under one plan.
type grant struct {
	plan *plan.Plan
	permission.Grant
}

// granted returns the session's rights under the current plan. If that plan does not have the session's socket any
// more, the rights stay as they were: the session is about to be closed, and requests that it sent before are carried
// out.
func (s *Session) granted() *grant {
	p, was := s.shared.Plan(), s.grant.Load()
	if was.plan == p {
		return was
	}
	g := &grant{p, was.Grant}
	if p.HasSocket(s.Socket) {
		g.Grant = p.Grant(s.Socket, s.Peer)
	}
	s.grant.Store(g)
	return g
}

// denied logs a request that is not allowed and returns the error for its client.
func (s *Session) denied(op protocol.Op, queue string) *protocol.Error {
	what := "the op " + string(op)
	if queue != "" {
		what += " on the queue " + queue
	}
	rule := "a rule"
	if permission.IsSidecarWide(op) {
		rule = "a rule that names it in `ops`"
	}
	s.logDenied(op, queue)
	return protocol.Errorf(protocol.CodeForbidden, "%v has no right to %s on this socket: it needs %s under `allow` of the socket in the sidecar's config", s.Peer, what, rule)
}

// forbids checks the request against the rules of its socket. It returns nil if the request is allowed, as far as it
// names its queues.
func (s *Session) forbids(req *protocol.Request) *protocol.Error {
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

func (s *Session) forbidsJobs(g *grant, jobs []protocol.NewJob, field string) *protocol.Error {
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
func (s *Session) forbidsLeases(op protocol.Op, db *plan.Database, leases []backends.Lease) error {
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

// forbidsClaim checks a waiting claim against the rules of its socket again.
func (s *Session) forbidsClaim(queues []string) *protocol.Error {
	if i := s.noClaim(queues); i >= 0 {
		return s.denied(protocol.OpClaim, queues[i])
	}
	return nil
}

// noClaim returns the index of the first queue that the session is not allowed to claim from, or -1.
func (s *Session) noClaim(queues []string) int {
	g := s.granted()
	return slices.IndexFunc(queues, func(q string) bool { return !g.Queue(protocol.OpClaim, q) })
}
