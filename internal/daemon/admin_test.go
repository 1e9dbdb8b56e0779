package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/internal/config"
)

// TestAdminWithHalfRequests shows that clients that send half of a request and stop don't keep other clients from
// metrics and health.
func TestAdminWithHalfRequests(t *testing.T) {
	a := newAdmin(prometheus.NewRegistry(), func(string) error { return nil }, slog.New(slog.DiscardHandler))
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
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &trace), http.MethodGet, fmt.Sprintf("http://%s/healthz", a.address()), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
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
