package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// AsRoot returns a command that runs as root: directly if this process is root, otherwise with
// sudo, which must not ask for a password. sudo passes on only the environment of an env command:
// AsRoot(ctx, "env", "A=b", "program").
func AsRoot(ctx context.Context, name string, args ...string) *exec.Cmd {
	if os.Geteuid() != 0 {
		name, args = "sudo", append([]string{"-n", "--", name}, args...)
	}
	return exec.CommandContext(ctx, name, args...)
}

// Process is the process of a server that this package started.
type Process struct {
	OS    *os.Process
	Ended chan error // the exit status; capacity 1, because possibly no one reads it
	log   string
}

// Launch starts a process as user who, with its output in the file log. The kernel sends it the
// signal last if this process dies.
func Launch(cmd *exec.Cmd, who Account, last syscall.Signal, log string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Dir = filepath.Dir(log)
	cmd.SysProcAttr = who.Attributes(last)
	r := &Process{Ended: make(chan error, 1), log: log}
	started := make(chan error)
	guard(func() {
		err := cmd.Start()
		started <- errors.Join(err, file.Close())
		if err == nil {
			r.Ended <- cmd.Wait()
		}
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	r.OS = cmd.Process
	return r, nil
}

// Stop sends a signal, waits for the end and returns the exit status. It can be called again.
func (p *Process) Stop(s syscall.Signal) (status, err error) {
	if err = p.OS.Signal(s); errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	status = <-p.Ended
	p.Ended <- status
	return status, err
}

// WaitReady calls check until it succeeds, or returns an error if the process ends before. If r is
// nil, this package did not start the server, and the first error of check is returned.
func (p *Process) WaitReady(ctx context.Context, server string, check func(context.Context) error) error {
	var final error
	err := testwait.Poll(ctx, func(ctx context.Context) error {
		err := check(ctx)
		if err == nil || p == nil {
			final = err
			return nil
		}
		select {
		case status := <-p.Ended:
			p.Ended <- status
			final = fmt.Errorf("%s ended as it started: %w\n%s", server, status, p.Output())
			return nil
		default:
			return err
		}
	})
	if err != nil {
		return fmt.Errorf("%s did not start: %w\n%s", server, err, p.Output())
	}
	return final
}

// Output returns the log, or nothing if this package did not start the server.
func (p *Process) Output() string {
	if p == nil {
		return ""
	}
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// reserved keeps the sockets that reserve ports. The kernel closes them when this process ends.
var reserved struct {
	sync.Mutex
	by []net.Listener
}

// FreePort returns a free port of 127.0.0.1 for a server that stops and starts again. While it is
// stopped, no client takes the port, because it is below the range that the kernel gives to clients,
// and no other test, because the port stays reserved until this process ends.
func FreePort() (string, error) {
	reserved.Lock()
	defer reserved.Unlock()
	var failed error
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		reservation, err := net.Listen("unix", "@qsidecar-test-port-"+port) // in no directory, so nothing stays
		if err != nil {
			failed = err
			continue
		}
		reserved.by = append(reserved.by, reservation)
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			return port, l.Close()
		}
		failed = err
	}
	return "", fmt.Errorf("no free port on 127.0.0.1: %w", failed)
}

// SignalTree sends a signal to a process and its children, if they still run. It stops the process first, so that it starts no other child.
func SignalTree(parent int, s syscall.Signal) error {
	if s == syscall.SIGSTOP {
		if err := syscall.Kill(parent, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	all, err := Children(parent)
	if err != nil {
		return err
	}
	for _, pid := range append(all, parent) {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// Children returns the ids of a process's children.
func Children(parent int) (all []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		var pid, ppid int
		var state string
		if _, err := fmt.Sscanf(string(stat), "%d", &pid); err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+1:]), "%s %d", &state, &ppid); err != nil {
			return nil, err
		}
		if ppid == parent {
			all = append(all, pid)
		}
	}
	return all, nil
}

// WaitEnded waits until processes that are killed have ended, which frees their memory.
func WaitEnded(all []int) error {
	return testwait.Poll(context.Background(), func(context.Context) error {
		for _, pid := range all {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && !bytes.Contains(stat, []byte(") Z ")) && !bytes.Contains(stat, []byte(") X ")) {
				return fmt.Errorf("process %d was killed and has not ended", pid)
			}
		}
		return nil
	})
}

// Run runs a program without questions. Its error has the program's output.
func Run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// Exists reports whether there is a file or folder.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
