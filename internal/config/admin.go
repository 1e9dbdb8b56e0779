package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/internal/webpath"
)

// Admin is the section `admin`: where metrics, health, the API and the page are served over HTTP.
type Admin struct {
	Listen adminAddress `yaml:"listen"`
	Mode   fileMode     `yaml:"mode"` // of a Unix socket, like Group
	Group  string       `yaml:"group"`
	Pprof  onOff        `yaml:"pprof"`
	// Access is what clients of the API and the page can do.
	Access adminAccess `yaml:"access"`
	// TokenFile contains the token that changes need, and that all requests need if it is set.
	TokenFile string `yaml:"token_file"`
	// Users are files with tokens by the names of the users who have them.
	Users    map[string]string `yaml:"users"`
	Payloads adminPayloads     `yaml:"payloads"`
	// BaseURL is the address at which a proxy serves the API and the page.
	BaseURL baseURL `yaml:"base_url"`
	// QueueLabels limits how many queues that no config names have their own metrics.
	QueueLabels int `yaml:"queue_labels"`
}

// adminAddress is the path of a Unix socket, or HOST:PORT. The empty address disables the
// listener.
type adminAddress string

// baseURL is an http or https URL without a slash at its end, or empty: no proxy.
type baseURL string

func (b *baseURL) parse(s string) error {
	if s == "" {
		*b = ""
		return nil
	}
	u, err := url.Parse(s)
	const form = "write what the browser shows, such as https://ops.example.com/qsidecar"
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("%q is not an http or https URL: %s", s, form)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"):
		return fmt.Errorf("a user, a query and a fragment are not a part of it: %s", form)
	case strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII }):
		return fmt.Errorf("%q is not ASCII: write the host as xn--…, and choose another path", s)
	}
	host := strings.ToLower(u.Host)
	if port := u.Port(); port == "" || u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" { // browsers leave it out
		host = strings.TrimSuffix(strings.TrimSuffix(host, port), ":")
	}
	prefix := strings.TrimRight(u.EscapedPath(), "/")
	if prefix != "" && (prefix != path.Clean(prefix) || strings.Contains(prefix, "%")) {
		return fmt.Errorf("the path %q has an empty part, a dot as a part, or a percent sign: choose another one", prefix)
	}
	if webpath.IsServed(prefix) {
		return fmt.Errorf("the path %q begins like a page of the sidecar itself: choose another one, such as /qsidecar", prefix)
	}
	*b = baseURL(u.Scheme + "://" + host + prefix)
	return nil
}

// Origin returns the scheme and the host, with a port that isn't the scheme's.
func (b baseURL) Origin() string { return strings.TrimSuffix(string(b), b.Prefix()) }

// Prefix returns the path without a slash at its end.
func (b baseURL) Prefix() string {
	_, rest, _ := strings.Cut(string(b), "://")
	if i := strings.Index(rest, "/"); i >= 0 {
		return rest[i:]
	}
	return ""
}

// adminAccess is off, read or write.
type adminAccess string

func (a *adminAccess) parse(s string) error { return oneOf((*string)(a), s, "off", "read", "write") }

// adminPayloads is show or hide.
type adminPayloads string

func (a *adminPayloads) parse(s string) error { return oneOf((*string)(a), s, "show", "hide") }

var errAdminPlace = errors.New("write a port (9464: on 127.0.0.1 alone), HOST:PORT, or the path of a Unix socket with a / in it")

func (a *adminAddress) parse(s string) error {
	if s == "" || strings.Contains(s, "/") {
		*a = adminAddress(s)
		return nil
	}
	host, port := "", s
	if strings.Contains(s, ":") {
		var err error
		if host, port, err = net.SplitHostPort(s); err != nil {
			return fmt.Errorf("%q is not an address: %w", s, errAdminPlace)
		}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is not an address: %w", s, errAdminPlace)
	}
	*a = adminAddress(net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)) // the default is not reachable from other hosts
	return nil
}

// IsUnix reports whether p is the path of a Unix socket.
func (a adminAddress) IsUnix() bool { return strings.Contains(string(a), "/") }

// isPublic reports whether other hosts can connect to p.
func (a adminAddress) isPublic() bool {
	host, _, err := net.SplitHostPort(string(a))
	if a == "" || a.IsUnix() || err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host != "localhost" && (ip == nil || !ip.IsLoopback())
}

func (a Admin) check(all *Config, bad func(path, format string, args ...any)) {
	if a.Listen.IsUnix() && slices.ContainsFunc(all.Listen, func(l listenConfig) bool { return samePath(l.Socket, string(a.Listen)) }) {
		bad("admin.listen", "%s is a socket that workers connect to: it needs one of its own", a.Listen)
	}
	checkGroup("admin", a.Group, bad)
	if a.QueueLabels < 0 || a.QueueLabels > 100_000 {
		bad("admin.queue_labels", "%d is outside 0 to 100000", a.QueueLabels)
	}
	if a.Listen == "" && bool(a.Pprof) {
		bad("admin.pprof", "it needs an admin.listen to be served at")
	}
	if a.Listen == "" && a.BaseURL != "" {
		bad("admin.base_url", "it needs an admin.listen, which the proxy connects to")
	}
	for name, file := range a.Users {
		if !userName.MatchString(name) {
			bad("admin.users", "%q is not a user's name: it has 1 to 64 letters, digits and . _ @ + -", name)
		}
		if file == "" {
			bad("admin.users."+name, "it needs the path of a file with a token")
		}
	}
	switch {
	case a.hasToken():
	case a.Access == "write":
		bad("admin.access", "changes need a token: set admin.token_file or admin.users too")
	case a.Access == "read" && a.Listen.isPublic():
		bad("admin.listen", "other hosts can reach %s, so the API and the page need a token: set admin.token_file or admin.users, or admin.access: off to serve metrics and health only", a.Listen)
	}
}

// IsOff reports whether neither the API nor the page is served.
func (a Admin) IsOff() bool { return a.Access == "off" }

// CanWrite reports whether clients with the token can change something.
func (a Admin) CanWrite() bool { return a.Access == "write" }

// HidesPayloads reports whether clients don't see payloads, results and headers.
func (a Admin) HidesPayloads() bool { return a.Payloads == "hide" }

// LoopbackHost returns the host of a TCP address that only this host can reach, or "" for another address.
func (a Admin) LoopbackHost() string {
	if a.Listen == "" || a.Listen.IsUnix() || a.Listen.isPublic() {
		return ""
	}
	host, _, _ := net.SplitHostPort(string(a.Listen)) // parse checked it
	return host
}

// minToken is the size of the shortest token. If its characters are random hex digits, it has 64 bits: a client that tries a
// million tokens per second finds it in about 300,000 years. So the login needs no limit of attempts, which would let any
// client lock the operators out.
const minToken = 16

// userName is the form of a user's name, which stands in the log and on the page.
var userName = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,64}$`)

// hasToken reports whether requests need a token.
func (a Admin) hasToken() bool { return a.TokenFile != "" || len(a.Users) > 0 }

// ReadTokens returns the tokens by the names of their users. The token of token_file has the empty name.
func (a Admin) ReadTokens() (map[string]string, error) {
	all := map[string]string{}
	var errs []error
	read := func(name, key, file string) {
		token, err := readToken(key, file)
		errs = append(errs, err)
		for _, other := range all {
			if err == nil && other == token {
				errs = append(errs, Errorf("%s: another user has the same token: each needs one of its own", key))
			}
		}
		all[name] = token
	}
	if a.TokenFile != "" {
		read("", "admin.token_file", a.TokenFile)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Users)) {
		read(name, "admin.users."+name, a.Users[name])
	}
	return all, errors.Join(errs...)
}

// readToken returns the token in a file.
func readToken(key, file string) (string, error) {
	text, err := readFile(file)
	if err != nil {
		return "", Errorf("%s cannot be read: %w", key, err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", Errorf("%s: %s must contain one line of at least %d ASCII characters without spaces: write the output of `openssl rand -hex 32` into it", key, file, minToken)
	}
	return token, nil
}

// BridgeSocket returns the Unix socket to listen on.
func (a Admin) BridgeSocket(log *slog.Logger) unixsocket.Config {
	return unixsocket.Config{Path: string(a.Listen), Mode: fs.FileMode(a.Mode), Group: a.Group, Log: log}
}

// Advice returns the warning of `qsidecar check` about the listener, and its fix. Both are
// empty if there is none.
func (a Admin) Advice() (text, do string) {
	switch {
	case a.Listen.isPublic() && bool(a.Pprof):
		return fmt.Sprintf("any client that reaches %s can take profiles and dumps of this process (admin.pprof) without authentication", a.Listen),
			"switch pprof off, or listen on 127.0.0.1 or a Unix socket"
	case a.Listen.isPublic() && a.hasToken() && !a.IsOff():
		return fmt.Sprintf("the token of %s is sent over the network without encryption, and other hosts can read the metrics, which need no token", a.Listen),
			"listen on 127.0.0.1 behind a proxy with TLS, and see that only the monitoring and the operators get there"
	case a.Listen.isPublic():
		return fmt.Sprintf("other hosts can read the metrics, with the names of queues, at %s: the endpoint has no authentication", a.Listen),
			"see that only the monitoring gets there, or listen on 127.0.0.1 or a Unix socket"
	case a.BaseURL != "" && !a.hasToken() && !a.IsOff():
		return fmt.Sprintf("every client that the proxy at %s lets through can read the jobs: reading needs no token there", a.BaseURL),
			"set admin.token_file"
	case strings.HasPrefix(string(a.BaseURL), "http:") && !a.IsOff():
		return fmt.Sprintf("the token is sent to %s without encryption", a.BaseURL),
			"let the proxy serve the page with TLS, and write https into admin.base_url"
	case a.LoopbackHost() != "" && !a.hasToken() && !a.IsOff() && !a.HidesPayloads():
		return fmt.Sprintf("every user of this host can read the jobs, with their payloads, at %s: reading needs no token there", a.Listen),
			"set admin.token_file, admin.payloads: hide or admin.access: off, or listen on a Unix socket"
	}
	return "", ""
}
