package bridge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Rule allows some users of a socket some ops on some queues. A list that is nil
// stands for all.
type Rule struct {
	Users  []uint32 // by number; a user fits who is among these or in one of Groups
	Groups []uint32 // by number, also supplementary ones
	Ops    []protocol.Op
	Queues []string // names, in which each * stands for any characters
}

func (r *Rule) fits(p *unixsocket.Peer) bool {
	if r.Users == nil && r.Groups == nil {
		return true
	}
	return slices.Contains(r.Users, p.UID) || slices.ContainsFunc(p.Groups, func(g uint32) bool { return slices.Contains(r.Groups, g) })
}

func (r *Rule) allowsOp(op protocol.Op) bool { return r.Ops == nil || slices.Contains(r.Ops, op) }

func (r *Rule) allowsQueue(name string) bool {
	return r.Queues == nil || slices.ContainsFunc(r.Queues, func(pattern string) bool { return globs(pattern, name) })
}

// globs reports whether the name is the pattern's, in which each * stands for any
// characters, or none.
func globs(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return name == pattern
	}
	if !strings.HasPrefix(name, parts[0]) {
		return false
	}
	name = name[len(parts[0]):]
	for _, part := range parts[1:last] { // the first place where each fits leaves most for the others
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
	return strings.HasSuffix(name, parts[last])
}

// grant is what a session may do by one plan.
type grant struct {
	plan  *plan
	all   bool // everything
	rules []Rule
}

// free are the ops that need no right: they touch no job, or only give back what the
// session has.
var free = []protocol.Op{protocol.OpHello, protocol.OpCancel, protocol.OpBye}

// granted is what the session may do by the plan that runs. Where that has not its socket
// any more, it is what it was: the session is about to be closed, and what it sent before is
// carried out.
func (s *session) granted() *grant {
	p, was := s.bridge.plan.Load(), s.grant.Load()
	if was.plan == p {
		return was
	}
	g := &grant{plan: p, all: was.all, rules: was.rules}
	if socket := p.socket(s.socket); socket.Path != "" {
		g = p.grants(&socket, s.peer)
	}
	s.grant.Store(g)
	return g
}

// grants is what who came by the socket may do. Where it is not known who that is, no rule fits.
func (p *plan) grants(socket *Socket, who *unixsocket.Peer) *grant {
	g := &grant{plan: p, all: socket.Allow == nil}
	for i := range socket.Allow {
		if who != nil && socket.Allow[i].fits(who) {
			g.rules = append(g.rules, socket.Allow[i])
		}
	}
	return g
}

// sidecarWide are the ops that show or change more than any queue of a rule: a rule that
// names queues grants none of them.
var sidecarWide = []protocol.Op{protocol.OpStatus, protocol.OpReload}

// op reports whether there is a queue at all with which that may be done.
func (g *grant) op(op protocol.Op) bool {
	if slices.Contains(sidecarWide, op) {
		return g.everywhere(op)
	}
	return g.all || slices.Contains(free, op) || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) })
}

// queue reports whether that may be done with the queue.
func (g *grant) queue(op protocol.Op, name string) bool {
	return g.all || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) && r.allowsQueue(name) })
}

// everywhere reports whether that may be done with every queue.
func (g *grant) everywhere(op protocol.Op) bool {
	return g.all || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) && r.Queues == nil })
}

// denied is the answer to a request that is not allowed.
func (s *session) denied(op protocol.Op, queue string) *protocol.Error {
	what := "the op " + string(op)
	if queue != "" {
		what += " on the queue " + queue
	}
	rule := "a rule"
	if slices.Contains(sidecarWide, op) {
		rule = "a rule without `queues`"
	}
	s.logDenied(op, queue)
	return protocol.Errorf(protocol.CodeForbidden, "%v has no right to %s on this socket: it needs %s under `allow` of the socket in the sidecar's config", s.peer, what, rule)
}

// forbids holds the request against the rules of its socket; nil: it is allowed, as far as
// it names its queues.
func (s *session) forbids(req *protocol.Request) *protocol.Error {
	g := s.granted()
	if g.all {
		return nil
	}
	if !g.op(req.Op) {
		return s.denied(req.Op, "")
	}
	if req.Queue != "" && !g.queue(req.Op, req.Queue) {
		return withField(s.denied(req.Op, req.Queue), "queue", -1)
	}
	for i, q := range req.Queues {
		if !g.queue(req.Op, q) {
			return withField(s.denied(req.Op, q), "queues", i)
		}
	}
	if req.Op == protocol.OpEnqueue {
		if req.Jobs == nil && !g.queue(req.Op, req.Job.Queue) {
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
		if q := jobs[i].Queue; !g.queue(protocol.OpEnqueue, q) {
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

// locateTimeout bounds the question in which queues jobs are.
const locateTimeout = 5 * time.Second

// forbidsLeases holds a settle against the rules, by the queues of the jobs' rows. A lease
// whose job is gone is nobody's to forbid: it is lost.
func (s *session) forbidsLeases(op protocol.Op, db *database, leases []backends.Lease) error {
	g := s.granted()
	if g.everywhere(op) {
		return nil
	}
	queues, err := db.QueuesOf(leases, locateTimeout)
	if err != nil {
		return err
	}
	for _, q := range queues {
		if q != "" && !g.queue(op, q) {
			return s.denied(op, q)
		}
	}
	return nil
}

// seen are the stats of queues that the session may see.
func (s *session) seen(all []protocol.QueueStat) []protocol.QueueStat {
	g := s.granted()
	return slices.DeleteFunc(all, func(q protocol.QueueStat) bool { return !g.queue(protocol.OpStats, q.Queue) })
}

// Check reports what is wrong with the rule, by the name of its field.
func (r *Rule) Check(bad func(field, format string, args ...any)) {
	for _, op := range r.Ops {
		if !protocol.Known(op) {
			bad("ops", "there is no op %q", op)
		}
		if r.Queues != nil && slices.Contains(sidecarWide, op) {
			bad("ops", "%s concerns all queues: put it in a rule without queues", op)
		}
	}
	for _, q := range r.Queues {
		if name := strings.ReplaceAll(q, "*", "x"); protocol.CheckQueueName("queues", name) != nil {
			bad("queues", "%q is no name of a queue, nor one with * for any characters", q)
		}
	}
}

// checkRules reports what is wrong with a socket's rules.
func (s *Socket) checkRules(bad func(format string, args ...any)) {
	for i := range s.Allow {
		s.Allow[i].Check(func(field, format string, args ...any) {
			bad("listen: socket %s: allow[%d].%s: %s", s.Path, i, field, fmt.Sprintf(format, args...))
		})
	}
}
