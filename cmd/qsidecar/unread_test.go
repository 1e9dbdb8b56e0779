package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestSignalWithoutReader checks that a signal ends a command which blocks on stdin or
// stdout. A job that it claimed and could not print is ready again.
func TestSignalWithoutReader(t *testing.T) {
	for what, args := range map[string][]string{
		"peek":    {"peek", "q", "--json"},
		"claim":   {"claim", "q"},
		"enqueue": {"enqueue", "q", "-"},
		"ack":     {"ack", "lease", "--result", "-"},
		"confirm": {"purge", "q", "--state", "ready"},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHost(t)
			h.serve()
			h.mustWith(exitOK, strings.Repeat("x", 200_000), "enqueue", "q", "-")
			inR, inW, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			outR, outW, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				for _, f := range []*os.File{inR, inW, outR, outW} {
					f.Close()
				}
			}()
			h.terminal = what == "confirm"
			asked, stop, code := newText(), make(chan os.Signal, 1), make(chan int, 1)
			a := h.app(inR, outW, asked, stop)
			go func() { code <- a.main(args) }()
			switch what {
			case "peek", "claim":
				testwait.Until(t, "the pipe is full", func() bool { return isFull(t, outW) })
			case "confirm":
				testwait.Until(t, "the question", func() bool { return strings.Contains(asked.String(), "Go on?") })
			}
			stop <- syscall.SIGTERM
			if got := testwait.Receive(t, "the end of the command", code); got != exitInterrupted {
				t.Errorf("exit code %d, want %d: %s", got, exitInterrupted, asked)
			}
			if out := h.must(exitOK, "stats", "q", "--json"); !strings.Contains(out, `"ready":1`) {
				t.Errorf("the job is not ready: %s", out)
			}
		})
	}
}
