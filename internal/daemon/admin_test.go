package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// fetch sends a GET request. The caller closes the body.
func fetch(ctx context.Context, t *testing.T, client *http.Client, a *admin, path string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s%s", a.address(), path), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// TestAdminWithHalfRequests shows that clients that send half of a request and stop don't keep other clients from
// metrics and health.
func TestAdminWithHalfRequests(t *testing.T) {
	a := newAdmin(prometheus.NewRegistry(), func(string) error { return nil }, "", slog.New(slog.DiscardHandler))
	if _, err := a.change(&config.Config{Admin: config.Admin{Listen: "127.0.0.1:0"}}); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	kept := http.Client{Transport: &http.Transport{}}
	defer kept.CloseIdleConnections()
	reused := false
	get := func(client *http.Client) {
		t.Helper()
		trace := httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
		answer := fetch(httptrace.WithClientTrace(t.Context(), &trace), t, client, a, "/healthz")
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
	get(&kept)
	for range 300 {
		conn, err := net.Dial("tcp", a.address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: a") // the server can close it at any time
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 3 {
		get(&client)
	}
	if get(&kept); !reused {
		t.Error("a connection that had answered a request was closed for those that never sent one")
	}
}

// slowBody is the body of a request whose client doesn't end it.
type slowBody struct {
	began chan<- struct{}
	*io.PipeReader
}

func (s slowBody) Read(p []byte) (int, error) {
	s.began <- struct{}{}
	return s.PipeReader.Read(p)
}

// TestAdminWithSlowRequests shows that clients of the API that don't end their requests leave connections for metrics
// and health.
func TestAdminWithSlowRequests(t *testing.T) {
	a := newAdmin(prometheus.NewRegistry(), func(string) error { return nil }, "test", slog.New(slog.DiscardHandler))
	if _, err := a.change(&config.Config{MaxFrame: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	request := func(method, path string, body io.Reader) int {
		r := httptest.NewRequestWithContext(t.Context(), method, path, body)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		a.handler.ServeHTTP(w, r)
		return w.Code
	}
	began := make(chan struct{}, adminConnections)
	body, end := io.Pipe()
	var slow sync.WaitGroup
	defer slow.Wait()
	defer end.Close()
	open := 0
	for ; request(http.MethodPost, "/api/v1/stats", http.NoBody) != http.StatusTooManyRequests; open++ {
		slow.Go(func() { request(http.MethodPost, "/api/v1/stats", slowBody{began, body}) })
		testwait.Receive(t, "the request begins", began)
	}
	if open == 0 || open > adminConnections-8 {
		t.Errorf("%d requests of the API run at a time, of %d connections", open, adminConnections)
	}
	for _, path := range []string{"/metrics", "/healthz"} {
		if code := request(http.MethodGet, path, http.NoBody); code != http.StatusOK {
			t.Errorf("%s beside them: %d", path, code)
		}
	}
}

// TestAdminWithManyStreams opens 1,000 event streams. Some are served. Each other one gets an answer, and so do metrics and health. A change of the
// config ends the streams, and then new ones can begin.
func TestAdminWithManyStreams(t *testing.T) {
	const browsers = 1_000
	a := newAdmin(prometheus.NewRegistry(), func(string) error { return nil }, "test", slog.New(slog.DiscardHandler))
	if _, err := a.change(&config.Config{Admin: config.Admin{Listen: "127.0.0.1:0"}, MaxFrame: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	codes := map[int]int{}
	var streams []*http.Response
	for range browsers {
		answer := fetch(testwait.Context(t), t, &client, a, "/events")
		codes[answer.StatusCode]++
		if answer.StatusCode == http.StatusOK {
			streams = append(streams, answer) //nolint:bodyclose // it is closed below
			continue
		}
		if answer.Header.Get("Retry-After") == "" {
			t.Fatalf("%d without Retry-After", answer.StatusCode)
		}
		_ = answer.Body.Close()
	}
	if open := len(streams); open == 0 || open > adminConnections-8 || open+codes[http.StatusServiceUnavailable] != browsers {
		t.Errorf("answers by status: %v", codes)
	}
	for _, path := range []string{"/metrics", "/healthz"} {
		answer := fetch(testwait.Context(t), t, &client, a, path)
		if _ = answer.Body.Close(); answer.StatusCode != http.StatusOK {
			t.Errorf("%s beside the streams: %d", path, answer.StatusCode)
		}
	}
	if _, err := a.change(&config.Config{Admin: config.Admin{Listen: "127.0.0.1:0", Payloads: "hide"}, MaxFrame: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		if _, err := io.Copy(io.Discard, s.Body); err != nil {
			t.Errorf("the end of a stream: %v", err)
		}
		_ = s.Body.Close()
	}
	testwait.Until(t, "a new browser gets a stream", func() bool {
		answer := fetch(testwait.Context(t), t, &client, a, "/events")
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

// TestAdminHeaders checks that no other site's page can show a response in a frame, run a script in it or read it.
func TestAdminHeaders(t *testing.T) {
	a := newAdmin(prometheus.NewRegistry(), func(string) error { return nil }, "test", slog.New(slog.DiscardHandler))
	if _, err := a.change(&config.Config{MaxFrame: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	for _, path := range []string{"/", "/assets/app.js", "/api/v1/openapi.json", "/metrics", "/missing"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		a.handler.ServeHTTP(w, r)
		for name, want := range map[string]string{"Content-Security-Policy": "default-src 'none'; script-src 'self'", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := w.Header().Get(name); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
}
