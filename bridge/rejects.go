package bridge

import (
	"time"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// rejectDelay returns how long to delay the end of a connection that was refused, or that sent so many bytes in vain.
func (b *Bridge) rejectDelay(who *unixsocket.Peer, bytes int) time.Duration {
	if who == nil {
		return 0
	}
	return b.rejects.Delay(who.UID, bytes)
}
