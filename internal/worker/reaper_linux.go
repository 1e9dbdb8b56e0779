package worker

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper starts commands, and collects the exit status of orphans. If a command leaves processes behind, they become
// children of the first process of the container, or of a subreaper. If that is this process and it didn't collect
// them, each would stay as a zombie, up to the limit of processes.
type reaper struct {
	mu  sync.Mutex  // held while a command starts, so that reap doesn't take it for an orphan
	own map[int]int // commands by process id that exec.Cmd.Wait collects

	wake chan os.Signal // a child has exited
	end  chan struct{}
}

func newReaper() *reaper {
	r := &reaper{own: make(map[int]int), wake: make(chan os.Signal, 1), end: make(chan struct{})}
	if adopts() {
		signal.Notify(r.wake, unix.SIGCHLD)
		go r.run()
	}
	return r
}

// adopts reports whether orphans can become children of this process.
func adopts() bool {
	var subreaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0)
	return os.Getpid() == 1 || err == nil && subreaper != 0
}

// start starts a command. Its caller must call cmd.Wait at once, and then collected.
func (r *reaper) start(cmd *exec.Cmd) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	r.own[cmd.Process.Pid]++
	return nil
}

// collected notes that cmd.Wait has returned. From now on its process id can be that of another process.
func (r *reaper) collected(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own[pid]--; r.own[pid] == 0 {
		delete(r.own, pid)
	}
	select {
	case r.wake <- unix.SIGCHLD: // reap stopped at this one
	default:
	}
}

func (r *reaper) close() {
	signal.Stop(r.wake)
	close(r.end)
}

func (r *reaper) run() {
	for {
		select {
		case <-r.wake:
			for r.reap() {
			}
		case <-r.end:
			return
		}
	}
}

// exitedChild is the start of siginfo_t for SIGCHLD, in the size of unix.Siginfo.
type exitedChild struct {
	_   [3]int32
	_   [0]uintptr // aligns the rest
	pid int32
	_   [128]byte
}

// reap collects one orphan that has exited. It reports whether there was one. A command is left to exec.Cmd.Wait,
// and collected then continues with the children behind it.
func (r *reaper) reap() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var child exitedChild
	err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&child)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if errors.Is(err, syscall.EINTR) {
		return true
	}
	if err != nil || child.pid == 0 || r.own[int(child.pid)] > 0 {
		return false
	}
	_, err = unix.Wait4(int(child.pid), nil, unix.WNOHANG, nil)
	return err == nil
}
