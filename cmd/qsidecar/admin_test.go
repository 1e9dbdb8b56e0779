package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// get sends a request to an admin listener; address is HOST:PORT or the path of a Unix socket.
func get(address, path string) (code int, body string, err error) {
	tr := &http.Transport{DisableKeepAlives: true}
	if strings.Contains(address, "/") {
		at := address
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", at)
		}
		address = "admin"
	}
	c := &http.Client{Transport: tr, Timeout: testwait.Limit}
	res, err := c.Get("http://" + address + path)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// wantPage fails unless the answer has that code and contains a text.
func wantPage(t *testing.T, address, path string, code int, want string) {
	t.Helper()
	got, body, err := get(address, path)
	if err != nil || got != code || !strings.Contains(body, want) {
		t.Errorf("%s at %s: %d %q, %v; want %d and %q", path, address, got, body, err, code, want)
	}
}

// wantClosed fails if something answers at address.
func wantClosed(t *testing.T, address string) {
	t.Helper()
	if code, body, err := get(address, "/healthz"); err == nil {
		t.Errorf("%s is closed, and answers %d %q", address, code, body)
	}
}

func TestAdmin(t *testing.T) {
	x := startWatching(t, false, "admin: {listen: ':0'}\n")
	at := x.status().Admin
	if !strings.HasPrefix(at, "127.0.0.1:") || strings.HasSuffix(at, ":0") {
		t.Fatalf("status has the admin address %q, want a port of 127.0.0.1", at)
	}
	testwait.Until(t, "the log has the address of the page", func() bool { return strings.Contains(x.r.errOut.String(), "admin=http://"+at+"/") })
	for _, path := range []string{"/healthz", "/startupz", "/readyz"} {
		wantPage(t, at, path, 200, "ok\n")
	}
	wantPage(t, at, "/metrics", 200, "\ngo_goroutines ")
	wantPage(t, at, "/metrics", 200, "\nprocess_open_fds ")
	wantPage(t, at, "/debug/pprof/", 404, "admin.pprof")
	wantPage(t, at, "/debug/pprof/goroutine?debug=1", 404, "admin.pprof")
	wantPage(t, at, "/else", 404, "")
	if out := x.must(0, "status"); !strings.Contains(out, "web page, metrics and health at http://"+at+"/\n") {
		t.Errorf("status shows\n%s", out)
	}
}

// TestPageBehindAProxy checks that the start log and status show the address that people open, beside the listener's.
func TestPageBehindAProxy(t *testing.T) {
	x := startWatching(t, false, "admin: {listen: ':0', base_url: https://ops.example.com/qsidecar/}\n")
	testwait.Until(t, "the log has the address of the page", func() bool {
		return strings.Contains(x.r.errOut.String(), "page=https://ops.example.com/qsidecar/")
	})
	want := "web page at https://ops.example.com/qsidecar/, metrics and health at http://" + x.status().Admin + "/\n"
	if out := x.must(0, "status"); !strings.Contains(out, want) {
		t.Errorf("status shows\n%s", out)
	}
}

// TestAdminReload checks that a reload opens, moves, changes and closes the listener, and
// that an unusable address rejects the whole config.
func TestAdminReload(t *testing.T) {
	x := startWatching(t, false, one)
	if at := x.status().Admin; at != "" {
		t.Errorf("without a config it listens at %q", at)
	}
	reload := func(code int, admin string) {
		t.Helper()
		x.write(x.file, one+admin)
		x.must(code, "reload")
	}
	reload(0, "admin: {listen: '127.0.0.1:0'}\n")
	first := x.status().Admin
	wantPage(t, first, "/readyz", 200, "ok")
	reload(0, "admin: {listen: '127.0.0.1:0', pprof: on}\n")
	if at := x.status().Admin; at != first {
		t.Errorf("pprof moved the listener from %s to %s", first, at)
	}
	wantPage(t, first, "/debug/pprof/goroutine?debug=1", 200, "goroutine profile")

	port, err := local.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	reload(0, "admin: {listen: '127.0.0.1:"+port+"'}\n")
	wantClosed(t, first)
	first = x.status().Admin
	reload(0, "admin: {listen: "+port+"}\n") // the same address in another form
	wantPage(t, first, "/debug/pprof/", 404, "admin.pprof")
	reload(0, "admin: {listen: '0.0.0.0:"+port+"', access: off}\n")
	wantPage(t, first, "/healthz", 200, "ok")
	reload(0, "admin: {listen: '127.0.0.1:"+port+"'}\n")

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	x.write(x.file, two+"admin: {listen: '"+taken.Addr().String()+"'}\n")
	if r := x.run("reload"); r.code == 0 || !strings.Contains(r.err, "admin.listen") || !strings.Contains(r.err, "address already in use") {
		t.Errorf("a taken port: %+v", r)
	}
	x.waitForQueue("one", true)
	x.waitForQueue("two", false)
	wantPage(t, first, "/healthz", 200, "ok")
	x.write(x.file, two+fmt.Sprintf("admin: {listen: %s}\nlisten: [{socket: %s}, {socket: %s}]\n", x.file+".sock", x.socket(), filepath.Join(x.file, "no-folder", "s")))
	x.must(exitUsage, "reload") // the admin address is usable, but another socket isn't
	wantPage(t, first, "/healthz", 200, "ok")
	wantClosed(t, x.file+".sock")

	sock := filepath.Join(x.dir, "deep", "admin.sock")
	reload(0, "admin: {listen: "+sock+", mode: '0600'}\n")
	wantClosed(t, first)
	wantPage(t, sock, "/healthz", 200, "ok")
	if got := x.status().Admin; got != sock {
		t.Errorf("status has the admin address %q, want %q", got, sock)
	}
	mode := func(want os.FileMode) {
		t.Helper()
		if fi, err := os.Stat(sock); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", sock, fi.Mode(), err, want)
		}
	}
	mode(0o600)
	reload(0, "admin: {listen: "+sock+", mode: '0666'}\n")
	mode(0o666)
	reload(0, "")
	wantClosed(t, sock)
	if _, err := os.Stat(sock); err == nil {
		t.Errorf("%s is still there", sock)
	}
	if at := x.status().Admin; at != "" {
		t.Errorf("it was closed, and status has %q", at)
	}
}

// TestAdminWhileDraining checks that a draining sidecar isn't ready, and that the other
// endpoints work.
func TestAdminWhileDraining(t *testing.T) {
	x := startWatching(t, false, "admin: {listen: ':0'}\n")
	at := x.status().Admin
	x.must(0, "enqueue", "q", "x")
	holder, err := net.Dial("unix", x.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	say := func(line, want string) {
		t.Helper()
		if _, err := io.WriteString(holder, line+"\n"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := holder.Read(buf)
		if err != nil || !strings.Contains(string(buf[:n]), want) {
			t.Fatalf("%s: %q, %v", line, buf[:n], err)
		}
	}
	say(`{"op":"claim","queue":"q"}`, `"attempt":1`)
	x.r.signals <- os.Interrupt
	testwait.Until(t, "it is not ready", func() bool {
		code, body, err := get(at, "/readyz")
		return err == nil && code == 503 && strings.Contains(body, "draining")
	})
	wantPage(t, at, "/healthz", 200, "ok")
	wantPage(t, at, "/startupz", 200, "ok")
	wantPage(t, at, "/metrics", 200, "go_goroutines")
	holder.Close()
	if code := x.r.wait(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	wantClosed(t, at)
}

// TestAdminBounds checks the limits on the requests and connections of clients.
func TestAdminBounds(t *testing.T) {
	x := startWatching(t, false, "admin: {listen: ':0'}\n")
	at := x.status().Admin
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	tr := &http.Transport{DisableKeepAlives: true}
	if res, err := tr.RoundTrip(req); err == nil {
		res.Body.Close()
		if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("64 KiB of headers: %s", res.Status)
		}
	}
	res, err := http.Post("http://"+at+"/healthz", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", res.Status)
	}
	http.DefaultClient.CloseIdleConnections()
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	for range 64 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	if code, _, err := get(at, "/healthz"); err != nil || code != 200 {
		t.Errorf("beside 64 connections without a request: %d, %v", code, err)
	}
	x.must(0, "ping") // workers are not affected
}

func TestCheckAdvisesOnAnOpenAdmin(t *testing.T) {
	h := newHost(t)
	file := h.file("c.yaml", "admin: {listen: '0.0.0.0:9464', access: off, pprof: on}\n")
	if out := h.must(0, "check", "--config", file); !strings.Contains(out, "admin: 0.0.0.0:9464") || !strings.Contains(out, "pprof") {
		t.Errorf("check prints\n%s", out)
	}
	if out := h.must(1, "check", "--strict", "--config", file, "--json"); !strings.Contains(out, `"topic":"admin"`) {
		t.Errorf("check --json prints\n%s", out)
	}
	for section, warning := range map[string]string{
		"{listen: '0.0.0.0:9464', access: off}":                                         "other hosts can read the metrics",
		"{listen: '0.0.0.0:9464', token_file: " + h.file("t", "0123456789abcdef") + "}": "without encryption",
		"{listen: 9464}": "every user of this host can read the jobs",
	} {
		file = h.file("w.yaml", "admin: "+section+"\n")
		if out := h.must(0, "check", "--config", file); !strings.Contains(out, "warning admin: ") || !strings.Contains(out, warning) {
			t.Errorf("%s: check prints\n%s", section, out)
		}
	}
	file = h.file("d.yaml", "admin: {listen: 9464, pprof: on, payloads: hide}\n")
	if out := h.must(0, "check", "--config", file); !strings.Contains(out, "admin: 127.0.0.1:9464\n") || strings.Contains(out, "warning admin") {
		t.Errorf("check prints\n%s", out)
	}
}

// TestStartupWithoutDatabases checks that a sidecar whose databases are being opened is alive
// and not started, and that an unreachable database doesn't stop the start.
func TestStartupWithoutDatabases(t *testing.T) {
	h := newHost(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	admin := filepath.Join(h.dir, "admin.sock")
	file := h.file("c.yaml", fmt.Sprintf("databases: {main: {url: 'postgres://app:secret@%s/app?sslmode=disable'}}\nadmin: {listen: %s}\n", silent.Addr(), admin))
	r := h.start(strings.NewReader(""), "serve", "--config", file)
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	wantPage(t, admin, "/healthz", 200, "ok")
	wantPage(t, admin, "/startupz", 503, "starting: the databases are being opened")
	wantPage(t, admin, "/readyz", 503, "starting")
	wantPage(t, admin, "/metrics", 200, "go_goroutines")
	silent.Close()
	conn.Close()
	r.waitForOutput("serving on")
	wantPage(t, admin, "/startupz", 200, "ok")
	wantPage(t, admin, "/readyz", 503, "database main: not reached yet")
	if code := r.stop(); code != exitOK {
		t.Errorf("serve without its database ended with %d", code)
	}
}

// TestConfigMetrics checks the metrics of the running config.
func TestConfigMetrics(t *testing.T) {
	x := startWatching(t, false, "admin: {listen: ':0'}\n"+one)
	at := x.status().Admin
	wantPage(t, at, "/metrics", 200, `qsidecar_build_info{goversion="go1`)
	wantPage(t, at, "/metrics", 200, "\nqsidecar_config_generation 1\n")
	wantPage(t, at, "/metrics", 200, "\nqsidecar_config_last_reload_successful 1\n")
	x.write(x.file, "admin: {listen: ':0'}\nqueues: {one: {}, one: {}}")
	x.must(exitUsage, "reload")
	wantPage(t, at, "/metrics", 200, "\nqsidecar_config_last_reload_successful 0\n")
	x.write(x.file, "admin: {listen: ':0'}\n"+two)
	x.must(0, "reload")
	wantPage(t, at, "/metrics", 200, "\nqsidecar_config_last_reload_successful 1\n")
	wantPage(t, at, "/metrics", 200, "\nqsidecar_config_generation 2\n")
	x.must(0, "enqueue", "two", "x")
	wantPage(t, at, "/metrics", 200, `qsidecar_jobs_enqueued_total{database="main",queue="two"} 1`)
	wantPage(t, at, "/metrics", 200, `qsidecar_jobs_enqueued_total{database="main",queue="one"} 0`)
}
