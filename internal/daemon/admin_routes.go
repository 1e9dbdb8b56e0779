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
)

const (
	// stuckAfter is how long a part of the sidecar may not go on before /healthz says that it
	// is stuck.
	stuckAfter = 5 * time.Second
	// scrapes is how many are answered at a time.
	maxScrapes    = 4
	scrapeTimeout = 20 * time.Second
)

// routes are what the admin listener answers.
func (a *admin) routes() http.Handler {
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{
		ErrorLog:            scrapeLog{a.log},
		ErrorHandling:       promhttp.HTTPErrorOnError, // a part must not look like the whole
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTimeout, // until then nothing is sent
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { metrics.ServeHTTP(scrapeWriter{w}, r) })
	mux.HandleFunc("GET /healthz", a.healthz)
	mux.HandleFunc("GET /startupz", a.startupz)
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("/debug/pprof/", a.ifPprofOn(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", a.ifPprofOn(pprof.Cmdline))
	mux.HandleFunc("/debug/pprof/profile", a.ifPprofOn(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", a.ifPprofOn(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", a.ifPprofOn(pprof.Trace))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, "qsidecar: /metrics /healthz /startupz /readyz")
	})
	return mux
}

// scrapeAnswer is an answer whose error says that the metrics are not all known now, not that
// the program has a fault.
type scrapeWriter struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a scrapeWriter) WriteHeader(code int) {
	if code == http.StatusInternalServerError {
		code = http.StatusServiceUnavailable
	}
	a.ResponseWriter.WriteHeader(code)
}

// scrapeLog takes what promhttp logs.
type scrapeLog struct{ log *slog.Logger }

// Println implements promhttp.Logger. An answer that can't be sent is the scraper's affair: it
// went away, or its time was over.
func (l scrapeLog) Println(v ...any) {
	text := strings.TrimSpace(fmt.Sprintln(v...))
	if strings.HasPrefix(text, "error encoding and sending") {
		l.log.Debug("a scrape ended before its answer was sent", "error", text)
		return
	}
	l.log.Warn("some metrics could not be collected", "error", text)
}

// switched is a handler that is there as long as pprof is on.
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
	_, _ = io.WriteString(w, text+"\n") // whoever asked may be gone
}

// healthz says whether the process goes on, whatever its databases do.
func (a *admin) healthz(w http.ResponseWriter, r *http.Request) {
	if b := a.bridge.Load(); b != nil {
		ctx, cancel := context.WithTimeoutCause(r.Context(), stuckAfter, fmt.Errorf("no progress within %v", stuckAfter))
		defer cancel()
		if err := b.Alive(ctx); err != nil {
			respond(w, http.StatusServiceUnavailable, err.Error())
			return
		}
	}
	respond(w, http.StatusOK, "ok")
}

// startupz says whether the start is complete: the sockets listen.
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

// readyz says whether jobs can be had and stored: it started, does not stop, and reaches its databases.
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

// unready is why a sidecar that started is not ready; nil: it is. There is no address in
// it, and no word of a driver: nobody was asked who he is.
func notReadyReason(h bridge.Health) error {
	var why []string
	if h.Draining {
		why = append(why, "draining: no more jobs are given out, what is held may be settled")
	}
	for _, d := range h.Databases {
		switch {
		case d.Reachable:
		case d.Beat < 0:
			why = append(why, fmt.Sprintf("database %s: not reached yet (`qsidecar status` says why)", d.Name))
		default:
			why = append(why, fmt.Sprintf("database %s: not reachable, its last answer was %v ago (`qsidecar status` says why)", d.Name, d.Beat.Round(time.Millisecond)))
		}
	}
	if why == nil {
		return nil
	}
	return errors.New(strings.Join(why, "\n"))
}
