package main

import (
	"cmp"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// errAddress shows nothing of the address: what cannot be read may be the password.
var errAddress = errors.New("the address cannot be read as a URL. In a user's name and a password / is written %2F, ? %3F, # %23, @ %40, % %25 and : %3A; " +
	"or leave the password out, and name a file that holds it (password_file)")

var parameterName = regexp.MustCompile(`^[A-Za-z0-9_.%+ -]*$`)

// checkAddress wants a server's URL in which it is certain what is a password: the
// drivers' errors on others show parts of it.
func checkAddress(s string) error {
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
		if _, err := url.PathUnescape(authority[:i]); err != nil {
			return errAddress
		}
	}
	for host := range strings.SplitSeq(hosts, ",") { // PostgreSQL takes several
		if i := strings.LastIndex(host, ":"); i > strings.LastIndex(host, "]") && host[i+1:] != "" {
			if _, err := strconv.ParseUint(host[i+1:], 10, 16); err != nil {
				return errAddress
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

// hasPassword reports whether a database's address holds a password, or may.
func hasPassword(s string) bool {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || scheme == "sqlite" {
		return false // no URL that a server takes
	}
	if passwordInURL.MatchString(s) || checkAddress(s) != nil && strings.ContainsAny(rest, ":@") {
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

// isSecret reports whether what has that name is a password.
func isSecret(name string) bool {
	return slices.Contains([]string{"password", "passwd", "pwd", "sslpassword"}, strings.ToLower(name))
}

var (
	// secretValue is what follows the name of a secret: the keys that people think up for
	// one, and the parameters of URLs. password_file is none.
	secretValue = regexp.MustCompile(`(?i)((?:password|passwd|passphrase|pass|pwd|secret)["']?\s*[:=]\s*)\S.*`)
	// urlValue is what stands behind the key url.
	urlValue  = regexp.MustCompile(`(?i)(\burl["']?\s*:\s*["']?)(\S.*)`)
	urlBegins = regexp.MustCompile(`^([A-Za-z0-9+.-]+://|sqlite:|\$\{)`)
	// urlInText ends where one surely does.
	urlInText = regexp.MustCompile("[A-Za-z0-9+.-]+://[^\\s\"'`,}]*")
)

// maskedLine is a line of a config without what may be a password in it.
func maskedLine(line string) string {
	if m := urlValue.FindStringSubmatchIndex(line); m != nil && !urlBegins.MatchString(line[m[4]:m[5]]) {
		line = line[:m[3]] + "…" // no URL: a password in the wrong place
	}
	return masked(line)
}

// masked is such a line, or an error about one. After what may be a password all is left
// out, for nobody knows where it ends.
func masked(line string) string {
	const form, mark = "://USER@HOST", "\x00" // what this program's own words say of URLs
	return strings.ReplaceAll(maskedURLs(strings.ReplaceAll(line, form, mark)), mark, form)
}

func maskedURLs(line string) string {
	line = secretValue.ReplaceAllString(line, "$1…")
	at := 0
	for {
		span := urlInText.FindStringIndex(line[at:])
		if span == nil {
			return line
		}
		from, to := at+span[0], at+span[1]
		if u := line[from:to]; !strings.HasPrefix(u, "sqlite:") && (hasPassword(u) || checkAddress(u) != nil || strings.Contains(line[to:], "@")) {
			scheme, _, _ := strings.Cut(u, "://")
			return line[:from] + scheme + "://…"
		}
		at = to
	}
}

// unexpanded is a text with the values of environment variables, which may be secrets,
// put back to what the file has for them.
func unexpanded(text string, values map[string]string) string {
	names := make([]string, 0, len(values))
	for name, value := range values {
		if len(value) >= 4 { // a shorter one is found everywhere
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(values[b]), len(values[a])), cmp.Compare(a, b))
	})
	for _, name := range names {
		text = strings.ReplaceAll(text, values[name], "${"+name+"}")
	}
	return text
}
