package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestConfigChangesWhileItStarts checks that a change right after the first read is loaded,
// without a further change.
func TestConfigChangesWhileItStarts(t *testing.T) {
	h := newHost(t)
	h.poll, h.noEvents = 20*time.Millisecond, true
	x := &reloading{host: h, file: h.file("c.yaml", "log: {level: '${LEVEL}'}\n"+one)}
	r := &running{t: t, out: newText(), errOut: newText(), signals: make(chan os.Signal, 2), done: make(chan struct{})}
	a := h.app(strings.NewReader(""), r.out, r.errOut, r.signals)
	env, after := a.env, sync.Once{}
	a.env = func(name string) (string, bool) {
		if name != "LEVEL" {
			return env(name)
		}
		after.Do(func() { // the file is read by now
			x.write(x.file, two+"listen: [{socket: "+filepath.Join(h.dir, "other", "s")+"}]\n")
		})
		return "info", true
	}
	r.run(a, []string{"serve", "--config", x.file})
	t.Cleanup(func() { r.stop() })
	r.waitForOutput("serving on")
	h.env["QSIDECAR_SOCKET"] = filepath.Join(h.dir, "other", "s")
	x.waitForQueue("two", true)
}

// TestStdioReloads checks that a sidecar on stdio opens no socket when it reloads its
// config.
func TestStdioReloads(t *testing.T) {
	h := newHost(t)
	listens := filepath.Join(h.dir, "listens", "s")
	config := "admin: {listen: " + filepath.Join(h.dir, "admin") + "}\nlisten: [{socket: " + listens + "}]\n"
	x := &reloading{host: h, file: h.file("c.yaml", config+one)}
	c := h.child("--config", x.file)
	if got := c.request(`{"op":"ping"}`); !strings.Contains(got, `"ok":true`) {
		t.Fatal(got)
	}
	x.write(x.file, config+two)
	if got := c.request(`{"op":"reload"}`); !strings.Contains(got, "queues.two added") {
		t.Errorf("reload: %s", got)
	}
	if got := c.request(`{"op":"check"}`); !strings.Contains(got, `"findings":[{"database":"main","severity":"info","topic":"server","text":"SQLite`) {
		t.Errorf("check: %s", got)
	}
	if got := c.request(`{"op":"enqueue","queue":"two"}`); !strings.Contains(got, `"ok":true`) {
		t.Errorf("of the new queue: %s", got)
	}
	for _, path := range []string{filepath.Dir(listens), filepath.Join(h.dir, "admin")} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("there is %s", path)
		}
	}
	c.stdin.Close()
	if code := <-c.code; code != 0 {
		t.Errorf("it ended with %d", code)
	}
}
