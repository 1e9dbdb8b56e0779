package bridge

import (
	"context"
	"errors"
	"io"

	"github.com/qsidecar/qsidecar/bridge/internal/outbox"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// ErrHangUp is the cause of a ctx of ServeStream whose client no longer reads: a stream cannot notice that itself.
var ErrHangUp = errHangUp

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
			s.hangUp(errHangUp)
			feed.CloseWithError(errHangUp)
			return
		}
		s.close()
	})()
	s.serve()
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
	if forget := s.connected(); forget != nil {
		s.serve()
		forget()
	}
	_ = conn.Close() // every write that matters succeeded or failed before
	s.disconnected()
}

// admit creates the session of an accepted connection. It returns nil if no request can be carried out: the Bridge stops, the
// socket was removed, or a limit is reached.
func (b *Bridge) admit(conn unixsocket.Conn, socket string) *session {
	who, err := conn.Peer()
	if err != nil && b.plan.Load().socket(socket).Allow != nil {
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

// connected starts to watch for a hang-up. It returns the function that ends that, or nil if it failed.
func (s *session) connected() (forget func()) {
	s.logConnected(true)
	forget, err := s.conn.OnHangUp(func() { s.hangUp(errHangUp) })
	if err != nil {
		s.bridge.log.Error("connection failed", "event", "connection_failed", "error", err)
		return nil
	}
	return forget
}

// disconnected ends what the session has in the Bridge.
func (s *session) disconnected() {
	s.logConnected(false)
	s.bridge.ended(s)
}

// open creates a session. It returns nil if the Bridge stops or a reload removed the socket, and an error if there
// are too many sessions.
func (b *Bridge) open(in io.Reader, out outbox.DeadlineWriter, conn unixsocket.Conn, socket string, who *unixsocket.Peer) (*session, *protocol.Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return nil, nil
	}
	if e := b.full(who); e != nil {
		return nil, e
	}
	p := b.plan.Load()
	by := p.socket(socket)
	if by.Path != socket {
		return nil, nil // dropSockets already closed the socket's sessions
	}
	s := newSession(b, p, in, out, conn, &by, who)
	b.sessions[s] = struct{}{}
	if who != nil {
		b.users[who.UID]++
	}
	b.metrics.Sessions.Inc()
	b.serving.Add(1)
	return s, nil
}

func (b *Bridge) ended(s *session) {
	b.mu.Lock()
	delete(b.sessions, s)
	if s.peer != nil {
		if b.users[s.peer.UID]--; b.users[s.peer.UID] == 0 {
			delete(b.users, s.peer.UID)
		}
	}
	b.mu.Unlock()
	b.serving.Done()
}

// closeSessions closes every connection from the server's side.
func (b *Bridge) closeSessions() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing = true
	for s := range b.sessions {
		s.close()
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
		s.cut()
	}
	b.mu.Unlock()
	<-ended
}
