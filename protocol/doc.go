// Package protocol is the wire protocol of qsidecar, version 1: how bytes become requests and
// replies in two codecs (msgpack frames and JSON lines), and which input is rejected before
// anything is allocated for it.
//
// PROTOCOL.md in this directory is the specification. testdata/transcripts has conversations that
// the tests of the server and of every client replay.
//
// Start with message.go (the messages) and codec.go (their encoding). reader.go splits a stream
// into messages. fields.go and constructors.go describe each field once for both codecs and both
// directions, and request.go, reply.go and ops.go are the tables of fields.
//
// The package imports no other package of this module. It has no code for databases, job tables or
// queue semantics: package backends has its own type for a stored job, and package bridge converts.
package protocol
