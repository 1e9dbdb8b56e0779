package unixsocket

import (
	"fmt"
	"strings"
)

// Peer is the process at the other end of a connection, as the kernel recorded it when it connected.
type Peer struct {
	UID    uint32
	Groups []uint32 // its own group first, then the supplementary ones
	PID    int32
}

func (p *Peer) String() string {
	if p == nil {
		return "a user whom this system does not name"
	}
	const most = 16 // a user may have 65,536
	groups := make([]string, 0, most)
	for _, g := range p.Groups[:min(len(p.Groups), most)] {
		groups = append(groups, fmt.Sprint(g))
	}
	text := strings.Join(groups, ",")
	if more := len(p.Groups) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("user %d (groups %s)", p.UID, text)
}
