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
	// afterExit is how long the output of a command that has exited is waited for,
	// where processes that it left behind hold it open.
	outputGrace = time.Second

	// groupPoll is the pause between two looks whether a process group is empty.
	groupPoll = 10 * time.Millisecond
)

// starter starts commands from one thread that lives as long as it does: the
// kernel sends PDEATHSIG when the *thread* that started a child ends, and the
// runtime ends threads as it likes.
type starter struct {
	calls chan func()
	guard *guard
}

func newStarter(g *guard) *starter {
	s := &starter{calls: make(chan func()), guard: g}
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
		err := cmd.Start()
		if err == nil {
			s.guard.watch(cmd.Process.Pid)
		}
		done <- err
	}
	return <-done
}

// close ends the thread and the guard. Every command has ended by then.
func (s *starter) close() error {
	close(s.calls)
	return s.guard.close()
}

// process is one command that runs, in a process group of its own.
type process struct {
	cmd     *exec.Cmd
	starter *starter
	stderr  *tailBuffer
	stdin   *os.File // our end; nil: it has none

	ourEnds   []*os.File // our ends of its pipes
	childEnds []*os.File // its ends, ours to close once it has them
	copies    sync.WaitGroup
	exited    chan struct{} // closed when cmd.ProcessState is set
}

func newProcess(cmd *exec.Cmd, passOn io.Writer) *process {
	cmd.SysProcAttr = commandAttributes()
	return &process{cmd: cmd, stderr: &tailBuffer{forward: passOn}, exited: make(chan struct{})}
}

// pipe makes a pipe and keeps our end of it.
func (p *process) pipe(weWrite bool) (our, its *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	our, its = r, w
	if weWrite {
		our, its = w, r
	}
	p.ourEnds, p.childEnds = append(p.ourEnds, our), append(p.childEnds, its)
	return our, its, nil
}

// start starts the command with a stdin that we write where feed is true, and with
// a stdout that goes to out, which is a file that it gets itself, or any writer.
// Where it fails nothing is left.
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
	var said *os.File // our end of its stdout
	if f, ok := out.(*os.File); ok {
		p.cmd.Stdout = f
	} else {
		var its *os.File
		if said, its, err = p.pipe(false); err != nil {
			return err
		}
		p.cmd.Stdout = its
	}
	p.starter = s
	complained, its, err := p.pipe(false)
	if err != nil {
		return err
	}
	p.cmd.Stderr = its
	if err := s.start(p.cmd); err != nil {
		return err
	}
	if said != nil {
		p.copy(out, said)
	}
	p.copy(p.stderr, complained)
	go func() {
		_ = p.cmd.Wait() // the state says all
		close(p.exited)
	}()
	return nil
}

// pipeFor is pipe with its end as a reader.
func (p *process) pipeFor(weWrite bool) (*os.File, io.Reader, error) {
	our, its, err := p.pipe(weWrite)
	if err != nil {
		return nil, nil, err // an interface that holds a nil pointer is not nil
	}
	return our, its, nil
}

// copy reads what the command writes to its end. Neither end's errors are ours:
// to is memory, or passes on what it can.
func (p *process) copy(to io.Writer, from *os.File) {
	p.copies.Go(func() { _, _ = io.Copy(to, from) })
}

// feed writes b to the command's stdin and closes it, beside it. A command that does not
// read its stdin is no error.
func (p *process) writeStdin(b []byte) {
	p.copies.Go(func() {
		_, _ = p.stdin.Write(b)
		_ = p.stdin.Close()
	})
}

// signal sends sig to the command's process group. A group that is gone is no error.
func (p *process) signal(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }

// stop ends the command and all of its group: SIGTERM, and SIGKILL to what is left
// after grace. It returns once the command has exited, and the group is empty or was killed.
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

// groupAlive reports whether any process of the group lives. A dead one that its
// new parent has not noticed yet does not: as the first process of a container that
// parent may be this one, or nobody.
func groupAlive(group int) bool {
	if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		return false
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return true // without /proc nobody can tell
	}
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it ended just now
		}
		// The name, in brackets, may hold anything; then come state, parent and group.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

// finish waits for the rest of the output of a command that has exited, and lets
// go of it and of what it left behind.
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
		_ = f.Close() // pipes, some closed before
	}
}

// ending says in words how the command ended.
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
