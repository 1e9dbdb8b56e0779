package main

import (
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/top"
)

func (a *app) topCommand() *cobra.Command {
	interval := durationFlag{d: time.Second, min: 100 * time.Millisecond, max: time.Hour}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch queues, workers and databases on a terminal",
		Long: `Show the queues, workers and databases of the sidecar on a terminal, refreshed at an
interval, with keys to sort and filter, to pause and resume a queue, to read a job, and to
retry dead jobs. ? lists the keys.

If a refresh takes long, the pause after it is three times as long, so that the view never
takes more than a quarter of the time of one connection. If the sidecar restarts, the view
shows that it is disconnected, and goes on when the sidecar is back. NO_COLOR=1 turns the
colors off.

` + exitCodes,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.terminal(a.in) || !a.terminal(a.stdout) {
				return usagef("top needs a terminal on stdin and stdout: use `qsidecar stats` or `qsidecar status` instead")
			}
			ctx, _, stop := a.interruptible(cmd.Context())
			defer stop()
			// This finds the socket. The view has its own connection, which reports outages.
			c, socket, err := a.dialWith(ctx, qsidecar.Options{Worker: workerName("top"), Retry: -1})
			if err != nil {
				return err
			}
			c.Close()
			return top.Run(ctx, top.Options{Socket: socket, Worker: workerName("top"), Interval: interval.d, In: a.in, Out: a.stdout})
		},
	}
	cmd.Flags().Var(&interval, "interval", "time between two refreshes, at least 100ms")
	return cmd
}
