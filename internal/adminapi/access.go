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
	"slices"
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
	user User   // zero: it did not authenticate
	csrf string // the token that its changes need; empty: none

	stopping <-chan struct{} // see Server.Stopping; nil: never
}

// canRead reports whether the client can use the API and the page.
func (r *rules) canRead(c client) bool { return len(r.Users) == 0 || r.has(c) }

// has reports whether the client authenticated as a user that there still is, with the token that it still has.
func (r *rules) has(c client) bool { return c.auth != authNone && slices.Contains(r.Users, c.user) }

// canChange reports whether the client can change something.
func (r *rules) canChange(c client) bool { return r.Write && r.has(c) }

// forbidsChange returns the error for a client that can't change something, or nil.
func (r *rules) forbidsChange(c client) *protocol.Error {
	switch {
	case r.canChange(c):
		return nil
	case !r.Write || len(r.Users) == 0:
		return protocol.Errorf(protocol.CodeForbidden, "the admin listener only serves reads: set admin.access: write, and admin.token_file or admin.users, in the sidecar's config to permit changes")
	}
	return errNoToken()
}

// errNoToken is the error of a client that did not authenticate.
func errNoToken() *protocol.Error {
	return protocol.Errorf(protocol.CodeForbidden, "the request has no valid token: send that of admin.token_file, or your own of admin.users, as Authorization: Bearer TOKEN")
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
	actor = c.from + " (" + c.auth + ")"
	if c.user.Name != "" {
		actor = c.user.Name + ", " + actor
	}
	return s.rules.Load().canChange(c), c.csrf, actor
}

// User returns the name of the sender of a request. It is empty if it has none.
func (s *Server) User(r *http.Request) string { return clientOf(r.Context()).user.Name }

// identify finds out who sent a request.
func (r *rules) identify(req *http.Request) client {
	c := client{from: req.RemoteAddr, auth: authNone}
	if token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); ok {
		if u, ok := r.userWith(strings.TrimSpace(token)); ok {
			c.auth, c.user = authToken, u
		}
		return c
	}
	for _, u := range r.Users {
		if cookie, err := req.Cookie(u.cookieName()); err == nil && u.isCookie(cookie.Value, time.Now()) {
			c.auth, c.user, c.csrf = authCookie, u, u.csrf(cookie.Value)
			return c
		}
	}
	return c
}

// User is someone who has a token.
type User struct {
	Name string   // empty: the token of admin.token_file, which names no one
	hash [32]byte // of the token, which is not kept
}

// NewUser returns the user with a token.
func NewUser(name, token string) User { return User{name, sha256.Sum256([]byte(token))} }

// userWith returns the user with a token. It compares with the tokens of all in constant time, whichever it finds.
func (r *rules) userWith(token string) (found User, ok bool) {
	got := sha256.Sum256([]byte(token))
	for _, u := range r.Users {
		if hmac.Equal(got[:], u.hash[:]) {
			found, ok = u, true
		}
	}
	return found, ok
}

// key derives the key of a user's cookies from the name and the token: with another token or name, the user's cookies are invalid. A restart
// ends none.
func (u User) key() []byte { return sign(u.hash[:], "qsidecar admin cookies of "+u.Name) }

func sign(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text)) // never fails
	return m.Sum(nil)
}

// cookieName depends on the key, because browsers send a cookie to all ports of a host: sidecars with different tokens
// must not overwrite each other's.
func (u User) cookieName() string { return "qsidecar_" + hex.EncodeToString(sign(u.key(), "name")[:4]) }

// csrf returns the token that changes with this cookie need.
func (u User) csrf(cookie string) string {
	return base64.RawURLEncoding.EncodeToString(sign(u.key(), "csrf "+cookie))
}

// newCookie returns a cookie's value: when it expires and a random number, and their signature.
func (u User) newCookie(now time.Time) string {
	raw := make([]byte, 24)
	binary.BigEndian.PutUint64(raw, uint64(now.Add(cookieLifetime).Unix()))
	rand.Read(raw[8:]) // never fails (crypto/rand)
	text := base64.RawURLEncoding.EncodeToString(raw)
	return text + "." + base64.RawURLEncoding.EncodeToString(sign(u.key(), "cookie "+text))
}

// isCookie reports whether newCookie returned the value, less than cookieLifetime ago.
func (u User) isCookie(value string, now time.Time) bool {
	text, mac, _ := strings.Cut(value, ".")
	got, err := base64.RawURLEncoding.DecodeString(mac)
	if err != nil || !hmac.Equal(got, sign(u.key(), "cookie "+text)) {
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
