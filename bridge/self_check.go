package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// Answers pings each socket as a worker does, and returns nil when all have replied. It returns an error for a socket
// that accepts connections but does not reply before ctx is done, or that can't be connected to in that time. The
// content of the reply does not matter (a refusal is also a reply), and no database is queried. Answers skips a
// socket that this process is not allowed to connect to, or whose file is lost: another process can have the path.
func (b *Bridge) Answers(ctx context.Context) error {
	for _, s := range b.plan.Load().opts.Sockets {
		if b.socketError(s.Path) != nil {
			continue
		}
		if err := answers(ctx, s.Path); err != nil {
			return fmt.Errorf("socket %s: %w", s.Path, err)
		}
	}
	return nil
}

func answers(ctx context.Context, path string) error {
	conn, err := unixsocket.Dial(ctx, path)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("no connection: %w", context.Cause(ctx))
	case err != nil:
		return nil
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // if it fails, the connection is closed
	if _, err = io.WriteString(conn, `{"op":"ping"}`+"\n"); err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	return nil // a reply or an end of the connection: both come from a process that works
}
