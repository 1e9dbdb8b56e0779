package bridge

import (
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

func (f later) wait() (*protocol.Reply, func()) { return f() }

func answerWith(r *protocol.Reply) finisher { return finisher{reply: r} }

func fail(err *protocol.Error) finisher { return answerWith(&protocol.Reply{Error: err}) }
