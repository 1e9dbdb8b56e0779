package web

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// browse runs scenarios, which are exported functions of the .mjs files, in one browser. They get input as JSON. Each line of
// output is progress, and the limit of the tests applies to each line.
func browse(t *testing.T, s *kit.Site, input map[string]any, scenarios ...string) {
	t.Helper()
	home, err := os.MkdirTemp(s.Dir, "b") // a short path, because Chromium has sockets in it
	if err == nil {
		err = local.WriteProgram(filepath.Join(home, "chromium"), []byte(chromium))
	}
	if err != nil {
		t.Fatal(err)
	}
	input["chromium"] = filepath.Join(home, "chromium")
	input["limit_ms"] = testwait.Limit.Milliseconds() / 2 // so that Playwright's message comes first
	input["scenarios"] = scenarios
	text, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := clientlib.NpmPackages(kit.Path("e2e/web"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", kit.Path("e2e/web/main.mjs"), string(text))
	cmd.Env = append(os.Environ(), "NODE_PACKAGES="+modules, "HOME="+home, "TMPDIR="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home)
	var out kit.LockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (scripts/need.sh npm installs Node.js)", err)
	}
	exited := make(chan struct{})
	go func() {
		err = cmd.Wait() // read after exited is closed
		close(exited)
	}()
	defer func() {
		_ = cmd.Process.Kill() // fails if it has ended
		<-exited
		testwait.Until(t, "the browser ends", func() bool { return os.RemoveAll(home) == nil }) // it can still write there
		report(t, out.String())
	}()
	kit.WaitProgress(t, "the scenarios go on", func() (int, bool) {
		select {
		case <-exited:
			return 0, true
		default:
			return len(out.String()), false
		}
	})
	if err != nil {
		t.Fatalf("the scenarios failed (%v); their output is below", err)
	}
}

// chromium is a program that ends with the process that started it. Playwright would leave the browser if it is killed. The shell is
// Chromium without its windows, which takes a fifth less of the processor.
const chromium = `#!/bin/sh
exec setpriv --pdeathsig KILL /usr/lib/chromium/chromium-headless-shell "$@"
`

// report logs the output of the scenarios. Lines with figures are figures of the test.
func report(t *testing.T, out string) {
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if figure, ok := strings.CutPrefix(line, "figure: "); ok {
			kit.Figure(t, "%s", figure)
		} else {
			t.Log(line)
		}
	}
}
