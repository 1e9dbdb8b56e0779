package permission

import (
	"slices"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Grant is the set of rights of one peer.
type Grant struct {
	All   bool // everything
	rules []Rule
}

// NewGrant returns what the rules grant a peer. nil rules grant everything. No rule applies to a nil peer.
func NewGrant(rules []Rule, who *unixsocket.Peer) Grant {
	g := Grant{All: rules == nil}
	for i := range rules {
		if who != nil && rules[i].appliesTo(who) {
			g.rules = append(g.rules, rules[i])
		}
	}
	return g
}

// Op reports whether the op is granted on some queue.
func (g *Grant) Op(op protocol.Op) bool {
	return g.All || slices.Contains(unrestricted, op) || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) })
}

// Queue reports whether the op is granted on the queue.
func (g *Grant) Queue(op protocol.Op, name string) bool {
	return g.All || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) && r.AllowsQueue(name) })
}

// Everywhere reports whether the op is granted on every queue.
func (g *Grant) Everywhere(op protocol.Op) bool {
	return g.All || slices.ContainsFunc(g.rules, func(r Rule) bool { return r.allowsOp(op) && r.Queues == nil })
}
