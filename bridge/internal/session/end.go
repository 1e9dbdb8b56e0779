package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// lingerTimeout is how long the server reads and discards the input of a client that broke the protocol. It lets
	// the client read the error.
	lingerTimeout = time.Second

	// releaseTimeout is how long the end of a session waits for the release of its jobs. The release continues after
	// that.
	releaseTimeout = 5 * time.Second
)

// badInput is an error after which the stream is not reliable.
type badInput struct {
	id    protocol.RequestID // of the request at fault, if it was readable
	err   *protocol.Error
	bytes int // size of the input at fault
}

func (b *badInput) Error() string { return b.err.Error() }

// finishReplies waits until every reply and event was sent, or can't be sent any more. No event is sent after that.
func (s *Session) finishReplies() {
	s.requests.Wait()
	s.mu.Lock()
	s.eventsOver = true
	s.mu.Unlock()
	s.events.Wait()
}

// bye ends the open requests, releases the session's jobs, and replies.
func (s *Session) bye(id protocol.RequestID) error {
	s.hangUp(errBye)
	s.finishReplies()
	s.releaseAll(backends.Release{Uncounted: true})
	s.send(&protocol.Reply{ID: id, OK: true})
	return errBye
}

// end releases the session's jobs as the reason of its end requires, and sends the last reply. It returns true if the
// server closed the session, whose leases outlive it then.
func (s *Session) end(bad *badInput) (keepsLeases bool) {
	s.watch.end()
	cause := context.Cause(s.gone)
	switch {
	case s.closedByServer():
		keepsLeases = true
	case errors.Is(cause, ErrHangUp), errors.Is(cause, errBadClient), errors.Is(cause, errStalled):
		s.releaseAll(s.lossBy(cause))
	default:
		s.releaseAll(backends.Release{Uncounted: true})
	}
	if bad != nil {
		time.Sleep(s.shared.RejectDelay(s.Peer, bad.bytes))
		s.send(&protocol.Reply{ID: bad.id, Error: bad.err})
		s.linger()
	}
	s.hangUp(errServer) // frees the context; an earlier cause stays
	s.out.Fail(errServer)
	return keepsLeases
}

// ReleaseAfterGrace releases the jobs of a session that the server closed while it runs, unless stop is closed first. It waits
// for the restart grace, in which the worker can settle them over another connection.
func (s *Session) ReleaseAfterGrace(db *pipeline.Pipeline, stop <-chan struct{}) {
	if !db.Holds(&s.quota) {
		return
	}
	grace := time.NewTimer(db.RestartGrace())
	defer grace.Stop()
	select {
	case <-grace.C:
		s.release(db, s.lossBy(errServer))
	case <-stop:
		db.Orphan(&s.quota) // no connection holds them, so the drain does not wait for them
	}
}

// lossBy returns the release of the session's jobs because of the cause. Each of the jobs can be the reason, so the
// message has their number.
func (s *Session) lossBy(cause error) backends.Release {
	message := cause.Error()
	if n := s.quota.Jobs.Count(); n > 1 {
		message += fmt.Sprintf(" while it had %d jobs", n)
	}
	return backends.Release{Cause: backends.CauseDisconnected, Message: message}
}

// linger discards the input that the client still sends, so that closing the connection does not destroy the error
// that the client has not read yet.
func (s *Session) linger() {
	if s.conn == nil {
		return
	}
	_ = s.conn.CloseWrite() // fails on a connection that is gone already
	_ = s.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.Copy(io.Discard, s.conn) // best effort: errors don't matter
}

// releaseAll releases the session's jobs in all databases. It waits for each at most releaseTimeout.
func (s *Session) releaseAll(how backends.Release) {
	for _, db := range s.shared.Plan().Databases {
		s.release(db.Pipeline, how)
	}
}

// release is releaseAll in one database.
func (s *Session) release(db *pipeline.Pipeline, how backends.Release) {
	held, p := db.ReleaseSession(&s.quota, how)
	if p == nil {
		return
	}
	select {
	case o := <-p.Done:
		if o.Err == nil {
			s.logLeft(db, &how, len(held), p, &o.Result)
		} else {
			s.log().Error("can't return the jobs of a session", "event", "session_return_failed", "error", o.Err)
		}
	case <-time.After(releaseTimeout):
		s.log().Warn("still returning the jobs of a session", "event", "session_return_slow")
	}
}

// lostInEvent is the maximum number of leases in one event. They fit the smallest max_reply.
const lostInEvent = 500

// ReportLost logs leases that the session lost in the database, and sends them to a client that asked for these events.
func (s *Session) ReportLost(db *pipeline.Pipeline, gone []lease.Held) {
	texts := make([]string, len(gone))
	for i := range gone {
		logLeaseLost(db, &gone[i], s, "heartbeat")
		texts[i] = wirejob.FormatLease(db.Info.Database, gone[i].Lease)
	}
	for part := range slices.Chunk(texts, lostInEvent) {
		s.sendEvent(protocol.EventLost, part)
	}
}
