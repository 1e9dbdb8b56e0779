package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/config"
)

// dial connects a command of one request to the first sidecar that answers.
func (a *app) dial(ctx context.Context) (*qsidecar.Client, error) {
	c, _, err := a.dialWith(ctx, qsidecar.Options{
		Worker: workerName("cli"),
		Retry:  -1, // the caller decides whether to wait
	})
	return c, err
}

// dialWith connects to the first sidecar that answers, and returns its socket.
func (a *app) dialWith(ctx context.Context, opts qsidecar.Options) (c *qsidecar.Client, socket string, err error) {
	ctx, cancel := withAnswerTimeout(ctx, answerTimeout)
	defer cancel()
	if err := a.checkSocket(); err != nil {
		return nil, "", err
	}
	var failed unreachableError
	for _, opts.Socket = range a.sockets() {
		c, err := qsidecar.Dial(ctx, opts)
		if err == nil {
			return c, opts.Socket, nil
		}
		if !notListening(err) {
			return nil, "", err // something listens: don't try the next socket
		}
		failed = append(failed, err)
	}
	return nil, "", failed.withCode()
}

// workerName returns the name that the database shows for a claim.
func workerName(what string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	name := fmt.Sprintf("qsidecar-%s@%s/%d", what, host, os.Getpid())
	return name[:min(len(name), 128)]
}

// input adds the environment of this run to in.
func (a *app) input(in config.Input) config.Input {
	in.Socket, in.Env, in.PipeTimeout = a.socket, a.env, a.pipeTimeout
	in.SystemSocket = a.systemSocket
	for _, ln := range a.inherited {
		in.Inherited = append(in.Inherited, ln.Addr().String())
	}
	return in
}

// configInput is input for a command that reads a config. It finds the config file.
func (a *app) configInput(in config.Input) config.Input {
	in = a.input(in)
	in.FindFile(cmp.Or(a.systemFile, config.SystemFile))
	return in
}

// checkSocket checks the path that --socket or QSIDECAR_SOCKET names.
func (a *app) checkSocket() error {
	return a.input(config.Input{}).CheckSocketFile()
}

// sockets returns the possible paths of the sidecar's socket.
func (a *app) sockets() []string { return a.input(config.Input{}).Sockets() }
