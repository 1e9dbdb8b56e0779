package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) waitCommand() *cobra.Command {
	wait := durationFlag{d: time.Minute, set: true, max: protocol.MaxWaitMS * time.Millisecond}
	w := qsidecar.Wait{}
	cmd := &cobra.Command{
		Use:   "wait QUEUE ID…",
		Short: "Wait until jobs have ended, and print how",
		Long: `Wait until all of these jobs have ended, or with --any one of them. One JSON line is
printed for each job that has ended by then: its id, its state (done, dead or deleted),
the result of its ack (as result or result_b64) and the last error.

A job that is not kept has a result only if its worker uses the same sidecar. Keep it with
"enqueue --retain", or all done jobs with the retention of their queue.
Through another sidecar it is "deleted", which it also is if it never existed.

` + exitCodes,
		Example: `  id=$(qsidecar enqueue thumbnails '{"image": 17}') && qsidecar wait thumbnails "$id"
  qsidecar wait thumbnails 17 18 19 --any --wait 5m`,
		Args: argCount(2, -1, "a queue, and the ids of jobs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "") {
				return usagef("a queue or an id is empty")
			}
			w.Queue, w.IDs, w.Wait = args[0], args[1:], wait.d
			return a.wait(cmd, w)
		},
	}
	cmd.Flags().BoolVar(&w.Any, "any", false, "wait until one of the jobs has ended")
	cmd.Flags().Var(&wait, "wait", "wait up to this long, at most 1h")
	cmd.Flags().Bool("json", true, "answer in JSON lines, as it always does")
	return cmd
}

func (a *app) wait(cmd *cobra.Command, w qsidecar.Wait) error {
	return a.oneRequestWithin(cmd, answerTimeout+w.Wait, func(ctx context.Context, c *qsidecar.Client) error {
		ended, err := c.Wait(ctx, w)
		if len(ended) > 0 {
			if e := a.printEach(&protocol.Reply{Ended: ended}, "ended"); e != nil {
				return e
			}
		}
		if err != nil {
			return err
		}
		failed := slices.IndexFunc(ended, func(j protocol.EndedJob) bool { return j.State != protocol.StateDone })
		ids := slices.Compact(slices.Sorted(slices.Values(w.IDs)))
		switch left := len(ids) - len(ended); {
		case failed >= 0:
			return &codeError{exitFailure, fmt.Errorf("the job %s is %s", ended[failed].ID, ended[failed].State)}
		case left > 0 && (!w.Any || len(ended) == 0):
			return &codeError{exitNoJob, fmt.Errorf("%d of %d jobs have not ended within %v", left, len(ids), w.Wait)}
		}
		return nil
	})
}
