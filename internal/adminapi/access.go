package adminapi

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// cookieLifetime is how long a login lasts.
const cookieLifetime = 12 * time.Hour

// The ways to authenticate.
const (
	authNone   = "none"
	authToken  = "token"
	authCookie = "cookie"
)

// client is the sender of a request.
type client struct {
	from string // its address, or its user and process
	auth string
	csrf string // the token that its changes need; empty: none

	stopping <-chan struct{} // see Server.Stopping; nil: never
}

// canRead reports whether the client can use the API and the page.
func (r *rules) canRead(c client) bool { return r.Token == "" || c.auth != authNone }

// canChange reports whether the client can change something.
func (r *rules) canChange(c client) bool { return r.Write && r.Token != "" && c.auth != authNone }

// forbidsChange returns the error for a client that can't change something, or nil.
func (r *rules) forbidsChange(c client) *protocol.Error {
	switch {
	case r.canChange(c):
		return nil
	case !r.Write || r.Token == "":
		return protocol.Errorf(protocol.CodeForbidden, "the admin listener only serves reads: set admin.access: write and admin.token_file in the sidecar's config to permit changes")
	}
	return errNoToken()
}

// errNoToken is the error of a client that did not authenticate.
func errNoToken() *protocol.Error {
	return protocol.Errorf(protocol.CodeForbidden, "the request has no valid token: send the content of admin.token_file as Authorization: Bearer TOKEN")
}

type clientKey struct{}

// clientOf returns the client of a request's context. Without one it is a client that can only read.
func clientOf(ctx context.Context) client {
	if c, ok := ctx.Value(clientKey{}).(client); ok {
		return c
	}
	return client{from: "the sidecar", auth: authNone}
}

// Access returns what the sender of a request can do, the CSRF token that its changes and its logout need (empty: none,
// because it authenticates without a cookie), and a name of the sender, for people.
func (s *Server) Access(r *http.Request) (canChange bool, csrf, actor string) {
	c := clientOf(r.Context())
	return s.rules.Load().canChange(c), c.csrf, c.from + " (" + c.auth + ")"
}

// identify finds out who sent a request.
func (r *rules) identify(req *http.Request) client {
	c := client{from: req.RemoteAddr, auth: authNone}
	if r.Token == "" {
		return c
	}
	if token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); ok {
		if r.isToken(strings.TrimSpace(token)) {
			c.auth = authToken
		}
		return c
	}
	if cookie, err := req.Cookie(r.cookieName()); err == nil && r.isCookie(cookie.Value, time.Now()) {
		c.auth, c.csrf = authCookie, r.csrf(cookie.Value)
	}
	return c
}

// isToken compares in constant time. The hashes have the same length.
func (r *rules) isToken(s string) bool {
	got, want := sha256.Sum256([]byte(s)), sha256.Sum256([]byte(r.Token))
	return hmac.Equal(got[:], want[:])
}

// cookieKey derives the key of cookies from the token: a new token makes all cookies invalid, and a restart none.
func cookieKey(token string) []byte {
	if token == "" {
		return nil
	}
	return sign([]byte(token), "qsidecar admin cookies")
}

func sign(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text)) // never fails
	return m.Sum(nil)
}

// cookieName depends on the key, because browsers send a cookie to all ports of a host: sidecars with different tokens
// must not overwrite each other's.
func (r *rules) cookieName() string { return "qsidecar_" + hex.EncodeToString(sign(r.key, "name")[:4]) }

// csrf returns the token that changes with this cookie need.
func (r *rules) csrf(cookie string) string {
	return base64.RawURLEncoding.EncodeToString(sign(r.key, "csrf "+cookie))
}

// newCookie returns a cookie's value: when it expires and a random number, and their signature.
func (r *rules) newCookie(now time.Time) string {
	raw := make([]byte, 24)
	binary.BigEndian.PutUint64(raw, uint64(now.Add(cookieLifetime).Unix()))
	rand.Read(raw[8:]) // never fails (crypto/rand)
	text := base64.RawURLEncoding.EncodeToString(raw)
	return text + "." + base64.RawURLEncoding.EncodeToString(sign(r.key, "cookie "+text))
}

// isCookie reports whether newCookie returned the value, less than cookieLifetime ago.
func (r *rules) isCookie(value string, now time.Time) bool {
	text, mac, _ := strings.Cut(value, ".")
	got, err := base64.RawURLEncoding.DecodeString(mac)
	if err != nil || !hmac.Equal(got, sign(r.key, "cookie "+text)) {
		return false
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	return err == nil && len(raw) == 24 && now.Unix() < int64(binary.BigEndian.Uint64(raw))
}

// allowsHost reports whether a request can have this Host header. With DNS rebinding, a page of the internet reaches a
// loopback address, but under the page's own name.
func (r *rules) allowsHost(hostport string) bool {
	if r.AnyHost {
		return true
	}
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || host != "" && (host == strings.ToLower(r.Host) || host == r.originHost) || err == nil && ip.IsLoopback()
}

// proxyAdvice ends the error of a request that seems to come from another site's page.
const proxyAdvice = ". If a proxy serves this page, set admin.base_url to the address in the browser"

// forbidsForm returns the error of a change that a browser sent with a cookie, or nil. Other clients need no CSRF token.
func (r *rules) forbidsForm(c client, req *http.Request) *protocol.Error {
	if c.auth != authCookie {
		return nil
	}
	if err := r.crossOrigin.Check(req); err != nil {
		return protocol.Errorf(protocol.CodeForbidden, "the request comes from another site's page (%v): send it from this sidecar's own page, or with a bearer token%s", err, proxyAdvice)
	}
	got := req.Header.Get("X-CSRF-Token")
	if got == "" && strings.HasPrefix(req.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		got = req.PostFormValue("csrf_token")
	}
	if !hmac.Equal([]byte(got), []byte(c.csrf)) {
		return protocol.Errorf(protocol.CodeForbidden, "the request lacks the page's CSRF token: load the page again, or send a bearer token instead of the cookie")
	}
	return nil
}
