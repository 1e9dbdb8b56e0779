package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/outbox"
	"github.com/qsidecar/qsidecar/bridge/internal/session"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// maxRefusals is how many connections over the limit get an error reply at a time. Others are closed without a
	// reply.
	maxRefusals = 64
	// refuseTimeout is how long such a connection has to send its first bytes, which show its codec.
	refuseTimeout = time.Second
)

// ErrHangUp is the cause of a ctx of ServeStream whose client no longer reads: a stream cannot notice that itself.
var ErrHangUp = session.ErrHangUp

// ServeStream serves one session over a pair of streams, as stdio does, until in ends, ctx is done or the Bridge
// stops. Run must be running. A ctx whose cause is ErrHangUp, or an error of in other than io.EOF, counts as the
// client's hang-up. Any other end of ctx is a close by the server. A read of in that cannot be interrupted (a
// terminal's) stays behind in its goroutine, as does a write to out that the client does not read.
func (b *Bridge) ServeStream(ctx context.Context, in io.Reader, out io.Writer) error {
	select {
	case <-b.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	pipe, feed := io.Pipe()
	s, full := b.open(pipe, outbox.NewStream(out), nil, "", nil)
	switch {
	case full != nil:
		return full
	case s == nil:
		return errors.New("the sidecar is stopping")
	}
	defer b.ended(s)
	go func() {
		_, err := io.Copy(feed, in)
		feed.CloseWithError(err) // nil means end of input
	}()
	defer context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), ErrHangUp) {
			s.HangUp()
			feed.CloseWithError(ErrHangUp)
			return
		}
		s.Close()
	})()
	b.serveSession(s)
	return nil
}

// serveConn serves one accepted connection to its end. While the connection is idle, its stack has the frames from here to
// the read. TestMemoryOfWaitingWorkers limits them, so what needs a large frame before or after is done by other functions.
func (b *Bridge) serveConn(conn unixsocket.Conn, socket string) {
	s := b.admit(conn, socket)
	if s == nil {
		_ = conn.Close() // nothing was read from it
		return
	}
	b.serveSession(s)
	_ = conn.Close() // every write that matters succeeded or failed before
	b.ended(s)
}

// serveSession serves a session to its end. The jobs of one that a reload closed are released after the restart grace.
func (b *Bridge) serveSession(s *session.Session) {
	if s.Serve() {
		b.releaseAfterGrace(s)
	}
}

// admit creates the session of an accepted connection. It returns nil if no request can be carried out: the Bridge stops, the
// socket was removed, or a limit is reached.
func (b *Bridge) admit(conn unixsocket.Conn, socket string) *session.Session {
	who, err := conn.Peer()
	if err != nil && b.config.Load().socket(socket).Allow != nil {
		b.log.Error("connection failed", "event", "connection_failed", "socket", socket, "error", err)
		return nil
	}
	s, full := b.open(conn, conn, conn, socket, who)
	if full != nil {
		b.metrics.Refused.Inc()
		b.logRefused(socket, who, full)
		b.refuse(conn, who, full)
	}
	return s
}

// open creates a session. It returns nil if the Bridge stops or a reload removed the socket, and an error if there
// are too many sessions.
func (b *Bridge) open(in io.Reader, out outbox.DeadlineWriter, conn unixsocket.Conn, socket string, who *unixsocket.Peer) (*session.Session, *protocol.Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return nil, nil
	}
	if e := b.full(who); e != nil {
		return nil, e
	}
	p := b.config.Load().Plan
	if !p.HasSocket(socket) {
		return nil, nil // dropSockets already closed the socket's sessions
	}
	s := session.New(&b.shared, p, in, out, conn, socket, who)
	b.sessions[s] = struct{}{}
	if who != nil {
		b.users[who.UID]++
	}
	b.metrics.Sessions.Inc()
	b.serving.Add(1)
	return s, nil
}

// full returns the error for one more connection if a limit is reached, or nil. b.mu is held.
func (b *Bridge) full(who *unixsocket.Peer) *protocol.Error {
	l := b.config.Load().opts.Limits
	if n := len(b.sessions); n >= l.Connections {
		return protocol.Errorf(protocol.CodeBusy, "the sidecar has %d connections, which is its limit (limits.connections in its config): close some, or let programs share one", n)
	}
	if who != nil && l.PerUser > 0 && b.users[who.UID] >= l.PerUser {
		user := fmt.Sprintf("user %d has", who.UID)
		if !who.IsKnown() {
			user = "all users of other user namespaces together have"
		}
		return protocol.Errorf(protocol.CodeBusy, "%s %d connections, which is the limit (limits.connections_per_user in the sidecar's config): close some, or let programs share one",
			user, b.users[who.UID])
	}
	return nil
}

// refuse sends the error why to a connection over the limit, in the connection's own codec. The caller closes the
// connection.
func (b *Bridge) refuse(conn unixsocket.Conn, who *unixsocket.Peer, why *protocol.Error) {
	b.mu.Lock()
	refusing := b.refusing < maxRefusals && !b.closing
	if refusing {
		b.refusing++
		b.serving.Add(1)
	}
	b.mu.Unlock()
	if !refusing {
		return
	}
	defer func() {
		b.mu.Lock()
		b.refusing--
		b.mu.Unlock()
		b.serving.Done()
	}()
	time.Sleep(b.shared.RejectDelay(who, 0))
	if err := conn.SetDeadline(time.Now().Add(refuseTimeout)); err != nil {
		return // the connection is gone
	}
	r := protocol.NewReader(conn, 64<<10) // any first message will do
	_, codec, err := r.Next()
	if codec = cmp.Or(codec, r.Codec()); codec == 0 && err != nil {
		return
	}
	_, _ = conn.Write(codec.AppendReply(nil, &protocol.Reply{Error: why})) // ignored: the connection can be gone
}

// logRefused logs a connection that was refused because of a limit.
func (b *Bridge) logRefused(socket string, who *unixsocket.Peer, why *protocol.Error) {
	b.log.Warn("connection rejected", "event", "connection_rejected", slog.Attr{Value: who.LogValue()}, "socket", socket, "error", why.Message)
}

func (b *Bridge) ended(s *session.Session) {
	b.mu.Lock()
	delete(b.sessions, s)
	if s.Peer != nil {
		if b.users[s.Peer.UID]--; b.users[s.Peer.UID] == 0 {
			delete(b.users, s.Peer.UID)
		}
	}
	b.mu.Unlock()
	b.serving.Done()
}

// releaseAfterGrace releases the jobs of a session that the server closed, unless it is stopping.
func (b *Bridge) releaseAfterGrace(s *session.Session) {
	b.reload.Lock()
	defer b.reload.Unlock()
	r := b.running
	if r == nil {
		return // stopping: the leases outlive the connection
	}
	for _, db := range b.config.Load().databases {
		r.left.Go(func() { s.ReleaseAfterGrace(db.Pipeline, r.stop.Done()) })
	}
}

// closeSessions closes every connection from the server's side.
func (b *Bridge) closeSessions() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing = true
	for s := range b.sessions {
		s.Close()
	}
}

// awaitSessions waits until the closed sessions have ended. After Abort it does not wait for clients to read their
// replies.
func (b *Bridge) awaitSessions() {
	ended := make(chan struct{})
	go func() {
		b.serving.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return
	case <-b.aborted:
	}
	b.mu.Lock()
	for s := range b.sessions {
		s.Cut()
	}
	b.mu.Unlock()
	<-ended
}
