package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// Sidecar is a running qsidecar.
type Sidecar struct {
	Socket string
	PID    int
	Stop   func() error
}

// StartTime is how long a process can take to start.
const StartTime = 30 * time.Second

// StartSidecar runs the program on the database and waits until it listens. With quiet it does not
// notify other sidecars of new jobs, and does not listen to them.
func StartSidecar(ctx context.Context, bin, database string, quiet bool) (_ *Sidecar, err error) {
	dir, err := os.MkdirTemp("", "qsbench")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	notify := map[bool]string{false: "on", true: "off"}[quiet]
	socket, config := filepath.Join(dir, "s"), filepath.Join(dir, "config.yaml")
	words := fmt.Sprintf("listen: [{socket: %s}]\ndatabases:\n  main:\n    url: %s\n    notify: %s\nlog: {level: warn}\n",
		strconv.Quote(socket), strconv.Quote(database), notify)
	if err := os.WriteFile(config, []byte(words), 0o600); err != nil {
		return nil, err
	}
	pid, stop, err := Launch(ctx, socket, nil, bin, "serve", "--config", config)
	if err != nil {
		return nil, err
	}
	return &Sidecar{Socket: socket, PID: pid, Stop: func() error { return errors.Join(stop(), os.RemoveAll(dir)) }}, nil
}

// Launch starts a server and waits until it listens on the socket. The server ends with this process.
func Launch(ctx context.Context, socket string, env []string, argv ...string) (pid int, stop func() error, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started, ended := make(chan error), make(chan error, 1) // capacity 1, because no one reads it if the start fails
	go func() {
		// The kernel sends the signal when the *thread* that started the child ends. This thread
		// stays until the child has ended, and ends with the goroutine.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			err = cmd.Wait()
			if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() && s.Signal() == syscall.SIGTERM {
				err = nil
			}
			ended <- err
		}
	}()
	if err := <-started; err != nil {
		return 0, nil, err
	}
	stop = func() error { return errors.Join(cmd.Process.Signal(syscall.SIGTERM), <-ended) }
	ctx, cancel := context.WithTimeout(ctx, StartTime)
	defer cancel()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return cmd.Process.Pid, stop, conn.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return 0, nil, errors.Join(fmt.Errorf("%s does not listen: %w", argv[0], err), stop())
		}
	}
}

// stats returns the queue's counts from the sidecar, or zero counts for an unknown queue.
func (s *Sidecar) stats(queue string) (q protocol.QueueStat, err error) {
	w, err := Dial(s.Socket)
	if err != nil {
		return q, err
	}
	defer func() { err = errors.Join(err, w.Conn.Close()) }()
	r, err := w.Call(&protocol.Request{Op: protocol.OpStats, Queue: queue})
	if err != nil {
		return q, err
	}
	if i := slices.IndexFunc(r.Queues, func(q protocol.QueueStat) bool { return q.Queue == queue }); i >= 0 {
		q = r.Queues[i]
	}
	return q, nil
}

// Count returns how many jobs of the queue are ready, scheduled or claimed.
func (s *Sidecar) Count(queue string) (n int64, err error) {
	q, err := s.stats(queue)
	return q.Ready + q.Scheduled + q.Claimed, err
}

// Empty returns an error if jobs are left in the queue, because some were not processed.
func (s *Sidecar) Empty(queue string) error {
	left, err := s.Count(queue)
	if err == nil && left != 0 {
		err = fmt.Errorf("%d jobs are left in the queue %s after all were worked", left, queue)
	}
	return err
}

// Ended returns how many finished jobs the queue has.
func (s *Sidecar) Ended(queue string) (n int64, err error) {
	q, err := s.stats(queue)
	return q.Done + q.Dead, err
}
