package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/adminapi"
)

const (
	// stuckAfter is how long /healthz waits for each part of the sidecar.
	stuckAfter = 5 * time.Second
	// maxScrapes is how many scrapes run at once.
	maxScrapes    = 4
	scrapeTimeout = 20 * time.Second
)

// routes returns the handler of the admin listener.
func (a *admin) routes() http.Handler {
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{
		ErrorLog:            scrapeLog{a.log},
		ErrorHandling:       promhttp.HTTPErrorOnError, // never return a part of the metrics
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTimeout, // nothing is sent before the end
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { metrics.ServeHTTP(scrapeWriter{w}, r) })
	mux.HandleFunc("GET /healthz", a.healthz)
	mux.HandleFunc("GET /startupz", a.startupz)
	mux.HandleFunc("GET /readyz", a.readyz)
	for _, path := range []string{"/metrics", "/healthz", "/startupz", "/readyz"} { // any other method; without this, it is the page's
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", "GET, HEAD")
			respond(w, http.StatusMethodNotAllowed, "use GET")
		})
	}
	mux.HandleFunc("/debug/pprof/", a.ifPprofOn(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", a.ifPprofOn(pprof.Cmdline))
	mux.HandleFunc("/debug/pprof/profile", a.ifPprofOn(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", a.ifPprofOn(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", a.ifPprofOn(pprof.Trace))
	mux.Handle("/", a.api.Handler())
	return adminapi.SecureHeaders(mux)
}

// scrapeWriter turns status 500 into 503, because missing metrics are temporary.
type scrapeWriter struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (s scrapeWriter) WriteHeader(code int) {
	if code == http.StatusInternalServerError {
		code = http.StatusServiceUnavailable
	}
	s.ResponseWriter.WriteHeader(code)
}

// scrapeLog receives the log of promhttp.
type scrapeLog struct{ log *slog.Logger }

// Println implements promhttp.Logger. An answer that can't be sent is not an error of the
// sidecar: the scraper closed the connection, or its time was over.
func (s scrapeLog) Println(v ...any) {
	text := strings.TrimSpace(fmt.Sprintln(v...))
	if strings.HasPrefix(text, "error encoding and sending") {
		s.log.Debug("scrape aborted by the client", "event", "scrape_aborted", "error", text)
		return
	}
	s.log.Warn("scrape failed", "event", "scrape_failed", "error", text)
}

// ifPprofOn returns a handler that works only while pprof is on.
func (a *admin) ifPprofOn(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !a.pprof.Load() {
			respond(w, http.StatusNotFound, "profiles are off: admin.pprof in the config switches them on")
			return
		}
		h(w, r)
	}
}

func respond(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n") // the client can be gone
}

// healthz reports whether the process makes progress, and whether its sockets are at their paths. It ignores the state
// of databases.
func (a *admin) healthz(w http.ResponseWriter, r *http.Request) {
	if b := a.bridge.Load(); b != nil {
		ctx, cancel := context.WithTimeoutCause(r.Context(), stuckAfter, fmt.Errorf("no progress within %v", stuckAfter))
		defer cancel()
		if err := b.Alive(ctx); err != nil {
			respond(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		if why := lostSockets(b.Health()); why != nil {
			respond(w, http.StatusServiceUnavailable, strings.Join(why, "\n"))
			return
		}
	}
	respond(w, http.StatusOK, "ok")
}

// lostSockets returns why clients can't connect, for each socket whose file was removed or replaced.
func lostSockets(h bridge.Health) (why []string) {
	for _, s := range h.Lost {
		why = append(why, fmt.Sprintf("socket %s: %v", s.Path, s.Err))
	}
	return why
}

// startupz reports whether the sockets listen.
func (a *admin) startupz(w http.ResponseWriter, _ *http.Request) {
	if err := a.started(); err != nil {
		respond(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	respond(w, http.StatusOK, "ok")
}

func (a *admin) started() error {
	b := a.bridge.Load()
	if b == nil {
		return errors.New("starting: the databases are being opened")
	}
	if b.Health().Starting {
		return errors.New("starting: the sockets do not listen yet")
	}
	return nil
}

// readyz reports whether jobs can be claimed and stored: the sidecar has started, isn't
// draining, and reaches its databases.
func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) {
	err := a.started()
	if err == nil {
		err = notReadyReason(a.bridge.Load().Health())
	}
	if err != nil {
		respond(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	respond(w, http.StatusOK, "ok")
}

// notReadyReason returns why a started sidecar isn't ready, or nil. It contains no address
// and no driver error, because the client isn't authenticated.
func notReadyReason(h bridge.Health) error {
	why := lostSockets(h)
	if h.Draining {
		why = append(why, "draining: no more jobs are delivered, and workers can settle their jobs")
	}
	for _, d := range h.Databases {
		switch {
		case d.Reachable:
		case d.HeartbeatAge < 0:
			why = append(why, fmt.Sprintf("database %s: not reached yet (see `qsidecar status`)", d.Name))
		default:
			why = append(why, fmt.Sprintf("database %s: not reachable, its last answer was %v ago (see `qsidecar status`)", d.Name, d.HeartbeatAge.Round(time.Millisecond)))
		}
	}
	if why == nil {
		return nil
	}
	return errors.New(strings.Join(why, "\n"))
}
