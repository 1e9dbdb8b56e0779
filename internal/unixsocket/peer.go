package unixsocket

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
)

// UnknownUser is the UID of a peer whose user this process's user namespace does not have. No user can have this number.
const UnknownUser = math.MaxUint32

// Peer is the process at the other end of a connection, as the kernel recorded it when it connected.
type Peer struct {
	UID    uint32   // or UnknownUser
	Groups []uint32 // its own group first, then the supplementary ones, without those of other user namespaces
	PID    int32    // 0: unknown, because the process is in another PID namespace
}

// IsKnown reports whether the peer's user is known.
func (p *Peer) IsKnown() bool { return p.UID != UnknownUser }

// LogValue returns what is known of the peer. A nil peer has nothing.
func (p *Peer) LogValue() slog.Value {
	var attrs []slog.Attr
	if p != nil && p.IsKnown() {
		attrs = append(attrs, slog.Any("uid", p.UID))
	}
	if p != nil && p.PID != 0 {
		attrs = append(attrs, slog.Any("pid", p.PID))
	}
	return slog.GroupValue(attrs...)
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
	if !p.IsKnown() {
		return fmt.Sprintf("a user of another user namespace (groups %s)", text)
	}
	return fmt.Sprintf("user %d (groups %s)", p.UID, text)
}
