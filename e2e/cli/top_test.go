package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// terminal is a program in a terminal of 80×24, which tmux draws.
type terminal struct {
	t      *testing.T
	socket string
}

// openTerminal runs a shell command in a new terminal.
func openTerminal(t *testing.T, dir, command string, env ...string) *terminal {
	t.Helper()
	x := &terminal{t: t, socket: filepath.Join(dir, "tmux")}
	cmd := exec.Command("tmux", "-S", x.socket, "-f", os.DevNull, "new-session", "-d", "-x", "80", "-y", "24", command)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v: %s (scripts/need.sh tmux installs it)", err, out)
	}
	t.Cleanup(func() { x.tmux("kill-server") })
	return x
}

func (t *terminal) tmux(args ...string) string {
	t.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", t.socket}, args...)...).CombinedOutput()
	if err != nil {
		t.t.Fatalf("tmux %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// keys types keys, each a character or tmux's name of a key.
func (t *terminal) keys(keys ...string) {
	t.t.Helper()
	t.tmux(append([]string{"send-keys"}, keys...)...)
}

// shows waits until the screen has all texts, and returns it.
func (t *terminal) shows(texts ...string) (screen string) {
	t.t.Helper()
	shown := false
	defer func() {
		if !shown {
			t.t.Logf("the screen:\n%s", screen)
		}
	}()
	testwait.Until(t.t, fmt.Sprintf("the screen shows %q", texts), func() bool {
		screen = t.tmux("capture-pane", "-p")
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(screen, text) })
	})
	shown = true
	return screen
}

// TestTop checks qsidecar top in a terminal: 1,000 queues, a dead job, a restart, and the end.
func TestTop(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs it: it needs tmux")
	}
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	w := a.Dial()
	for i := range 1000 {
		w.Enqueue(fmt.Sprintf("queue-%04d", i), 1)
	}
	w.Must(kit.Msg{"op": "nack", "lease": w.ClaimOne("queue-0007").Lease, "dead": true, "error": "no route"})
	x := openTerminal(t, s.Dir, kit.Binary+" top --socket "+a.Socket+"; echo exit=$?; cat", "NO_COLOR=1")
	screen := x.shows(" 1 Queues 1000 ", "ready 999  claimed 0  dead 1", "queue-0018")
	lines := strings.Split(strings.TrimRight(screen, "\n"), "\n")
	if len(lines) != 24 || !strings.HasPrefix(lines[2], "QUEUE* ") || !strings.HasPrefix(lines[3], "queue-0000 ") || !strings.HasSuffix(lines[0], " every 1s") ||
		!strings.HasPrefix(lines[23], "enter open") || !strings.HasSuffix(lines[23], "q quit") {
		t.Errorf("the screen is not right:\n%s", screen)
	}
	if styled := x.tmux("capture-pane", "-p", "-e"); strings.Contains(styled, "\x1b[31m") || !strings.Contains(styled, "\x1b[7m") {
		t.Errorf("with NO_COLOR the screen has colors, or no cursor:\n%q", styled)
	}
	x.keys("/", "0", "0", "0", "7", "Enter", "Enter", "Tab", "Tab", "Tab")
	x.shows(" dead 1 ", "no route")
	x.keys("Enter")
	x.shows("job 8 of queue-0007", "state        dead", "attempt 1 at 20")
	x.keys("r", "y")
	x.shows("retried job 8 of queue-0007", "state        ready")

	a.Kill()
	x.shows("disconnected, trying again", "state        ready")
	a.Start()
	x.shows("every 1s")
	x.keys("1")
	x.shows("filter: 0007", "ready 1000  claimed 0  dead 0")
	x.keys("q")
	x.shows("exit=0")
}

// TestTopColors checks that a dead job is marked with a color, and that a signal ends the view.
func TestTopColors(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs it: it needs tmux")
	}
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	w := a.Dial()
	w.Enqueue("mail", 1)
	w.Must(kit.Msg{"op": "nack", "lease": w.ClaimOne("mail").Lease, "dead": true, "error": "no route"})
	w.Enqueue("alarm", 1) // the cursor is on it
	pidFile := filepath.Join(s.Dir, "pid")
	x := openTerminal(t, s.Dir, fmt.Sprintf("sh -c 'echo $$ >%s; exec %s top --socket %s'; echo exit=$?; cat", pidFile, kit.Binary, a.Socket))
	x.shows("ready 1  claimed 0  dead 1")
	if styled := x.tmux("capture-pane", "-p", "-e"); !strings.Contains(styled, "\x1b[31m") {
		t.Errorf("the dead job has no color:\n%q", styled)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("kill", strings.TrimSpace(string(pid))).CombinedOutput(); err != nil {
		t.Fatalf("kill: %v: %s", err, out)
	}
	x.shows("qsidecar: interrupted by a signal", "exit=130")
}
