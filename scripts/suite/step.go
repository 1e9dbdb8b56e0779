package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// step is one command of a suite: a `go test` whose events are read, or another program that must
// succeed.
type step struct {
	name string
	dir  string   // empty: the repository
	test []string // arguments of go test; nil: run command
	cmd  []string
	env  []string
}

// stream is a list of steps that run one after another. The streams of a suite run at the same
// time.
type stream []step

// runStream runs the steps of a stream. A step that fails doesn't stop the next one.
func (r *report) runStream(ctx context.Context, s stream) {
	for _, step := range s {
		if ctx.Err() != nil {
			r.fail(step.name, "", "not run: the suite was stopped")
			return
		}
		start := time.Now()
		var cmd *exec.Cmd
		var err error
		if step.test != nil {
			cmd, err = r.goTest(ctx, step)
		} else {
			cmd, err = r.command(ctx, step)
		}
		var cpu time.Duration
		if p := cmd.ProcessState; p != nil { // it ran
			cpu = p.UserTime() + p.SystemTime()
		}
		r.stepDone(step.name, time.Since(start), cpu, err)
	}
}

// child is a command in its own process group. The whole group ends when ctx ends.
func child(ctx context.Context, s step, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// command runs a program and shows its output if it fails.
func (r *report) command(ctx context.Context, s step) (*exec.Cmd, error) {
	cmd := child(ctx, s, s.cmd...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.fail(s.name, "", fmt.Sprintf("%s: %v\n%s", strings.Join(s.cmd, " "), err, out))
	}
	return cmd, err
}

// silence is how long a step can print nothing: twice what the longest test takes on a busy machine. The tests that run then have stopped.
// Their time limits would end them later than CI ends the suite, without a stack.
const silence = 12 * time.Minute

// goTest runs go test and passes its events to the report. It also writes them to a file. It ends tests that print nothing for too long: SIGQUIT
// makes them print the stack of each goroutine.
func (r *report) goTest(ctx context.Context, s step) (cmd *exec.Cmd, err error) {
	cmd = child(ctx, s, append([]string{"go", "test", "-json"}, s.test...)...)
	log, err := os.Create(filepath.Join(r.out, s.name+".json"))
	if err != nil {
		return cmd, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	events, err := cmd.StdoutPipe()
	if err != nil {
		return cmd, err
	}
	stderr, err := os.Create(filepath.Join(r.out, s.name+".stderr"))
	if err != nil {
		return cmd, err
	}
	defer func() { err = errors.Join(err, stderr.Close()) }()
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		return cmd, err
	}
	stuck := time.AfterFunc(silence, func() {
		r.printf("!!!  %s printed nothing for %v: its tests are ended", s.name, silence)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT) // it fails if they have just ended
	})
	if r.name == "soak" { // one of its tests can take an hour
		stuck.Stop()
	}
	defer stuck.Stop()
	lines := bufio.NewReader(io.TeeReader(events, log))
	for {
		line, readErr := lines.ReadBytes('\n')
		if stuck.Stop() {
			stuck.Reset(silence)
		}
		if len(line) > 0 {
			r.event(s.name, line)
		}
		if readErr != nil {
			break // the end of the output; the exit status reports errors
		}
	}
	err = cmd.Wait()
	if err != nil && !r.failedIn(s.name) {
		output, _ := os.ReadFile(stderr.Name()) // shown as far as it can be read
		r.fail(s.name, "", fmt.Sprintf("go test %s: %v\n%s", strings.Join(s.test, " "), err, tail(output, 8<<10)))
	}
	return cmd, err
}

func tail(text []byte, n int) []byte { return text[max(0, len(text)-n):] }
