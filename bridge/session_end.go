package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// end releases the session's jobs as the reason of its end requires, and sends the last reply.
func (s *session) end(bad *badInput) {
	s.watch.Close()
	cause := context.Cause(s.gone)
	switch {
	case s.closedByServer():
		s.bridge.releaseAfterGrace(s) // its leases outlive the connection
	case errors.Is(cause, errHangUp), errors.Is(cause, errBadClient), errors.Is(cause, errStalled):
		s.releaseAll(s.lossBy(cause))
	default:
		s.releaseAll(backends.Release{Uncounted: true})
	}
	if bad != nil {
		time.Sleep(s.bridge.rejectDelay(s.peer, bad.bytes))
		s.send(&protocol.Reply{ID: bad.id, Error: bad.err})
		s.linger()
	}
	s.hangUp(errServer) // frees the context; an earlier cause stays
	s.out.Fail(errServer)
}

// lossBy returns the release of the session's jobs because of the cause. Each of the jobs can be the reason, so the
// message has their number.
func (s *session) lossBy(cause error) backends.Release {
	message := cause.Error()
	if n := s.quota.Jobs.Count(); n > 1 {
		message += fmt.Sprintf(" while it had %d jobs", n)
	}
	return backends.Release{Cause: backends.CauseDisconnected, Message: message}
}

// badInput is an error after which the stream is not reliable.
type badInput struct {
	id    protocol.RequestID // of the request at fault, if it was readable
	err   *protocol.Error
	bytes int // size of the input at fault
}

func (b *badInput) Error() string { return b.err.Error() }

// hangUp ends the session's waits for a reason. The first reason stays.
func (s *session) hangUp(cause error) {
	s.cancel(cause)
	s.waits.End()
}

// peerGone reports whether the peer hung up, rather than only ended its input.
func (s *session) peerGone() bool {
	return s.conn != nil && s.conn.HungUp()
}

// close ends the session from the server's side. The session stops reading, finishes what it read and releases
// nothing.
func (s *session) close() {
	s.mu.Lock()
	s.byServer = true
	s.mu.Unlock()
	s.hangUp(errServer)
	// These fail only on a closed connection, which is the goal.
	_ = s.writes.SetWriteDeadline(time.Now().Add(lastReplyTimeout))
	if s.conn != nil {
		_ = s.conn.SetReadDeadline(time.Now())
	} else if c, ok := s.in.(io.Closer); ok {
		_ = c.Close() // our own pipe: it cannot fail
	}
}

// cut stops the writes of a session that is being closed.
func (s *session) cut() { _ = s.writes.SetWriteDeadline(time.Now()) }

func (s *session) closedByServer() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byServer
}

// linger discards the input that the client still sends, so that closing the connection does not destroy the error
// that the client has not read yet.
func (s *session) linger() {
	if s.conn == nil {
		return
	}
	_ = s.conn.CloseWrite() // fails on a connection that is gone already
	_ = s.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.Copy(io.Discard, s.conn) // best effort: errors don't matter
}

// releaseAll releases the session's jobs in all databases. It waits for each at most releaseTimeout.
func (s *session) releaseAll(how backends.Release) {
	for _, b := range s.bridge.plan.Load().databases {
		s.release(b, how)
	}
}

// release is releaseAll in one database.
func (s *session) release(b *database, how backends.Release) {
	held, p := b.ReleaseSession(&s.quota, how)
	if p == nil {
		return
	}
	select {
	case o := <-p.Done:
		if o.Err == nil {
			s.logLeft(b, &how, len(held), p, &o.Result)
		} else {
			s.log().Error("can't return the jobs of a session", "event", "session_return_failed", "error", o.Err)
		}
	case <-time.After(releaseTimeout):
		s.log().Warn("still returning the jobs of a session", "event", "session_return_slow")
	}
}

// bye ends the open requests, releases the session's jobs, and replies.
func (s *session) bye(id protocol.RequestID) error {
	s.hangUp(errBye)
	s.finishReplies()
	s.releaseAll(backends.Release{Uncounted: true})
	s.send(&protocol.Reply{ID: id, OK: true})
	return errBye
}
