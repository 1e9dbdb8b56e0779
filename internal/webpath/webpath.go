// Package webpath has the addresses of the web page. Inside the program an address is a path from the root of the page, such
// as /queue?name=mail. In the browser the page can be below a prefix of a proxy. So every link and redirect
// is relative to the page that has it.
package webpath

import (
	"net/http"
	"slices"
	"strings"
)

// roots are the first parts of the paths that the admin listener serves itself.
var roots = []string{"api", "assets", "batch", "batches", "check", "config", "confirm", "dead", "debug", "do", "events", "healthz", "job", "login", "logout", "metrics",
	"queue", "readyz", "schedules", "search", "sidecars", "startupz", "stop", "task", "tasks", "workers"}

// IsServed reports whether the first part of a path is one that the admin listener serves. Such a prefix would be ambiguous.
func IsServed(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains(roots, first)
}

// Local returns an address of the page, or "/" if it is one of another site or of another path of this site. Browsers ignore
// tabs and line ends.
func Local(address string) string {
	path, _, _ := strings.Cut(address, "?")
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(address, "\\\r\n\t") || strings.Contains(path, "//") ||
		strings.Contains(path, "/.") || strings.Contains(strings.ToLower(path), "/%2e") {
		return "/"
	}
	return address
}

// Root returns what leads from the page of a request to the root: Root + address is a link to an address.
func Root(r *http.Request) string {
	if depth := strings.Count(r.URL.EscapedPath(), "/") - 1; depth > 0 {
		return strings.TrimSuffix(strings.Repeat("../", depth), "/")
	}
	return "."
}

// Redirect sends a browser to an address, which Local or the program returned, by GET. It differs from http.Redirect: the
// link stays relative.
func Redirect(w http.ResponseWriter, r *http.Request, address string) {
	w.Header().Set("Location", Root(r)+address)
	w.WriteHeader(http.StatusSeeOther)
}
