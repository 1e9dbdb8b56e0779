package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// wantAPI sends an operation to an admin listener (HOST:PORT, or the path of a Unix socket), and fails unless the
// answer has that code and contains a text.
func wantAPI(t *testing.T, address, token, op, body string, code int, want string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	host := address
	if strings.Contains(address, "/") {
		host = "localhost"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", address)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+"/api/v1/"+op, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Client{Transport: tr, Timeout: testwait.Limit}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != code || !strings.Contains(string(text), want) {
		t.Errorf("%s: %d %s, %v; want %d and %q", op, res.StatusCode, text, err, code, want)
	}
}

// TestAdminAPI checks the API of a sidecar on SQLite, and that a reload changes its token and its rules.
func TestAdminAPI(t *testing.T) {
	const first, second = "the-first-token-0123", "the-second-token-0123"
	x := startWithoutWatch(t, one)
	file := x.file + ".token"
	reload := func(code int, token, admin string) {
		t.Helper()
		x.write(file, token)
		x.write(x.file, one+"admin: {listen: '127.0.0.1:0', token_file: "+file+admin+"}\n")
		x.must(code, "reload")
	}
	reload(0, first, ", access: write")
	at := x.status().Admin
	const job = `{"queue":"one","payload":"hello"}`
	wantAPI(t, at, "", "enqueue", job, 401, "no valid token")
	wantAPI(t, at, first, "enqueue", job, 200, `"job":{"id":`)
	if out := x.must(0, "peek", "one"); !strings.Contains(out, "hello") {
		t.Errorf("peek prints\n%s", out)
	}
	wantPage(t, at, "/metrics", 200, "go_goroutines") // without a token
	wantPage(t, at, "/api/v1/stats", 401, "no valid token")
	wantPage(t, at, "/", 401, "no valid token")

	reload(0, second, ", access: write")
	wantAPI(t, at, first, "stats", "", 401, "no valid token")
	wantAPI(t, at, second, "stats", "", 200, `"ready":1`)
	reload(exitUsage, "short", ", access: write")
	wantAPI(t, at, second, "reload", "", 400, "at least 16")
	wantAPI(t, at, second, "pause", `{"queue":"one"}`, 200, "true") // the old config still runs
	reload(0, second, ", payloads: hide")
	wantAPI(t, at, second, "resume", `{"queue":"one"}`, 403, "admin.access: write")
	wantAPI(t, at, second, "peek", `{"queue":"one"}`, 200, `"left_out":5`)
	reload(0, second, ", access: off")
	wantAPI(t, at, second, "stats", "", 404, "admin.access")
	wantPage(t, at, "/healthz", 200, "ok")

	sock := filepath.Join(x.dir, "admin.sock")
	x.write(x.file, one+"admin: {listen: "+sock+", token_file: "+file+", access: write}\n")
	x.must(0, "reload")
	wantAPI(t, sock, second, "resume", `{"queue":"one"}`, 200, "true")
	x.write(x.file, one+"admin: {listen: "+sock+", token_file: "+file+", access: write}\nlog: {level: debug}\n")
	wantAPI(t, sock, second, "reload", "", 200, "log.level")
	log := x.r.errOut.String()
	for _, want := range []string{"op=enqueue by=127.0.0.1:", "op=resume by=\"uid " + strconv.Itoa(os.Getuid()), "auth=token queue=one"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if strings.Contains(log, first) || strings.Contains(log, second) {
		t.Error("the log contains a token")
	}
	x.r.stop()
	wantClosed(t, sock)
}
