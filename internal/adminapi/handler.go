package adminapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/webpath"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// formBytes is the size limit of a request's body outside the API.
	formBytes = 1 << 20
	// replyTimeout is how long a client has to read a reply. The listener's own limit includes the time that the
	// request runs, which is too short for a change of many jobs.
	replyTimeout = 30 * time.Second
)

// securityPolicy lets the page load its own files only, and lets no other page show it in a frame.
const securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// SecureHeaders sets the headers that keep browsers from using a response in a way that it isn't meant for.
func SecureHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", securityPolicy)
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // with no-referrer the Origin of the page's own forms is null
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// Handler returns the handler of the API and the page.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/openapi.json", serveDocument)
	mux.HandleFunc("GET /api/v1/{op}", s.serveRead)
	mux.HandleFunc("POST /api/v1/{op}", s.serveOp)
	mux.HandleFunc("/api/v1/{op}", func(w http.ResponseWriter, r *http.Request) {
		op := protocol.Op(r.PathValue("op"))
		methods := []string{http.MethodGet, http.MethodPost}
		if ops[op] {
			methods = methods[1:]
		}
		w.Header().Set("Allow", strings.Join(methods, ", "))
		refuse(w, r, http.StatusMethodNotAllowed, protocol.Errorf(protocol.CodeBadRequest, "%s isn't an operation's method: send %s by %s", r.Method, op, strings.Join(methods, " or ")))
	})
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, http.StatusNotFound, protocol.Errorf(protocol.CodeUnknownOp, "nothing is at %s: the operations are at /api/v1/OP (GET for those that only read, POST for all), see /api/v1/openapi.json", r.URL.Path))
	})
	mux.HandleFunc("POST /logout", s.logout)
	mux.Handle("/", s.page)
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.guard(w, r, mux) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch prefix := s.rules.Load().Prefix; {
		case prefix != "" && r.URL.Path == prefix: // a link of this page would leave the prefix
			to := url.URL{Path: prefix + "/", RawQuery: r.URL.RawQuery}
			http.Redirect(w, r, to.String(), http.StatusSeeOther)
		case prefix != "" && strings.HasPrefix(r.URL.Path, prefix+"/"):
			http.StripPrefix(prefix, guarded).ServeHTTP(w, r)
		default:
			guarded.ServeHTTP(w, r)
		}
	})
}

// guard refuses the requests that the rules don't permit, and passes the others to next.
func (s *Server) guard(w http.ResponseWriter, r *http.Request, next http.Handler) {
	stopping := s.stopping()
	rules := s.rules.Load()
	if rules.Off {
		refuse(w, r, http.StatusNotFound, protocol.Errorf(protocol.CodeForbidden, "the API and the page are off (admin.access in the sidecar's config): this listener has /metrics /healthz /startupz /readyz"))
		return
	}
	if !rules.allowsHost(r.Host) {
		s.logDenied(r.RemoteAddr, "host "+r.Host)
		refuse(w, r, http.StatusMisdirectedRequest, protocol.Errorf(protocol.CodeForbidden, "the request is for the host %q, which isn't one of this listener: use localhost, 127.0.0.1 or the host in admin.listen; if a proxy serves this page, set admin.base_url to its address", r.Host))
		return
	}
	select {
	case s.requests <- struct{}{}:
		defer func() { <-s.requests }()
	default:
		w.Header().Set("Connection", "close") // the connection is free for metrics and health
		refuse(w, r, 0, &protocol.Error{Code: protocol.CodeBusy, RetryMS: protocol.Some[int64](1000), Message: "too many requests and pages are open: close some, or try again"})
		return
	}
	limit := int64(formBytes)
	if isAPI(r) {
		limit = int64(rules.MaxFrame)
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	if r.URL.Path == "/login" && r.Method == http.MethodPost {
		s.login(w, r, rules)
		return
	}
	who := rules.identify(r)
	who.stopping = stopping
	r = r.WithContext(context.WithValue(r.Context(), clientKey{}, who))
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if !rules.canRead(who) {
		if reads && (r.URL.Path == "/login" || strings.HasPrefix(path.Clean(r.URL.Path), "/assets/")) {
			s.page.ServeHTTP(w, r)
			return
		}
		s.refuseClient(w, r, who)
		return
	}
	if !reads {
		if e := s.forbidsRequest(rules, who, r); e != nil {
			s.logDenied(who.from, e.Message)
			refuse(w, r, 0, e)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // a change of many jobs takes long; see replyTimeout
	}
	next.ServeHTTP(w, r)
}

// forbidsRequest returns the error for a request that isn't a GET, or nil. The operations that only read can be sent by
// POST too.
func (s *Server) forbidsRequest(rules *rules, who client, r *http.Request) *protocol.Error {
	if op, ok := strings.CutPrefix(r.URL.Path, "/api/v1/"); ok {
		if changes, known := ops[protocol.Op(op)]; known && !changes {
			return nil
		}
	}
	if r.URL.Path == "/logout" {
		return rules.forbidsForm(who, r)
	}
	if e := rules.forbidsChange(who); e != nil {
		return e
	}
	return rules.forbidsForm(who, r)
}

// refuseClient answers a client without a token: a browser is sent to the login.
func (s *Server) refuseClient(w http.ResponseWriter, r *http.Request, who client) {
	if !isAPI(r) && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") {
		webpath.Redirect(w, r, loginPage(r.URL.RequestURI(), false))
		return
	}
	e := errNoToken()
	if r.Header.Get("Authorization") != "" {
		s.logDenied(who.from, e.Message)
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="qsidecar"`)
	refuse(w, r, http.StatusUnauthorized, e)
}

// login sets the cookie for a client that has the token. It doesn't limit attempts: see minToken in package config.
func (s *Server) login(w http.ResponseWriter, r *http.Request, rules *rules) {
	if err := rules.crossOrigin.Check(r); err != nil {
		s.logDenied(r.RemoteAddr, "login from the origin "+r.Header.Get("Origin"))
		refuse(w, r, 0, protocol.Errorf(protocol.CodeForbidden, "the login comes from another site's page (%v)%s", err, proxyAdvice))
		return
	}
	if err := r.ParseForm(); err != nil {
		refuse(w, r, 0, bodyError(err))
		return
	}
	user, ok := rules.userWith(strings.TrimSpace(r.PostForm.Get("token")))
	if !ok {
		s.logDenied(r.RemoteAddr, "login with a wrong token")
		webpath.Redirect(w, r, loginPage(webpath.Local(r.PostForm.Get("next")), true))
		return
	}
	rules.forgetLogins(w, r)
	http.SetCookie(w, user.cookie(r, user.newCookie(time.Now()), int(cookieLifetime/time.Second)))
	webpath.Redirect(w, r, webpath.Local(r.PostForm.Get("next")))
}

// loginPage returns the address of the login, which leads to the page next. failed: the last token was wrong.
func loginPage(next string, failed bool) string {
	query := url.Values{}
	if next != "/" {
		query.Set("next", next)
	}
	if failed {
		query.Set("failed", "1")
	}
	return strings.TrimSuffix("/login?"+query.Encode(), "?")
}

func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	s.rules.Load().forgetLogins(w, r)
	webpath.Redirect(w, r, "/login")
}

// forgetLogins deletes the cookies that a browser sent, because it can have logged in as several users.
func (r *rules) forgetLogins(w http.ResponseWriter, req *http.Request) {
	for _, u := range r.Users {
		if _, err := req.Cookie(u.cookieName()); err == nil {
			http.SetCookie(w, u.cookie(req, "", -1))
		}
	}
}

// cookie returns the cookie for the answer to /login or /logout. It has no path: a browser takes that of the request without
// its last part, which is the root of the page below any prefix.
func (u User) cookie(req *http.Request, value string, maxAge int) *http.Cookie {
	secure := strings.HasPrefix(req.Header.Get("Origin"), "https:") // a browser that reaches the page by TLS
	//nolint:gosec // Secure only if the browser can use it: the listener has no TLS
	return &http.Cookie{Name: u.cookieName(), Value: value, MaxAge: maxAge, Secure: secure, HttpOnly: true, SameSite: http.SameSiteStrictMode}
}

func isAPI(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }

// bodyError returns the error of a body that can't be read.
func bodyError(err error) *protocol.Error {
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return protocol.Errorf(protocol.CodeTooLarge, "the body has more than %d bytes (max_frame in the sidecar's config): send less", big.Limit)
	}
	return protocol.Errorf(protocol.CodeBadRequest, "the body can't be read: %v", err)
}

// refuse answers with an error: JSON from the API, text from the page. code 0 is the status of the error's code.
func refuse(w http.ResponseWriter, r *http.Request, code int, e *protocol.Error) {
	if isAPI(r) {
		writeReply(w, code, &protocol.Reply{Error: e})
		return
	}
	if code == 0 {
		code = StatusOf(e.Code)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	setRetryAfter(w.Header(), e)
	w.WriteHeader(code)
	_, _ = io.WriteString(w, e.Message+"\n") //nolint:gosec // plain text with nosniff; the client can be gone
}
