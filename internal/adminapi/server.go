package adminapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"

	"github.com/qsidecar/qsidecar/protocol"
)

// Options configure a Server.
type Options struct {
	// Serve serves one protocol session, as bridge.Bridge.ServeStream does.
	Serve func(ctx context.Context, in io.Reader, out io.Writer) error

	// Page returns the handler of every request that the API doesn't serve. Nil: they are not found.
	Page func(*Server) http.Handler

	Log *slog.Logger
}

// Rules are what HTTP clients can do. A reload changes them.
type Rules struct {
	Off          bool   // neither the API nor the page is served
	Write        bool   // clients with the token can change something
	Token        string // empty: nobody can change something, and reading needs no token
	HidePayloads bool   // see Server.PayloadsHidden

	// Hosts are the names that a request's Host header can have, besides localhost and loopback addresses. Nil: any.
	Hosts []string
}

// Server is the API.
type Server struct{}

// New returns a Server. Its rules are off until Configure is called.
func New(Options) *Server { return &Server{} }

// Configure sets the rules. It ends the streams, because their clients can have lost the right to read.
func (s *Server) Configure(Rules) {}

// Close ends all sessions and streams.
func (s *Server) Close() {}

// Handler returns the handler of the API and the page.
func (s *Server) Handler() http.Handler { return http.NotFoundHandler() }

// Do carries out one operation of the API: stats, status, peek, retry, delete, reclaim, purge, pause, resume, enqueue or
// reload. ctx is that of the HTTP request. Its end ends the wait, but not a change that has begun.
//
// Every error is a *protocol.Error. Each change is logged with who did it.
func (s *Server) Do(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
	return nil, errors.New("not implemented")
}

// Access returns what the sender of a request can do, the CSRF token that its changes need (empty: none, because it
// authenticates without a cookie, or because it can't change anything), and who it is, for people.
func (s *Server) Access(*http.Request) (canChange bool, csrf, actor string) { return false, "", "" }

// PayloadsHidden reports whether peek replies come without payloads, results and headers. LeftOut of each job then is the
// number of bytes of the payload and the result.
func (s *Server) PayloadsHidden() bool { return false }

// Stopping returns a channel that is closed when streams (server-sent events) must end: the listener is being closed, or
// the rules changed.
func (s *Server) Stopping() <-chan struct{} { return nil }
