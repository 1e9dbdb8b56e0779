package bridge

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// throttle is called after a request was refused. It delays the reading of the session's next request.
func (s *session) throttle() { pause(s.gone, s.refusals.Reserve().Delay()) }

// rejectDelay returns how long to delay the end of a connection that was refused, or that sent so many bytes in vain.
func (b *Bridge) rejectDelay(who *unixsocket.Peer, bytes int) time.Duration {
	if who == nil {
		return 0
	}
	return b.rejects.Delay(who.UID, bytes)
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
