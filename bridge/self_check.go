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

// Answers pings each socket as a worker does, and returns nil when all have answered. An
// error is one that takes connections and said nothing until ctx was done, or that could
// not even be connected to so long. What is said does not count (a refusal is an answer
// too), no database is asked, and a socket that this process may not connect to, or whose
// file is gone, is left out.
func (b *Bridge) Answers(ctx context.Context) error {
	for _, s := range b.plan.Load().opts.Sockets {
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
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // where it fails, it is closed
	if _, err = io.WriteString(conn, `{"op":"ping"}`+"\n"); err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	return nil // an answer, or an end: that too is made by a process that works
}
