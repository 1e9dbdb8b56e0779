package bridge

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// slowDown is called after a request was refused: the session is read from more slowly.
func (s *session) slowDown() { pause(s.gone, s.refusals.Reserve().Delay()) }

// rejectDelay is how long the end of a connection is put off that was refused, or closed for so many bytes
// that were read in vain.
func (b *Bridge) rejectDelay(who *unixsocket.Peer, bytes int) time.Duration {
	if who == nil {
		return 0
	}
	return b.rejects.Delay(who.UID, bytes)
}

// pause waits, until ctx is done at the most.
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
