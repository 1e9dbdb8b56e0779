package session

import (
	"cmp"
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

	// releaseTimeout is how long the end of a session waits for the releases of its jobs. They continue after that.
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
	how := backends.Release{Uncounted: true}
	idle := s.beginReleases(how, true)
	s.finishReplies()
	s.awaitReleases(append(idle, s.beginReleases(how, false)...))
	s.send(&protocol.Reply{ID: id, OK: true})
	return errBye
}

// lost returns how the session's jobs are released if the reason of its end is a loss. Otherwise ok is false.
func (s *Session) lost() (how backends.Release, ok bool) {
	cause := context.Cause(s.gone)
	if s.closedByServer() || !errors.Is(cause, ErrHangUp) && !errors.Is(cause, errBadClient) && !errors.Is(cause, errStalled) {
		return backends.Release{}, false
	}
	return s.lossBy(cause), true
}

// releaseIdle begins to release the jobs of a session that lost its worker, except those that a request under way is about. The
// others don't wait for its requests: one can wait for a locked row.
func (s *Session) releaseIdle() []leaving {
	if how, ok := s.lost(); ok {
		return s.beginReleases(how, true)
	}
	return nil
}

// end releases the session's jobs as the reason of its end requires, and sends the last reply. It returns true if the
// server closed the session, whose leases outlive it then.
func (s *Session) end(bad *badInput, idle []leaving) (keepsLeases bool) {
	s.watch.end()
	how, lost := s.lost()
	if keepsLeases = s.closedByServer(); !keepsLeases {
		if !lost {
			how = backends.Release{Uncounted: true}
		}
		idle = append(idle, s.beginReleases(how, false)...)
	}
	s.awaitReleases(idle)
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
		s.awaitReleases(beginRelease(db, s, s.lossBy(errServer), false))
	case <-stop:
		db.Orphan(&s.quota) // no connection holds them, so the drain does not wait for them
	}
}

// lossBy returns the release of the session's jobs because of the cause. Each of the jobs can be the reason, so the
// message has their number.
func (s *Session) lossBy(cause error) backends.Release {
	message := cause.Error()
	s.lostWith = max(s.lostWith, s.quota.Jobs.Count()) // the idle jobs are released first
	if s.lostWith > 1 {
		message += fmt.Sprintf(" while it had %d jobs", s.lostWith)
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

// leaving is the release of a session's jobs in one database.
type leaving struct {
	db    *pipeline.Pipeline
	how   backends.Release
	held  int // jobs
	write *pipeline.PendingWrite
}

// beginReleases begins to release the session's jobs in all databases. With idle, jobs stay that a request under way is about.
func (s *Session) beginReleases(how backends.Release, idle bool) (all []leaving) {
	for _, db := range s.shared.Plan().Databases {
		all = append(all, beginRelease(db.Pipeline, s, how, idle)...)
	}
	return all
}

func beginRelease(db *pipeline.Pipeline, s *Session, how backends.Release, idle bool) []leaving {
	held, write := db.ReleaseSession(&s.quota, how, idle)
	if write == nil {
		return nil
	}
	return []leaving{{db, how, len(held), write}}
}

// awaitReleases waits for the releases, at most releaseTimeout in all, and logs what became of them.
func (s *Session) awaitReleases(all []leaving) {
	if len(all) == 0 {
		return
	}
	over := time.NewTimer(releaseTimeout)
	defer over.Stop()
	for i := range all {
		l := &all[i]
		select {
		case o := <-l.write.Done:
			if o.Err == nil {
				s.logLeft(l.db, &l.how, l.held, l.write, &o.Result)
			} else {
				s.log().Error("can't return the jobs of a session", "event", "session_return_failed", "error", o.Err)
			}
		case <-over.C:
			s.log().Warn("still returning the jobs of a session", "event", "session_return_slow")
			return
		}
	}
}

// lostInEvent is the maximum number of leases in one event. They fit the smallest max_reply.
const lostInEvent = 500

// ReportLost logs leases that the session lost in the database, and sends them to a client that asked for these events.
func (s *Session) ReportLost(db *pipeline.Pipeline, gone []lease.Held, reason string) {
	texts := make([]string, len(gone))
	for i := range gone {
		logLeaseLost(db, &gone[i], s, cmp.Or(reason, "heartbeat"))
		texts[i] = wirejob.FormatLease(db.Info.Database, gone[i].Lease)
	}
	for part := range slices.Chunk(texts, lostInEvent) {
		s.sendEvent(&protocol.Reply{Event: protocol.EventLost, Lost: part, Reason: reason})
	}
}
