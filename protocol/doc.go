// Package protocol is the wire of qsidecar, version 1, and nothing else: how
// bytes become requests and replies, in two codecs (msgpack frames and JSON
// lines), and what is refused before anything is allocated for it.
//
// PROTOCOL.md beside this file is the specification; testdata/transcripts holds
// conversations that the server's tests and every client's tests replay. The
// package knows no database, no job table and no queue semantics: a stored job
// is another type (package backends), and package bridge translates.
package protocol
