package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// silentServer returns the address of a server that accepts connections and never answers, such as
// a proxy without its server.
func silentServer(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts the connections, and nothing reads
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

// silentConfig returns a config with a silent database of each kind of server.
func silentConfig(t *testing.T, h *host, more string) string {
	t.Helper()
	at := silentServer(t)
	return h.file("c.yaml", fmt.Sprintf(`databases:
  a: {url: "postgres://u@%[1]s/app"}
  b: {url: "mysql://u@%[1]s/app"}
  c: {url: "sqlserver://u:p@%[1]s?database=app"}
queues: {"*": {database: a}}
`, at)+more)
}

// TestSilentDatabasesAtTheStart checks that the start waits for all of them together, then
// serves what doesn't need them, and that the sidecar stops in time.
func TestSilentDatabasesAtTheStart(t *testing.T) {
	h := newHost(t)
	h.openTimeout = time.Millisecond
	place := filepath.Join(h.dir, "admin.sock")
	r := h.start(nil, "serve", "--config", silentConfig(t, h, "admin: {listen: "+place+"}\n"))
	r.waitForOutput("serving on")
	wantPage(t, place, "/startupz", http.StatusOK, "ok")
	wantPage(t, place, "/healthz", http.StatusOK, "ok")
	wantPage(t, place, "/readyz", http.StatusServiceUnavailable, "database c: not reached yet")
	wantPage(t, place, "/metrics", http.StatusOK, `qsidecar_database_reachable{database="b"} 0`)
	h.must(0, "ping")
	if got := h.run("stats", "q"); got.code == 0 || !strings.Contains(got.err, "it is not open after 1ms") {
		t.Errorf("stats: %d %s", got.code, got.err)
	}
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.errOut)
	}
}

// TestReloadOfSilentDatabases checks a reload that keeps one pending database, renames
// another, and replaces the third.
func TestReloadOfSilentDatabases(t *testing.T) {
	h := newHost(t)
	h.openTimeout = time.Millisecond
	file := silentConfig(t, h, "")
	r := h.start(nil, "serve", "--config", file)
	r.waitForOutput("serving on")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "  a:"):
			line = "  a: {url: 'sqlite:" + filepath.Join(h.dir, "a.db") + "'}\n"
		case strings.HasPrefix(line, "  b:"):
			line = strings.Replace(line, "b:", "renamed:", 1)
		case strings.HasPrefix(line, "  c:"):
			continue
		}
		lines = append(lines, line)
	}
	h.file("c.yaml", strings.Join(lines, ""))
	h.must(0, "reload")
	h.must(0, "enqueue", "q", "x")
	testwait.Until(t, "status shows those of the new config, and no other", func() bool { // removed ones are closed after the reload
		got := h.must(0, "status")
		return strings.Contains(got, "renamed") && !strings.Contains(got, "sqlserver") && strings.Count(got, "mysql") == 1
	})
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.errOut)
	}
}

// TestStopWhileItStarts checks that a signal ends a start that waits for a database.
func TestStopWhileItStarts(t *testing.T) {
	h := newHost(t)
	h.openTimeout = time.Hour
	place := filepath.Join(h.dir, "admin.sock")
	r := h.start(nil, "serve", "--config", silentConfig(t, h, "admin: {listen: "+place+"}\n"))
	testwait.Until(t, "the admin listener", func() bool { _, err := os.Stat(place); return err == nil })
	wantPage(t, place, "/startupz", http.StatusServiceUnavailable, "the databases are being opened")
	r.signals <- syscall.SIGTERM
	if code := r.wait(); code != 0 || !strings.Contains(r.errOut.String(), "event=stopped_before_serving") {
		t.Errorf("exit code %d: %s", code, r.errOut)
	}
}
