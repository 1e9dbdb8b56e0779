package webpath

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestLocal(t *testing.T) {
	for address, want := range map[string]string{
		"": "/", "/": "/", "/queue?name=mail": "/queue?name=mail", "/queue?name=a..b//c": "/queue?name=a..b//c", "queue": "/", "https://evil.example": "/",
		"//evil.example": "/", "/\t/evil.example": "/", `/\evil.example`: "/", "/..//evil.example": "/", "/../other": "/", "/%2E%2e/other": "/", "/.//evil.example": "/",
		"/javascript:alert(1)": "/javascript:alert(1)", // a path: see TestRedirect
	} {
		if got := Local(address); got != want {
			t.Errorf("%q is %q, want %q", address, got, want)
		}
	}
}

// TestRedirect resolves redirects as a browser does, below prefixes that the program doesn't see.
func TestRedirect(t *testing.T) {
	for path, address := range map[string]string{
		"/": "/queue?name=mail", "/do": "/queue?name=a:b", "/login": "/javascript:alert(1)", "/a/b": "/", "/a/b/": "/login?next=%2Fa", "/a%2Fb": "/dead",
	} {
		for _, prefix := range []string{"", "/qsidecar", "/a/b"} {
			w := httptest.NewRecorder()
			Redirect(w, httptest.NewRequest(http.MethodGet, "http://host"+path, nil), address)
			browser := httptest.NewRequest(http.MethodGet, "https://ops.example"+prefix+path, nil)
			got, err := browser.URL.Parse(w.Header().Get("Location"))
			if want := "https://ops.example" + prefix + address; err != nil || got.String() != want || w.Code != 303 {
				t.Errorf("%s%s leads to %v, %v (%d); want %s", prefix, path, got, err, w.Code, want)
			}
		}
	}
}
