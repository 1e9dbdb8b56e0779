package permission

import (
	"slices"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Grant is what one peer may do.
type Grant struct {
	All   bool // everything
	rules []Rule
}

// NewGrant is what the rules grant a peer. nil rules grant everything. A nil peer is not known: no rule applies to it.
func NewGrant(rules []Rule, who *unixsocket.Peer) Grant {
	g := Grant{All: rules == nil}
	for i := range rules {
		if who != nil && rules[i].appliesTo(who) {
			g.rules = append(g.rules, rules[i])
		}
	}
	return g
}

// unrestricted are the ops that need no right: they touch no job, or only give back what the
// session has.
var unrestricted = []protocol.Op{protocol.OpHello, protocol.OpCancel, protocol.OpBye}

// sidecarWide are the ops that show or change more than any queue of a rule: a rule that
// names queues grants none of them.
var sidecarWide = []protocol.Op{protocol.OpStatus, protocol.OpReload}

// Op reports whether there is a queue at all with which that may be done.
func (g *Grant) Op(op protocol.Op) bool {
	if slices.Contains(sidecarWide, op) {
		return g.Everywhere(op)
	}
	return g.All || slices.Contains(unrestricted, op) || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) })
}

// Queue reports whether that may be done with the queue.
func (g *Grant) Queue(op protocol.Op, name string) bool {
	return g.All || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) && r.allowsQueue(name) })
}

// Everywhere reports whether that may be done with every queue.
func (g *Grant) Everywhere(op protocol.Op) bool {
	return g.All || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) && r.Queues == nil })
}

// IsSidecarWide reports whether the op shows or changes more than any queue of a rule.
func IsSidecarWide(op protocol.Op) bool { return slices.Contains(sidecarWide, op) }
