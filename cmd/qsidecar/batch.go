package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) batchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "batch COMMAND",
		Short: "Keep batches, whose jobs have a common end",
		Long: `Keep batches. When all jobs of a batch have ended, one more job is stored, the callback.
Open a batch, add jobs with "qsidecar enqueue --batch", and close it.

` + exitCodes,
		Example: `  id=$(qsidecar batch open report '{"day": 7}' --on success)
  qsidecar enqueue thumbnails '{"image": 17}' --batch "$id"
  qsidecar batch close "$id"
  qsidecar batch wait "$id"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no command `batch %s`: run `qsidecar batch --help` to see those that exist", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.batchOpen(), a.batchClose(), a.batchWait(), a.batchList(), a.batchShow(), a.batchCancel())
	return cmd
}

func (a *app) batchOpen() *cobra.Command {
	var f jobFlags
	var format payloadFormat
	var on string
	cmd := &cobra.Command{
		Use:   "open QUEUE [PAYLOAD|-]",
		Short: "Open a batch, and print its id",
		Long: `Open a batch, and print its id. The queue, the payload and the flags are those of the
callback. With --on success it is stored when all jobs of the batch are done, with --on
finish when all have ended. A batch that doesn't end is deleted after 30 days
(retention.batch). With --batch the callback is a job of another batch.

` + exitCodes,
		Example: "  qsidecar batch open report '{\"day\": 7}' --on success --key report-7",
		Args:    argCount(1, 2, "a queue and at most one payload"),
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := f.job(cmd, args[0], a.getenv)
			if err == nil {
				err = format.check(a.json)
			}
			if err == nil && len(args) == 2 {
				var given []byte
				if given, err = a.text(cmd.Context(), args[1]); err == nil {
					job.Payload, err = format.encode(given)
				}
			}
			if err == nil && on != protocol.OnSuccess && on != protocol.OnFinish {
				err = usagef("--on: %q is not %s or %s", on, protocol.OnSuccess, protocol.OnFinish)
			}
			if err != nil {
				return err
			}
			key := job.Key
			job.Key = ""
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpOpenBatch, Queue: job.Queue, Job: job, Key: key, On: on})
				switch {
				case err != nil:
					return err
				case rep.Batch == nil:
					return errors.New("the sidecar's answer has no batch")
				case a.json:
					return a.printReply(rep)
				case rep.Batch.Duplicate:
					fmt.Fprintf(a.errOut, "qsidecar: nothing was stored: batch %s has this key\n", rep.Batch.ID)
				}
				return a.printf("%s", rep.Batch.ID)
			})
		},
	}
	f.addCallback(cmd)
	cmd.Flags().StringVar(&on, "on", protocol.OnSuccess, "when the callback is stored: success or finish")
	a.payloadFlags(cmd, &format)
	return cmd
}

// oneBatch calls f with the batch that the argument names.
func (a *app) oneBatch(cmd *cobra.Command, id string, within time.Duration, f func(ctx context.Context, c *qsidecar.Client, b *protocol.Batch) error) error {
	return a.oneRequestWithin(cmd, answerTimeout+within, func(ctx context.Context, c *qsidecar.Client) error {
		rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpBatches, Batch: id})
		switch {
		case err != nil:
			return err
		case len(rep.Batches) == 0:
			return fmt.Errorf("there is no batch %s: `qsidecar batch list --all` shows those that exist", id)
		}
		return f(ctx, c, &rep.Batches[0])
	})
}

func (a *app) batchClose() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "close ID",
		Short: "Close a batch: it ends when its jobs have ended",
		Long: `Close a batch. From then on only workers that have one of its jobs can add others. When
its jobs have ended, the callback is stored. To close a batch again does nothing.

` + exitCodes,
		Example: "  qsidecar batch close \"$id\"",
		Args:    argCount(1, 1, "one batch"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneBatch(cmd, args[0], 0, func(ctx context.Context, c *qsidecar.Client, b *protocol.Batch) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpCloseBatch, Queue: b.Queue, Batch: b.ID})
				if err == nil && a.json {
					err = a.printReply(rep)
				}
				return err
			})
		},
	}
	return a.jsonFlag(cmd)
}

func (a *app) batchCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cancel ID",
		Short:   "Cancel the jobs of a batch, which ends without its callback",
		Long:    "Cancel the jobs of a batch, which ends without its callback, and print how many jobs\nthese are. Batches whose callbacks are jobs of it are cancelled too.\n\n" + exitCodes,
		Example: "  qsidecar batch cancel \"$id\"",
		Args:    argCount(1, 1, "one batch"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneBatch(cmd, args[0], 0, func(ctx context.Context, c *qsidecar.Client, b *protocol.Batch) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpCancelBatch, Queue: b.Queue, Batch: b.ID})
				if err != nil {
					return err
				}
				if a.json {
					return a.printReply(rep)
				}
				return a.printf("%d", rep.Count.Value)
			})
		},
	}
	return a.jsonFlag(cmd)
}

func (a *app) batchWait() *cobra.Command {
	wait := durationFlag{d: time.Minute, set: true, max: protocol.MaxWaitMS * time.Millisecond}
	cmd := &cobra.Command{
		Use:   "wait ID",
		Short: "Wait until a batch has ended, and print the id of its callback",
		Long: `Wait until a batch has ended, and print the id of its callback. "qsidecar wait" waits for
the end of that job.

` + exitCodes,
		Example: "  qsidecar wait report \"$(qsidecar batch wait \"$id\" --wait 5m)\"",
		Args:    argCount(1, 1, "one batch"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneBatch(cmd, args[0], wait.d, func(ctx context.Context, c *qsidecar.Client, b *protocol.Batch) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpWait, Queue: b.Queue, Batch: b.ID, WaitMS: wait.d.Milliseconds()})
				switch {
				case err != nil:
					return err
				case rep.Batch == nil:
					return errors.New("the sidecar's answer has no batch")
				case a.json:
					err = a.printReply(rep)
				case rep.Batch.Callback != "":
					err = a.printf("%s", rep.Batch.Callback)
				}
				switch {
				case err != nil || rep.Batch.State == "ended":
					return err
				case rep.Batch.State == "cancelled":
					return &codeError{exitFailure, fmt.Errorf("the batch %s is cancelled", b.ID)}
				}
				return &codeError{exitNoJob, fmt.Errorf("the batch %s has not ended within %v: it is %s", b.ID, wait.d, rep.Batch.State)}
			})
		},
	}
	cmd.Flags().Var(&wait, "wait", "wait up to this long, at most 1h")
	return a.jsonFlag(cmd)
}

func (a *app) batchList() *cobra.Command {
	var ended bool
	cmd := &cobra.Command{
		Use:     "list [QUEUE]",
		Short:   "List the batches with callbacks in a queue, or in all queues",
		Long:    "List the batches with callbacks in a queue, or in all queues, and how many of their jobs\nare done, failed and left.\n\n" + exitCodes,
		Example: "  qsidecar batch list",
		Args:    argCount(0, 1, "at most one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				all := []protocol.Batch{}
				for after := ""; ; {
					rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpBatches, Queue: strings.Join(args, ""), All: ended, After: after})
					if err != nil {
						return err
					}
					all = append(all, rep.Batches...)
					if after = rep.After; after == "" {
						break
					}
				}
				if a.json {
					return a.printEach(&protocol.Reply{Batches: all}, "batches")
				}
				if len(all) == 0 {
					return a.printf("there is no batch")
				}
				var rows [][]string
				for i := range all {
					b := &all[i]
					rows = append(rows, []string{b.ID, b.Queue, b.State, "on " + b.On, number(b.Done), number(b.Failed), number(b.Left), timeText(b.CreatedAt)})
				}
				return a.table("BATCH QUEUE STATE CALLBACK DONE FAILED LEFT OPENED", rows)
			})
		},
	}
	cmd.Flags().BoolVar(&ended, "all", false, "also those that ended in the last week")
	return a.jsonFlag(cmd)
}

func number(n protocol.Opt[int64]) string { return fmt.Sprint(n.Value) }

func (a *app) batchShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a batch, and its jobs that are not done",
		Long:    "Show a batch, and at most 100 of its jobs that are not done.\n\n" + exitCodes,
		Example: "  qsidecar batch show \"$id\"",
		Args:    argCount(1, 1, "one batch"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneBatch(cmd, args[0], 0, func(_ context.Context, _ *qsidecar.Client, b *protocol.Batch) error {
				if a.json {
					return a.printEach(&protocol.Reply{Batches: []protocol.Batch{*b}}, "batches")
				}
				return a.printBatch(b)
			})
		},
	}
	return a.jsonFlag(cmd)
}

func (a *app) printBatch(b *protocol.Batch) error {
	var rows [][]string
	add := func(name, value string) {
		if value != "" && value != "-" {
			rows = append(rows, []string{name, value})
		}
	}
	add("batch", b.ID)
	add("state", b.State)
	add("jobs", fmt.Sprintf("%d done, %d failed, %d left", b.Done.Value, b.Failed.Value, b.Left.Value))
	callback := "in " + b.Queue + ", on " + b.On
	if b.Callback != "" {
		callback = "job " + b.Callback + " in " + b.Queue
	}
	add("callback", callback)
	add("key", b.Key)
	add("of batch", b.Parent)
	add("opened", timeText(b.CreatedAt))
	add("closed", timeText(b.ClosedAt))
	add("ended", timeText(b.EndedAt))
	add("deleted", timeText(b.ExpiresAt))
	for _, j := range b.Jobs {
		if j.Batch != "" {
			add("left", "the callback of batch "+j.Batch)
		} else {
			add(string(j.State), "job "+j.ID+" "+j.Queue)
		}
	}
	for _, r := range rows {
		if err := a.printf("%-13s %s", r[0], r[1]); err != nil {
			return err
		}
	}
	return nil
}
