package bridge

import (
	"github.com/qsidecar/qsidecar/bridge/internal/replysize"
	"github.com/qsidecar/qsidecar/protocol"
)

// replyLimit returns the limit for the replies to the client. The codec is JSON before the client's first message.
func (s *session) replyLimit() replysize.Limit {
	codec := protocol.JSON
	if c := protocol.Codec(s.codec.Load()); c != 0 {
		codec = c
	}
	return replysize.Limit{Max: s.limits.MaxReply, Codec: codec}
}

// encoded returns a function that appends the reply.
func (s *session) encoded(reply *protocol.Reply) func(buf []byte) []byte {
	limit := s.replyLimit()
	return func(buf []byte) []byte { return limit.Append(buf, reply) }
}
