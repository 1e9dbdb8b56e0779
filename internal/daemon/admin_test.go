package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/internal/config"
)

// TestAdminWithHalfRequests shows that clients that send half of a request and stop don't keep other clients from
// metrics and health.
func TestAdminWithHalfRequests(t *testing.T) {
	a := newAdmin(prometheus.NewRegistry(), func(string) error { return nil }, slog.New(slog.DiscardHandler))
	if _, err := a.change(config.Admin{Listen: "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	defer a.close()
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
		r, err := client.Get(fmt.Sprintf("http://%s/healthz", a.address()))
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
	}
}
