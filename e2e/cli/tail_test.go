package cli

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestTail checks qsidecar tail in a terminal: the life of a job, a crash of the sidecar, and the end.
func TestTail(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs it: it needs tmux")
	}
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	w := a.Dial()
	w.Must(kit.Msg{"op": "hello", "worker": "mailer-1"})
	x := openTerminal(t, s.Dir, kit.Binary+" tail mail --socket "+a.Socket+"; echo exit=$?; cat")
	x.shows("DETAIL")
	w.Enqueue("other", 1)
	w.Enqueue("mail", 1)
	w.Must(kit.Msg{"op": "nack", "lease": w.ClaimOne("mail").Lease, "error": "421 try again", "delay_ms": 0})
	w.Must(kit.Msg{"op": "ack", "lease": w.ClaimOne("mail").Lease})
	x.shows(" acked ")
	screen := x.tmux("capture-pane", "-p") // no line is wrapped
	lines := strings.Split(strings.TrimSpace(screen), "\n")
	want := []string{"UTC QUEUE ID EVENT WORKER TRY AFTER DETAIL", "mail 2 enqueued mailer-1 - -", "mail 2 claimed mailer-1 1/20", "mail 2 failed mailer-1 1/20",
		"mail 2 claimed mailer-1 2/20", "mail 2 acked mailer-1 2/20"}
	if len(lines) != len(want) || !strings.Contains(screen, " 421 try again") {
		t.Fatalf("the screen is not right:\n%s", screen)
	}
	for i, line := range lines {
		if got := strings.Join(strings.Fields(line), " "); !strings.Contains(got, want[i]) {
			t.Errorf("line %d is %q, want %q", i+1, got, want[i])
		}
	}
	a.Kill()
	x.shows("the sidecar is gone (")
	a.Start()
	x.shows("connected again: events from before are missing")
	x.keys("C-c")
	x.shows("interrupted by a signal", "exit=130")
}
