package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// Health is the current ability of the sidecar to serve. It contains no secrets.
type Health struct {
	Starting  bool           // the sockets do not listen yet
	Draining  bool           // the sidecar is stopping and hands out no more jobs
	Lost      []SocketHealth // the sockets that clients can't connect to
	Databases []DatabaseHealth
}

// SocketHealth is a socket whose file was removed or replaced, and that can't be bound again.
type SocketHealth struct {
	Path string
	Err  error
}

// DatabaseHealth is the health of one configured database.
type DatabaseHealth struct {
	Name         string
	Reachable    bool          // the last heartbeat succeeded and the next one is not late
	HeartbeatAge time.Duration // time since the last successful heartbeat; negative: none yet
}

// Health returns the current health. It sends no query.
func (b *Bridge) Health() Health {
	h := Health{Draining: b.stopping.Err() != nil, Starting: true}
	select {
	case <-b.ready:
		h.Starting = false
	default:
	}
	c := b.config.Load()
	for _, s := range c.opts.Sockets {
		if err := b.socketError(s.Path); err != nil {
			h.Lost = append(h.Lost, SocketHealth{s.Path, err})
		}
	}
	for name, db := range c.byName {
		h.Databases = append(h.Databases, DatabaseHealth{Name: name, Reachable: db.Reachable(), HeartbeatAge: db.HeartbeatAge()})
	}
	slices.SortFunc(h.Databases, func(a, b DatabaseHealth) int { return cmp.Compare(a.Name, b.Name) })
	return h
}

// Answers pings each socket as a worker does, and returns nil when all have replied. It returns an error for a socket
// that accepts connections but does not reply before ctx is done, or that can't be connected to in that time. The
// content of the reply does not matter (a refusal is also a reply), and no database is queried. Answers skips a
// socket that this process is not allowed to connect to, or whose file is lost: another process can have the path.
func (b *Bridge) Answers(ctx context.Context) error {
	for _, s := range b.config.Load().opts.Sockets {
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

// Alive returns nil as soon as each part of the sidecar has made progress. If ctx ends first, the error names the
// part that did not. The result does not depend on any database: a part that waits for one is alive.
func (b *Bridge) Alive(ctx context.Context) error {
	if at, err := b.lockCheck.check(ctx, b.locks()); err != nil {
		return fmt.Errorf("the sidecar is stuck (%s): %w", at, err)
	}
	return nil
}

// locks returns the locks that no code holds for long.
func (b *Bridge) locks() []pipeline.NamedLock {
	all := []pipeline.NamedLock{{Name: "sessions", Locker: &b.mu}}
	for _, db := range b.config.Load().databases {
		for _, l := range db.Locks() {
			all = append(all, pipeline.NamedLock{Name: l.Name + " of " + db.Name, Locker: l.Locker})
		}
	}
	return all
}
