package session

import (
	"runtime"
	"slices"

	"github.com/qsidecar/qsidecar/bridge/internal/replysize"
	"github.com/qsidecar/qsidecar/protocol"
)

// finisher is the rest of a request that was started: its reply, or a pendingReply that waits for the reply.
type finisher struct {
	reply *protocol.Reply
	rest  pendingReply // nil: reply is the reply
	// keeps means that the request's memory stays in use, so the next request is read only after this one.
	keeps bool
	waits bool // a claim that can wait for up to an hour
}

// pendingReply is a reply that a request waits for. Only one goroutine uses it.
type pendingReply interface {
	// wait returns a nil reply if the client is gone. sent, if not nil, is called after the reply was passed to the
	// connection.
	wait() (reply *protocol.Reply, sent func())
}

// later is the wait of a pendingReply.
type later func() (reply *protocol.Reply, sent func())

func (l later) wait() (*protocol.Reply, func()) { return l() }

func answerWith(r *protocol.Reply) finisher { return finisher{reply: r} }

func fail(err *protocol.Error) finisher { return answerWith(&protocol.Reply{Error: err}) }

func (s *Session) failure(err error) *protocol.Reply {
	return &protocol.Reply{Error: s.toClient(err)}
}

// busyMemory returns the reply for a request that got no memory.
func busyMemory(err error) *protocol.Error { return protocol.Errorf(protocol.CodeBusy, "%v", err) }

func busyReply(format string, args ...any) *protocol.Reply {
	return &protocol.Reply{Error: protocol.Errorf(protocol.CodeBusy, format, args...)}
}

func (s *Session) answer(id protocol.RequestID, reply *protocol.Reply) {
	reply.ID = id
	reply.OK = reply.Error == nil
	s.send(reply)
}

// answerAsync is answer without waiting for the write, for a request with an id: its client can send many requests
// before it reads a reply.
func (s *Session) answerAsync(id protocol.RequestID, reply *protocol.Reply) {
	if !id.IsSet() {
		s.answer(id, reply)
		return
	}
	reply.ID, reply.OK = id, reply.Error == nil
	first, err := s.out.Post(s.encoded(reply))
	if first {
		s.requests.Go(func() { s.written(s.out.Flush()) })
	}
	s.written(err)
}

// send writes a message. If the session has other open requests, send first lets goroutines run that have replies,
// too: one commit answers many requests. One write sends all of them.
func (s *Session) send(reply *protocol.Reply) {
	first, err := s.out.Post(s.encoded(reply))
	if first {
		if len(s.slots) > 1 {
			runtime.Gosched()
		}
		err = s.out.Flush()
	}
	s.written(err)
}

// written ends the session after a write error: the client is gone.
func (s *Session) written(err error) {
	if err != nil {
		s.hangUp(ErrHangUp)
	}
}

// Notify sends an event to a client that subscribed to it.
func (s *Session) Notify(event string) { s.sendEvent(&protocol.Reply{Event: event}) }

// sendEvent sends an event to a client that subscribed to it. It does not wait for the client. The session ends only
// after the event was sent.
func (s *Session) sendEvent(event *protocol.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.subscribed, event.Event) && !s.eventsOver {
		s.events.Go(func() { s.send(event) })
	}
}

// replyLimit returns the limit for the replies to the client. The codec is JSON before the client's first message.
func (s *Session) replyLimit() replysize.Limit {
	codec := protocol.JSON
	if c := protocol.Codec(s.codec.Load()); c != 0 {
		codec = c
	}
	return replysize.Limit{Max: s.limits.MaxReply, Codec: codec}
}

// encoded returns a function that appends the reply.
func (s *Session) encoded(reply *protocol.Reply) func(buf []byte) []byte {
	limit := s.replyLimit()
	return func(buf []byte) []byte { return limit.Append(buf, reply) }
}
