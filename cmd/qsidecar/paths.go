package main

import (
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
		Retry:  -1, // a command says what is the matter; its caller knows whether to wait
	})
	return c, err
}

// dialWith connects to the first sidecar that answers, and says at which socket.
func (a *app) dialWith(ctx context.Context, opts qsidecar.Options) (c *qsidecar.Client, socket string, err error) {
	ctx, cancel := withAnswerTimeout(ctx, answerTimeout)
	defer cancel()
	tried := a.sockets()
	var first error
	for _, opts.Socket = range tried {
		c, err := qsidecar.Dial(ctx, opts)
		if err == nil {
			return c, opts.Socket, nil
		}
		if !notListening(err) {
			return nil, "", err // somebody is there: the next place would be a surprise
		}
		if first == nil {
			first = err
		}
	}
	return nil, "", &codeError{exitUnavailable, &unreachableError{tried: tried, err: first}}
}

// workerName is what the database shows as the holder of a claim.
func workerName(what string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	name := fmt.Sprintf("qsidecar-%s@%s/%d", what, host, os.Getpid())
	return name[:min(len(name), 128)]
}

// input completes where a config comes from.
func (a *app) input(in config.Input) config.Input {
	in.Socket, in.Env, in.PipeTimeout = a.socket, a.env, a.pipeTimeout
	for _, ln := range a.inherited {
		in.Inherited = append(in.Inherited, ln.Addr().String())
	}
	return in
}

// sockets are where a sidecar's socket can be.
func (a *app) sockets() []string { return a.input(config.Input{}).Sockets() }
