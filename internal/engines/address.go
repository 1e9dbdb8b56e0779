package engines

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// errAddress contains nothing of the address, because an invalid part can be the password.
var errAddress = errors.New("the address cannot be read as a URL. In a user's name and a password / is written %2F, ? %3F, # %23, @ %40, % %25 and : %3A; " +
	"or leave the password out, and name a file that holds it (password_file)")

// errPort doesn't show the port, because in a URL without @ it can be the password.
var errPort = fmt.Errorf("the port is not a number up to 65535. If it belongs to the password, %w", errAddress)

var parameterName = regexp.MustCompile(`^[A-Za-z0-9_.%+ -]*$`)

// CheckAddress accepts a server's URL only if it is clear which part is the password. Errors
// of the drivers show parts of other URLs.
func CheckAddress(s string) error {
	_, rest, ok := strings.Cut(s, "://")
	if !ok || strings.Contains(rest, "#") {
		return errAddress
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	hosts := authority
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		hosts = authority[i+1:]
		if strings.HasPrefix(hosts, "tcp(") || strings.HasPrefix(hosts, "unix(") { // an address of Go's driver
			kind, _, _ := strings.Cut(hosts, "(")
			return fmt.Errorf("the host is written without %s(…): mysql://USER@HOST:PORT/DATABASE", kind)
		}
		// Drivers differ in which @ ends the password, and one that ends it at the first shows the rest as the host.
		if _, err := url.PathUnescape(authority[:i]); err != nil || strings.Contains(authority[:i], "@") {
			return errAddress
		}
	}
	for host := range strings.SplitSeq(hosts, ",") { // PostgreSQL accepts several
		if i := strings.LastIndex(host, ":"); i > strings.LastIndex(host, "]") && host[i+1:] != "" {
			if _, err := strconv.ParseUint(host[i+1:], 10, 16); err != nil {
				return errPort
			}
		}
	}
	path, query, _ := strings.Cut(tail, "?")
	if _, err := url.PathUnescape(path); err != nil || strings.Contains(path, "@") {
		return errAddress
	}
	for piece := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(piece, "=")
		_, err := url.QueryUnescape(value)
		if _, e := url.QueryUnescape(key); e != nil || err != nil || !parameterName.MatchString(key) {
			return errAddress
		}
	}
	return nil
}

var passwordInURL = regexp.MustCompile(`^[A-Za-z0-9+.-]+://[^/?#]*:[^/?#]*@`)

// HasPassword reports whether a URL contains a password, or can contain one.
func HasPassword(s string) bool {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || scheme == "sqlite" {
		return false // not a URL of a server
	}
	if passwordInURL.MatchString(s) || CheckAddress(s) != nil && strings.ContainsAny(rest, ":@") {
		return true
	}
	_, query, _ := strings.Cut(rest, "?")
	for piece := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(piece, "=")
		key, err := url.QueryUnescape(key)
		if err != nil || isSecret(key) {
			return true
		}
	}
	return false
}

// HasCertainPassword reports whether a URL contains a password where one is expected.
// ParseURL explains an invalid URL.
func HasCertainPassword(s string) bool {
	return passwordInURL.MatchString(s) || HasPassword(s) && CheckAddress(s) == nil
}

// isSecret reports whether a parameter with that name is a password.
func isSecret(name string) bool {
	return slices.Contains([]string{"password", "passwd", "pwd", "sslpassword"}, strings.ToLower(name))
}

// WithoutPassword returns a URL without its password. had reports whether it contained one.
func WithoutPassword(at string) (clean string, had bool) {
	if !HasPassword(at) {
		return at, false
	}
	scheme, rest, _ := strings.Cut(at, "://")
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, _, _ := strings.Cut(authority[:i], ":")
		authority = user + authority[i:]
	}
	path, query, _ := strings.Cut(tail, "?")
	pieces := slices.DeleteFunc(strings.Split(query, "&"), func(piece string) bool {
		key, _, _ := strings.Cut(piece, "=")
		key, err := url.QueryUnescape(key)
		return err != nil || isSecret(key)
	})
	if query = strings.Join(pieces, "&"); query != "" {
		query = "?" + query
	}
	return scheme + "://" + authority + path + query, true
}
