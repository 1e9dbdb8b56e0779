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

// RunGuard reads the process groups that a worker has, as lines of group and -group,
// until the worker closes its end, or is killed: then it kills those that are left.
// PDEATHSIG alone would reach a command, and nothing that the command had started.
func RunGuard(in io.Reader) error {
	groups := make(map[int]bool)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		n, err := strconv.Atoi(lines.Text())
		if err != nil || n >= -1 && n <= 1 { // kill takes 0 and -1 for groups that are not meant here
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

// guard is a worker's end of its guard.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File

	mu   sync.Mutex
	lost func(error) // told once that the guard is gone; nil: it was
}

// startGuard starts the guard, in a session of its own: no signal that is meant for
// the worker's group or terminal reaches it.
func startGuard(lost func(error)) (*guard, error) {
	self, err := ownExecutable()
	if err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	its, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("the guard's pipe: %w", err)
	}
	defer func() { _ = its.Close() }() // the guard has its own
	cmd := exec.Command(self, GuardCommand)
	cmd.Stdin, cmd.Dir, cmd.Env = its, "/", []string{} // which may hold secrets
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the guard: %w", err), ours.Close())
	}
	return &guard{cmd: cmd, pipe: ours, lost: lost}, nil
}

// watch has the guard kill the group when this process is killed; unwatch ends that.
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

// close lets the guard go. Nothing is watched any more.
func (g *guard) close() error {
	return errors.Join(g.pipe.Close(), g.cmd.Wait())
}
