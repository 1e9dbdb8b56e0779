package metrics

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

var monitoring = kit.Path("deploy/monitoring")

// panel is a panel of the dashboard.
type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	GridPos     struct{ X, W int }
	Targets     []struct{ Expr string }
}

// dashboard reads the panels of deploy/monitoring/grafana/qsidecar.json, without the rows.
func dashboard(t *testing.T) (panels []panel) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoring, "grafana", "qsidecar.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []panel }
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q: its id, its title or its place is wrong", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %q has no description or no query", p.Title)
		}
		panels = append(panels, p)
	}
	return panels
}

// TestDashboard checks that each query of the dashboard returns a series, in Prometheus with a real
// sidecar that works, and that its metrics are on the metrics' page.
func TestDashboard(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := kit.NewPostgresSite(t) // SQLite has no pool
	place := filepath.Join(s.Dir, "admin.sock")
	s.Extra = "admin: {listen: " + place + "}\n"
	a := s.Start("a")
	var d net.Dialer // Prometheus reads no Unix socket
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", place) }}
	t.Cleanup(tr.CloseIdleConnections)
	scraped := httptest.NewServer(&httputil.ReverseProxy{Transport: tr, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "admin"}) }})
	t.Cleanup(scraped.Close)
	p := startPrometheus(t, strings.TrimPrefix(scraped.URL, "http://"))
	w := a.Dial()
	missing := queries(t, string(page))
	defer func() {
		for query, title := range missing {
			t.Errorf("the panel %q has no value of %s", title, query)
		}
	}()
	testwait.Until(t, "each panel has a value", func() bool {
		work(a, w)
		for query := range missing {
			if p.value(query) {
				delete(missing, query)
			}
		}
		return len(missing) == 0
	})
}

// queries returns the queries of the dashboard with the titles of their panels. It checks that their
// metrics are on the metrics' page.
func queries(t *testing.T, page string) map[string]string {
	t.Helper()
	all := map[string]string{}
	variables := strings.NewReplacer("$database", ".*", "$queue", ".*", "$__rate_interval", "1m")
	for _, panel := range dashboard(t) {
		for _, target := range panel.Targets {
			query := variables.Replace(target.Expr)
			all[query] = panel.Title
			for _, name := range regexp.MustCompile(`qsidecar_[a-z_]+`).FindAllString(query, -1) {
				family := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
				if !strings.Contains(page, "| `"+family+"` |") {
					t.Errorf("the panel %q is about %s, which %s does not have", panel.Title, family, metricsPage)
				}
			}
		}
	}
	if len(all) < 20 {
		t.Errorf("the dashboard has %d queries", len(all))
	}
	return all
}

// work does everything with a job that is counted: acked, nacked, dead, and lost with its connection.
func work(a *kit.Sidecar, w *kit.Conn) {
	w.Enqueue("mail", 4)
	w.Must(kit.Msg{"op": "ack", "lease": w.ClaimOne("mail").Lease})
	w.Must(kit.Msg{"op": "nack", "lease": w.ClaimOne("mail").Lease, "delay_ms": 0})
	w.Must(kit.Msg{"op": "nack", "lease": w.ClaimOne("mail").Lease, "dead": true})
	lost := a.Dial()
	lost.ClaimOne("mail")
	lost.Close()
}

// prometheus is a running server.
type prometheus struct {
	t   *testing.T
	url string
}

// startPrometheus starts Debian's Prometheus, which reads target every second.
func startPrometheus(t *testing.T, target string) *prometheus {
	t.Helper()
	root, err := debian.Root(t.Context(), "prometheus-bookworm", "bookworm", "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, []byte("scrape_configs: [{job_name: qsidecar, scrape_interval: 1s, static_configs: [{targets: ['"+target+"']}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	logFile := filepath.Join(dir, "log")
	log, err := os.Create(logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(root, "usr", "bin", "prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		_ = cmd.Wait()         // it was killed
		if text, err := os.ReadFile(logFile); t.Failed() && err == nil {
			t.Logf("the log of Prometheus:\n%s", text)
		}
	})
	p := &prometheus{t: t}
	testwait.Until(t, "Prometheus listens", func() bool {
		text, err := os.ReadFile(logFile)
		m := regexp.MustCompile(`msg="Listening on" address=(\S+)`).FindSubmatch(text)
		if err != nil || m == nil {
			return false
		}
		p.url = "http://" + string(m[1])
		return true
	})
	return p
}

// value reports whether a query returns a series with a number.
func (p *prometheus) value(query string) bool {
	res, err := http.PostForm(p.url+"/api/v1/query", url.Values{"query": {query}})
	if err != nil {
		return false // it still starts
	}
	defer res.Body.Close()
	var reply struct {
		Error string
		Data  struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&reply); err != nil {
		return false // as above: it is text
	}
	if reply.Error != "" {
		p.t.Fatalf("%s: %s", query, reply.Error)
	}
	for _, series := range reply.Data.Result {
		if series.Value[1] != "NaN" {
			return true
		}
	}
	return false
}
