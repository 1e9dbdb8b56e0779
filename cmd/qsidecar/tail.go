package main

import (
	"context"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/tail"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) tailCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tail [QUEUE]",
		Short: "Follow what happens to jobs",
		Long: `Follow what happens to the jobs of a queue, or of every queue, from now on, one line for each
event: a job is enqueued, claimed, acked, failed (it will be tried again), dead, snoozed,
released (a worker or an operator returned it), lost (the worker's lease is not valid any
more), retried or deleted (by an operator).

It shows what happens through this sidecar only. What workers of other hosts do, and what
programs do in the database, is not shown. TRY is the delivery, of how many. AFTER is how
long the worker has had the job, or how long a claimed job had waited since it was enqueued.
If the sidecar finds that attempts ended (a time-out, a dead host), the database reports their
number and not the jobs.

Workers never wait for this command. If it reads too slowly, it misses events, and reports how
many. If the sidecar restarts, it connects again. --json prints one JSON object for each
event, with the fields of the protocol's op watch, and {"missed":N}.

` + exitCodes,
		Example: `  qsidecar tail
  qsidecar tail mail --json | jq 'select(.event == "dead")'`,
		Args: argCount(0, 1, "at most one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			queue := strings.Join(args, "")
			if len(args) > 0 {
				if err := protocol.CheckQueueName("QUEUE", queue); err != nil {
					return usagef("%s", err.Message)
				}
			}
			return a.tail(cmd.Context(), queue)
		},
	}
	return a.jsonFlag(cmd)
}

// tail follows the jobs of a queue until a signal, or until stdout has no reader.
func (a *app) tail(parent context.Context, queue string) error {
	ctx, _, stop := a.interruptible(parent)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	unwatch, err := a.onHangUp(func() { end(&outputError{syscall.EPIPE}) })
	if err != nil {
		return err
	}
	defer unwatch()
	// This finds the socket. The command has its own connection, which reports outages.
	c, socket, err := a.dialWith(ctx, qsidecar.Options{Worker: workerName("tail"), Retry: -1})
	if err != nil {
		return err
	}
	c.Close()
	a.out = output{w: a.stdout, limit: func() context.Context { return ctx }}
	return tail.Run(ctx, tail.Options{Socket: socket, Worker: workerName("tail"), Queue: queue, JSON: a.json, Out: a.out, Width: func() int { return terminalWidth(a.stdout) }, Notes: a.errOut})
}
