package adminapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/qsidecar/qsidecar/protocol"
)

// maxRequests is how many requests and streams are served at a time. It is below the connections of the admin listener,
// so that metrics and health keep some.
const maxRequests = 48

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
	Users        []User // those with a token; nil: no client can change something, and reading needs no token
	HidePayloads bool   // see Server.PayloadsHidden
	MaxFrame     int    // size limit of a request's body: max_frame of the config

	// AnyHost disables the check of the Host header, which protects a loopback address from DNS rebinding.
	AnyHost bool
	Host    string // a name that the Host header can have, besides localhost and loopback addresses; empty: none

	// Origin and Prefix are the address at which a proxy serves the page: scheme, host and port without the default one, and
	// the path without the last slash. The proxy can leave out the prefix. Empty: there is no proxy, or no prefix.
	Origin, Prefix string
}

// Server is the API.
type Server struct {
	log      *slog.Logger
	sessions *sessions
	page     http.Handler
	rules    atomic.Pointer[rules] // never nil
	requests chan struct{}         // maxRequests
	denials  rate.Sometimes        // limits the log of refused requests

	mu      sync.Mutex
	streams chan struct{} // see Stopping
	changes []Change      // the newest last
}

// Change is a change that a client of the API or the page sent.
type Change struct {
	At         time.Time
	User, From string // User is empty for the token of admin.token_file
	Op         protocol.Op
	Queue      string
	Count      protocol.Opt[int64] // jobs that were changed
	Error      string
}

// maxChanges is how many changes are remembered. The log has all of them.
const maxChanges = 200

// Changes returns the last changes, the newest first.
func (s *Server) Changes() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.changes)
	slices.Reverse(all)
	return all
}

// remember adds a change to the list.
func (s *Server) remember(c Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes = append(s.changes, c)
	if len(s.changes) > maxChanges {
		s.changes = slices.Delete(s.changes, 0, len(s.changes)-maxChanges)
	}
}

// rules are Rules with what follows from them.
type rules struct {
	Rules
	originHost  string                      // of Origin
	crossOrigin *http.CrossOriginProtection // refuses requests that another site's page makes a browser send
}

func newRules(r Rules) *rules {
	all := &rules{Rules: r, crossOrigin: http.NewCrossOriginProtection()}
	if u, err := url.Parse(r.Origin); err == nil && r.Origin != "" && all.crossOrigin.AddTrustedOrigin(r.Origin) == nil {
		all.originHost = u.Hostname()
	}
	return all
}

// New returns a Server. Its rules are off until Configure is called.
func New(o Options) *Server {
	s := &Server{
		log:      o.Log,
		sessions: newSessions(o.Serve),
		page:     http.NotFoundHandler(),
		requests: make(chan struct{}, maxRequests),
		denials:  rate.Sometimes{Interval: time.Second},
		streams:  make(chan struct{}),
	}
	s.rules.Store(newRules(Rules{Off: true}))
	if o.Page != nil {
		s.page = o.Page(s)
	}
	return s
}

// Configure sets the rules. If they changed, it ends the streams, because their clients can have lost the right to read.
func (s *Server) Configure(r Rules) {
	was := s.rules.Swap(newRules(r))
	if was.MaxFrame != r.MaxFrame {
		s.sessions.renew() // a session keeps the limits that it began with
	}
	if !reflect.DeepEqual(was.Rules, r) {
		s.EndStreams()
	}
}

// Close ends all sessions and streams. The listener must be closed before.
func (s *Server) Close() {
	s.EndStreams()
	s.sessions.close()
}

// Stopping returns a channel that is closed when a stream (server-sent events) must end, because the listener closes or
// the rules that permitted its request changed, also if they changed before the call. ctx is that of the request.
func (s *Server) Stopping(ctx context.Context) <-chan struct{} { return clientOf(ctx).stopping }

// stopping returns the current channel of Stopping. It must be read before the rules: then a change of them closes it.
func (s *Server) stopping() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// EndStreams closes the channel of Stopping of each request that has begun.
func (s *Server) EndStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.streams)
	s.streams = make(chan struct{})
}

// PayloadsHidden reports whether replies about jobs and schedules come without payloads, results and headers. LeftOut of each job is
// then the number of bytes of the payload and the result.
func (s *Server) PayloadsHidden() bool { return s.rules.Load().HidePayloads }

// Do carries out one operation of the API: stats, status, peek, retry, change, delete, reclaim, cancel, purge, pause, resume, enqueue or
// reload. ctx is that of the HTTP request. If it ends, Do returns, but a change that has begun continues.
//
// Every error is a *protocol.Error. Each change is logged with the client that sent it.
func (s *Server) Do(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
	changes, known := ops[req.Op]
	if !known {
		return nil, unknownOp(req.Op)
	}
	if !changes {
		if (req.Text != "" || len(req.Headers) > 0) && s.PayloadsHidden() {
			return nil, protocol.Errorf(protocol.CodeForbidden, "payloads and headers are hidden (admin.payloads), so they can't be searched: search by id or key")
		}
		reply, err := s.sessions.call(ctx, req)
		if err == nil && s.PayloadsHidden() {
			hidePayloads(reply)
		}
		return reply, err
	}
	who := clientOf(ctx)
	if e := s.rules.Load().forbidsChange(who); e != nil {
		s.logDenied(who.from, e.Message)
		return nil, e
	}
	reply, err := s.sessions.call(ctx, req)
	s.logChange(who, req, reply, err)
	if err == nil && s.PayloadsHidden() {
		hidePayloads(reply)
	}
	return reply, err
}

// ops are the operations of the API, and whether each changes something.
var ops = map[protocol.Op]bool{
	protocol.OpStats: false, protocol.OpStatus: false, protocol.OpPeek: false, protocol.OpConfig: false, protocol.OpFleet: false, protocol.OpHistory: false, protocol.OpCheck: false, protocol.OpSchedules: false, protocol.OpBatches: false,
	protocol.OpRetry: true, protocol.OpChange: true, protocol.OpDelete: true, protocol.OpReclaim: true, protocol.OpCancel: true, protocol.OpPurge: true,
	protocol.OpPause: true, protocol.OpResume: true, protocol.OpLimit: true, protocol.OpSchedule: true, protocol.OpChangeSchedule: true, protocol.OpOpenBatch: true, protocol.OpCloseBatch: true, protocol.OpCancelBatch: true, protocol.OpEnqueue: true, protocol.OpReload: true,
}

func hidePayloads(r *protocol.Reply) {
	for i := range r.Batches {
		r.Batches[i].Payload = nil
	}
	for i := range r.Schedules {
		r.Schedules[i].Payload, r.Schedules[i].Headers = nil, nil
	}
	if r.Declared != nil {
		for i := range r.Declared.Differences {
			if d := &r.Declared.Differences[i]; d.Field == "payload" || d.Field == "headers" {
				d.From, d.To = "(hidden)", "(hidden)"
			}
		}
	}
	for i := range r.Views {
		v := &r.Views[i]
		if !v.LeftOut.Set {
			v.LeftOut = protocol.Some(int64(len(v.Payload) + len(v.Result)))
		}
		v.Payload, v.Result, v.Headers = nil, nil, nil
		if v.Progress != nil {
			v.Progress.Data = nil
		}
	}
}

// logChange logs a change, also one that failed, because a part of it can be done.
func (s *Server) logChange(who client, req *protocol.Request, reply *protocol.Reply, err error) {
	c := Change{At: time.Now(), User: who.user.Name, From: who.from, Op: req.Op, Queue: queueOf(req)}
	log := s.log.With("op", req.Op, "by", who.from, "auth", who.auth)
	if c.User != "" {
		log = log.With("user", c.User)
	}
	if c.Queue != "" {
		log = log.With("queue", c.Queue)
	}
	defer func() { s.remember(c) }()
	if err != nil {
		c.Error = err.Error()
		log.Warn("admin change failed", "event", "admin_change_failed", "error", err)
		return
	}
	if c.Count = reply.Count; req.Op == protocol.OpEnqueue {
		c.Count = protocol.Some(int64(max(1, len(reply.EnqueuedAll))))
	}
	if c.Count.Set {
		log = log.With("count", c.Count.Value)
	}
	log.Info("admin change", "event", "admin_change")
}

// queueOf returns the queue that a request changes: of several, the first one with an ellipsis.
func queueOf(req *protocol.Request) string {
	if req.Op != protocol.OpEnqueue {
		return req.Queue
	}
	for _, j := range req.Jobs {
		if j.Queue != req.Jobs[0].Queue {
			return req.Jobs[0].Queue + " …"
		}
	}
	if req.Jobs != nil {
		return req.Jobs[0].Queue
	}
	return req.Job.Queue
}

// logDenied logs a refused request, at most once a second.
func (s *Server) logDenied(from, why string) {
	s.denials.Do(func() {
		s.log.Warn("admin request denied", "event", "admin_denied", "by", from, "reason", why)
	})
}
