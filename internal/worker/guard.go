package worker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
)

// GuardCommand is the hidden command of this program that runs RunGuard.
const GuardCommand = "work-guard"

// RunGuard reads the process groups of a worker from in: the line N adds a group, and -N
// removes it. When the worker closes its end, or is killed, RunGuard kills the remaining
// groups. PDEATHSIG alone reaches a command, but not the processes that the command started.
func RunGuard(in io.Reader) error {
	groups := make(map[int]bool)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		n, err := strconv.Atoi(lines.Text())
		if err != nil || n >= -1 && n <= 1 { // kill treats 0 and -1 as other targets
			return fmt.Errorf("%s: %q names no process group", GuardCommand, lines.Text())
		}
		if n > 0 {
			groups[n] = true
		} else {
			delete(groups, -n)
		}
	}
	var failed error
	for g := range groups {
		if err := syscall.Kill(-g, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("%s: killing the process group %d: %w", GuardCommand, g, err))
		}
	}
	return errors.Join(lines.Err(), failed)
}

// guard is the worker's connection to its guard process.
type guard struct {
	exited chan error // gets the result of the process
	pipe   *os.File

	mu   sync.Mutex
	lost func(error) // called once, when the guard process is gone; nil after that
}

// startGuard starts the guard in a session of its own, so that signals for the worker's
// group or terminal don't reach it.
func startGuard(r *reaper, lost func(error)) (*guard, error) {
	self, err := ownExecutable()
	if err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	readEnd, writeEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("the guard's pipe: %w", err)
	}
	defer func() { _ = readEnd.Close() }() // the guard has its own copy
	cmd := exec.Command(self, GuardCommand)
	cmd.Stdin, cmd.Dir, cmd.Env = readEnd, "/", []string{} // the environment can contain secrets
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := r.start(cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the guard: %w", err), writeEnd.Close())
	}
	g := &guard{exited: make(chan error, 1), pipe: writeEnd, lost: lost}
	go func() {
		err := cmd.Wait()
		r.collected(cmd.Process.Pid)
		g.exited <- err
	}()
	return g, nil
}

// watch makes the guard kill the group if this process is killed; unwatch reverts that.
func (g *guard) watch(group int)   { g.write(group) }
func (g *guard) unwatch(group int) { g.write(-group) }

func (g *guard) write(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := fmt.Fprintln(g.pipe, n); err != nil && g.lost != nil {
		g.lost(err)
		g.lost = nil
	}
}

// close ends the guard process.
func (g *guard) close() error {
	return errors.Join(g.pipe.Close(), <-g.exited)
}
