package permission

import (
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Rule allows some users of a socket some ops on some queues. A nil list stands for all, except that nil Ops don't
// include those that concern the sidecar (IsSidecarWide).
type Rule struct {
	Users  []uint32 // by number. The rule applies to a user in this list or in one of Groups
	Groups []uint32 // by number, also supplementary ones
	Ops    []protocol.Op
	Queues []string // names, in which each * stands for any characters
}

func (r *Rule) appliesTo(p *unixsocket.Peer) bool {
	if r.Users == nil && r.Groups == nil {
		return true
	}
	return p.IsKnown() && slices.Contains(r.Users, p.UID) || slices.ContainsFunc(p.Groups, func(g uint32) bool { return slices.Contains(r.Groups, g) })
}

func (r *Rule) allowsOp(op protocol.Op) bool {
	of, implied := impliedBy[op]
	return r.Ops == nil && !IsSidecarWide(op) || slices.Contains(r.Ops, op) || implied && slices.Contains(r.Ops, of)
}

// impliedBy are ops that the right to another op grants too.
var impliedBy = map[protocol.Op]protocol.Op{
	protocol.OpWait: protocol.OpPeek, protocol.OpProgress: protocol.OpAck, protocol.OpBatches: protocol.OpPeek, protocol.OpOpenBatch: protocol.OpEnqueue, protocol.OpCloseBatch: protocol.OpEnqueue,
}

// AllowsQueue reports whether the rule applies to a queue.
func (r *Rule) AllowsQueue(name string) bool {
	return r.Queues == nil || slices.ContainsFunc(r.Queues, func(pattern string) bool { return matches(pattern, name) })
}

// matches reports whether the name matches the pattern, in which each * stands for any characters or none.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return name == pattern
	}
	if !strings.HasPrefix(name, parts[0]) {
		return false
	}
	name = name[len(parts[0]):]
	for _, part := range parts[1:last] { // the first match of each part leaves the most for the others
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
	return strings.HasSuffix(name, parts[last])
}

// Check calls bad for each error in the rule.
func (r *Rule) Check(bad func(field, format string, args ...any)) {
	for _, op := range r.Ops {
		switch {
		case op == "*" || op == "all":
			bad("ops", "there is no op %q: leave ops out to allow all of a queue", op)
		case !protocol.Known(op):
			bad("ops", "%s", protocol.NoSuchOp(op))
		}
		if r.Queues != nil && slices.Contains(sidecarWide, op) {
			bad("ops", "%s concerns the sidecar, not a queue: put it in a rule without queues", op)
		}
	}
	for _, q := range r.Queues {
		if name := strings.ReplaceAll(q, "*", "x"); protocol.CheckQueueName("queues", name) != nil {
			bad("queues", "%q isn't a queue name, nor a pattern with * for any characters", q)
		}
	}
}
