package worker

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// outputGrace is how long to wait for the output of an exited command whose child
	// processes keep the pipe open.
	outputGrace = time.Second

	// groupPoll is the interval at which stop checks whether a process group is empty.
	groupPoll = 10 * time.Millisecond
)

// starter starts commands from one thread that it keeps: the kernel sends PDEATHSIG when the
// thread that started a child ends, and the Go runtime can end any other thread.
type starter struct {
	calls  chan func()
	guard  *guard
	reaper *reaper
}

func newStarter(g *guard, r *reaper) *starter {
	s := &starter{calls: make(chan func()), guard: g, reaper: r}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for f := range s.calls {
			f()
		}
	}()
	return s
}

func (s *starter) start(cmd *exec.Cmd) error {
	done := make(chan error)
	s.calls <- func() {
		err := s.reaper.start(cmd)
		if err == nil {
			s.guard.watch(cmd.Process.Pid)
		}
		done <- err
	}
	return <-done
}

// close ends the thread, the guard and the reaper. Every command must have exited before.
func (s *starter) close() error {
	close(s.calls)
	defer s.reaper.close()
	return s.guard.close()
}

// process is one running command in a process group of its own.
type process struct {
	cmd     *exec.Cmd
	starter *starter
	stderr  *tailBuffer
	stdin   *os.File // our end; nil: the command has no stdin

	ourEnds   []*os.File // our ends of its pipes
	childEnds []*os.File // its ends, which we close after the start
	copies    sync.WaitGroup
	exited    chan struct{} // closed when cmd.ProcessState is set
}

func newProcess(cmd *exec.Cmd, passOn io.Writer) *process {
	cmd.SysProcAttr = commandAttributes()
	return &process{cmd: cmd, stderr: &tailBuffer{forward: passOn}, exited: make(chan struct{})}
}

// pipe makes a pipe and keeps both ends for cleanup.
func (p *process) pipe(weWrite bool) (ourEnd, childEnd *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	ourEnd, childEnd = r, w
	if weWrite {
		ourEnd, childEnd = w, r
	}
	p.ourEnds, p.childEnds = append(p.ourEnds, ourEnd), append(p.childEnds, childEnd)
	return ourEnd, childEnd, nil
}

// start starts the command. If feed is true, its stdin is a pipe to which we write. Its
// stdout goes to out: the command inherits an *os.File, and any other writer gets a copy. If
// start fails it leaves no open file.
func (p *process) start(s *starter, feed bool, out io.Writer) (err error) {
	defer func() {
		closeFiles(p.childEnds)
		if err != nil {
			closeFiles(p.ourEnds)
		}
	}()
	if feed {
		if p.stdin, p.cmd.Stdin, err = p.pipeFor(true); err != nil {
			return err
		}
	}
	var stdoutEnd *os.File // our end of its stdout
	if f, ok := out.(*os.File); ok {
		p.cmd.Stdout = f
	} else {
		var childEnd *os.File
		if stdoutEnd, childEnd, err = p.pipe(false); err != nil {
			return err
		}
		p.cmd.Stdout = childEnd
	}
	p.starter = s
	stderrEnd, childEnd, err := p.pipe(false)
	if err != nil {
		return err
	}
	p.cmd.Stderr = childEnd
	if err := s.start(p.cmd); err != nil {
		return err
	}
	if stdoutEnd != nil {
		p.copy(out, stdoutEnd)
	}
	p.copy(p.stderr, stderrEnd)
	go func() {
		_ = p.cmd.Wait() // ProcessState has the result
		s.reaper.collected(p.cmd.Process.Pid)
		close(p.exited)
	}()
	return nil
}

// pipeFor is pipe, with the child's end as an io.Reader.
func (p *process) pipeFor(weWrite bool) (*os.File, io.Reader, error) {
	ourEnd, childEnd, err := p.pipe(weWrite)
	if err != nil {
		return nil, nil, err // a nil *os.File in an interface would not be nil
	}
	return ourEnd, childEnd, nil
}

// copy copies the command's output. It ignores errors: to is memory, or a forwarding writer
// that reports its own.
func (p *process) copy(to io.Writer, from *os.File) {
	p.copies.Go(func() { _, _ = io.Copy(to, from) })
}

// writeStdin writes b to the command's stdin in the background and closes it. A command need
// not read its stdin.
func (p *process) writeStdin(b []byte) {
	p.copies.Go(func() {
		_, _ = p.stdin.Write(b)
		_ = p.stdin.Close()
	})
}

// signal sends sig to the command's process group. It ignores that the group is gone.
func (p *process) signal(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }

// stop ends the command and its group: SIGTERM, then SIGKILL after grace. It returns once
// the command has exited and the group is empty or was killed.
func (p *process) stop(grace time.Duration) {
	defer func() { <-p.exited }()
	if grace <= 0 {
		p.signal(syscall.SIGKILL)
		return
	}
	p.signal(syscall.SIGTERM)
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	tick := time.NewTicker(groupPoll)
	defer tick.Stop()
	for exited := p.exited; ; {
		select {
		case <-exited:
			exited = nil
		case <-deadline.C:
			p.signal(syscall.SIGKILL)
			return
		case <-tick.C:
		}
		if exited == nil && !groupAlive(p.cmd.Process.Pid) {
			return
		}
	}
}

// groupAlive reports whether a process of the group is alive. A zombie isn't: in a container
// its parent can be a first process that never reaps it.
func groupAlive(group int) bool {
	if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		return false
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return true // without /proc it is unknown
	}
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		// The name, in brackets, can contain anything. The state, the parent and the group
		// follow.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

// release waits for the remaining output of a command that has exited, closes its pipes, and
// removes its group from the guard.
func (p *process) release() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.copies.Wait()
	}()
	late := time.NewTimer(outputGrace)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
	closeFiles(p.ourEnds)
	<-done
	p.starter.guard.unwatch(p.cmd.Process.Pid)
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // some are closed already
	}
}

// exitText describes how the command exited.
func (p *process) exitText() string {
	state := p.cmd.ProcessState
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return state.String()
	}
	name := unix.SignalName(status.Signal())
	if name == "" {
		name = status.Signal().String()
	}
	if status.CoreDump() {
		name += " (core dumped)"
	}
	return "killed by " + name
}
