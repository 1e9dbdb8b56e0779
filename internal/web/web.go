package web

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// Options configure a Page.
type Options struct {
	// Do carries out one request. Its context is that of the HTTP request, or has the same values. The poller's is one
	// of no request, and only reads.
	Do func(ctx context.Context, req *protocol.Request) (*protocol.Reply, error)

	// Access returns what the sender of a request can do, the CSRF token for the forms, and a name of the
	// sender, for people.
	Access func(r *http.Request) (canChange bool, csrf, actor string)

	// User returns the name of the sender of a request; empty: it has none. Nil: no one has one.
	User func(r *http.Request) string

	// Changes returns the last changes of all users, the newest first. Nil: there are none.
	Changes func() []Change

	// StatusOf returns the HTTP status of an error.
	StatusOf func(code protocol.Code) int

	// HidePayloads reports whether replies come without payloads, results and headers. Nil: they don't.
	HidePayloads func() bool

	// Stopping returns a channel that is closed when the event stream of a request must end. ctx is that of the request.
	// Nil: it ends with its request.
	Stopping func(ctx context.Context) <-chan struct{}

	// Version is the program's version, for people.
	Version string
}

// Change is a change that a user of the page or the API sent.
type Change struct {
	At         time.Time
	User, From string // User is empty if the token names no one
	Op         protocol.Op
	Queue      string
	Count      protocol.Opt[int64] // jobs
	Error      string
}

// Page serves the web page. It starts goroutines when it is first asked for something. Close ends them.
type Page struct {
	opts    Options
	poller  *poller
	tasks   *tasks
	streams chan struct{} // holds one value for each open event stream
	handler http.Handler
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// New returns a Page.
func New(o Options) *Page {
	if o.User == nil {
		o.User = func(*http.Request) string { return "" }
	}
	if o.Changes == nil {
		o.Changes = func() []Change { return nil }
	}
	if o.HidePayloads == nil {
		o.HidePayloads = func() bool { return false }
	}
	if o.Stopping == nil {
		o.Stopping = func(context.Context) <-chan struct{} { return nil }
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Page{opts: o, stop: stop, streams: make(chan struct{}, maxStreams)}
	p.poller = newPoller(ctx, &p.wg, o.Do)
	p.tasks = newTasks(ctx, &p.wg, o.Do)
	p.handler = p.routes()
	return p
}

// Close ends the event streams and the operations that still run, and waits for the goroutines of the Page.
func (p *Page) Close() {
	p.poller.close()
	p.tasks.close()
	p.stop()
	p.wg.Wait()
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

func (p *Page) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.overview)
	mux.HandleFunc("GET /queue", p.queue)
	mux.HandleFunc("GET /job", p.job)
	mux.HandleFunc("GET /search", p.search)
	mux.HandleFunc("GET /dead", p.dead)
	mux.HandleFunc("GET /workers", p.workers)
	mux.HandleFunc("GET /schedules", p.schedules)
	mux.HandleFunc("GET /batches", p.batchList)
	mux.HandleFunc("GET /batch", p.batch)
	mux.HandleFunc("GET /sidecars", p.sidecars)
	mux.HandleFunc("GET /config", p.config)
	mux.HandleFunc("GET /check", p.check)
	mux.HandleFunc("GET /tasks", p.taskList)
	mux.HandleFunc("GET /task", p.task)
	mux.HandleFunc("GET /confirm", p.confirm)
	mux.HandleFunc("GET /login", p.login)
	mux.HandleFunc("GET /events", p.events)
	mux.HandleFunc("GET /assets/{file}", p.asset)
	mux.HandleFunc("POST /do", p.change)
	mux.HandleFunc("POST /stop", p.stopTask)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, http.StatusNotFound, "This page does not exist. Metrics are at /metrics, health at /healthz, /startupz and /readyz, and the API at /api/v1/OP (see /api/v1/openapi.json).")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// do carries out a request that reads.
func (p *Page) do(r *http.Request, req *protocol.Request) (*protocol.Reply, error) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), readTimeout, errors.New("the sidecar did not answer in time: try again"))
	defer cancel()
	return p.opts.Do(ctx, req)
}

// readTimeout bounds how long a page waits for the sidecar. The listener's limit for a response is longer.
const readTimeout = 20 * time.Second

// explain returns an error for people.
func explain(err error) string {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e.Message
	}
	return err.Error()
}
