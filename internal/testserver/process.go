package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// process is the process of a server that this package started.
type process struct {
	process *os.Process
	ended   chan error // the exit status; capacity 1, because possibly no one reads it
	log     string
}

// launch starts a process as user who, with its output in the file log. The kernel sends it the
// signal last if this process dies.
func launch(cmd *exec.Cmd, who account, last syscall.Signal, log string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Dir = filepath.Dir(log)
	cmd.SysProcAttr = who.attributes(last)
	r := &process{ended: make(chan error, 1), log: log}
	started := make(chan error)
	guard(func() {
		err := cmd.Start()
		started <- errors.Join(err, file.Close())
		if err == nil {
			r.ended <- cmd.Wait()
		}
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	r.process = cmd.Process
	return r, nil
}

// stop sends a signal, waits for the end and returns the exit status. It can be called again.
func (r *process) stop(s syscall.Signal) (status, err error) {
	if err = r.process.Signal(s); errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	status = <-r.ended
	r.ended <- status
	return status, err
}

// waitReady calls check until it succeeds, or returns an error if the process ends before. If r is
// nil, this package did not start the server, and the first error of check is returned.
func (r *process) waitReady(ctx context.Context, server string, check func(context.Context) error) error {
	var final error
	err := testwait.Poll(ctx, func(ctx context.Context) error {
		err := check(ctx)
		if err == nil || r == nil {
			final = err
			return nil
		}
		select {
		case status := <-r.ended:
			r.ended <- status
			final = fmt.Errorf("%s ended as it started: %w\n%s", server, status, r.output())
			return nil
		default:
			return err
		}
	})
	if err != nil {
		return fmt.Errorf("%s did not start: %w\n%s", server, err, r.output())
	}
	return final
}

// output returns the log, or nothing if this package did not start the server.
func (r *process) output() string {
	if r == nil {
		return ""
	}
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
