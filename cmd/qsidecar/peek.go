package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) peekCommand() *cobra.Command {
	var state, after, afterQueue, key string
	var ids []string
	var found search
	var most int
	cmd := &cobra.Command{
		Use:   "peek [QUEUE]",
		Short: "Show jobs without claiming them",
		Long: `Show jobs of a queue, or of every queue, without claiming them: ready ones in the order
of claims, scheduled ones by due time, others the longest in their state first. --json
shows everything, also each failed attempt and the whole payload.

--key alone finds the job that has the key, in any state. --text, --error, --header, and --key with
--state search the jobs of a state, of one queue or of all: at most 10,000 of them, or 64 MiB
of payloads. If there are more, stderr has the options with which the search continues.

` + exitCodes,
		Example: `  qsidecar peek
  qsidecar peek mail --state dead
  qsidecar peek mail --ids 17,18 --json
  qsidecar peek mail --key welcome-ada
  qsidecar peek mail --state dead --text ada@example.com --header tenant=blue`,
		Args: argCount(0, 1, "at most one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpPeek, Queue: strings.Join(args, ""), IDs: ids, After: after}
			if cmd.Flags().Changed("ids") && (cmd.Flags().Changed("state") || after != "") {
				return usagef("--ids shows jobs in any state: leave --state and --after out")
			}
			req.AfterQueue = afterQueue
			if err := pageOf(req, most); err != nil {
				return err
			}
			if err := found.fill(req); err != nil {
				return err
			}
			req.Key = key
			if (key != "" || found.given()) && ids != nil {
				return usagef("--ids shows jobs in any state: leave --key, --text, --error and --header out")
			}
			byKey := key != "" && !found.given() && after == "" && !cmd.Flags().Changed("state")
			if ids == nil && !byKey {
				var err error
				if req.State, err = parseState(state); err != nil {
					return err
				}
				req.Max = protocol.Some(int64(most))
			}
			return a.peek(cmd, req, nil, a.jobTable)
		},
	}
	cmd.Flags().StringVar(&state, "state", "ready", states)
	cmd.Flags().StringSliceVar(&ids, "ids", nil, "these jobs, in whatever state: `ID,ID…`")
	cmd.Flags().IntVar(&most, "max", 10, "at most so many")
	cmd.Flags().StringVar(&after, "after", "", "go on after the job with this `ID`, which needs a QUEUE, or --after-queue")
	cmd.Flags().StringVar(&afterQueue, "after-queue", "", "go on in this `QUEUE` with a search of all queues")
	cmd.Flags().StringVar(&key, "key", "", "the job that has this key")
	found.flags(cmd)
	return a.jsonFlag(cmd)
}

func (a *app) deadCommand() *cobra.Command {
	var after string
	var most int
	var found search
	cmd := &cobra.Command{
		Use:   "dead [QUEUE]",
		Short: "List dead jobs: when each one died, of what, and its last error",
		Long: `List the dead jobs of a queue, or of every queue: when each one died (UTC), the cause of
its last failed attempt, and that attempt's error. Those that died last come first, except
in adopted tables. See all of a job with ` + "`qsidecar show ID`" + `, and make it ready again with
` + "`qsidecar retry QUEUE ID`" + `. ` + "`qsidecar peek QUEUE --state dead`" + ` lists the oldest first.

` + exitCodes,
		Example: `  qsidecar dead
  qsidecar dead mail --max 100
  qsidecar dead mail --error 'connection refused'`,
		Args: argCount(0, 1, "at most one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpPeek, Queue: strings.Join(args, ""), State: protocol.StateDead, Max: protocol.Some(int64(most)), After: after, Newest: true}
			if err := pageOf(req, most); err != nil {
				return err
			}
			if err := found.fill(req); err != nil {
				return err
			}
			none := func(ctx context.Context, c *qsidecar.Client) error {
				if rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpStats, Queue: req.Queue}); err == nil && rep.Unknown { // the user may have no right to it
					a.noteUnknown(ctx, c, req.Queue)
				}
				switch {
				case a.json:
					return nil
				case found.given():
					return a.printf("no such dead jobs")
				}
				return a.printf("no job is dead")
			}
			return a.peek(cmd, req, none, func(jobs []protocol.JobView) error {
				rows := make([][]string, len(jobs))
				for i, v := range jobs {
					last := wiretext.LastFailure(v)
					rows[i] = []string{v.Queue, v.ID, wiretext.Attempt(v), wiretext.Time(v.FinishedAt.Or(last.At)), textfmt.OneLine(last.Cause, 24), textfmt.OneLine(wiretext.Summary(last.Message), 100)}
				}
				return a.table("QUEUE ID ATTEMPT DIED CAUSE ERROR", rows)
			})
		},
	}
	cmd.Flags().IntVar(&most, "max", 50, "at most so many")
	found.flags(cmd)
	cmd.Flags().StringVar(&after, "after", "", "go on after the job with this `ID`, which needs a QUEUE")
	return a.jsonFlag(cmd)
}

func (a *app) showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [QUEUE] ID",
		Short: "Show everything about one job",
		Long: `Show everything about the job with an ID, in any state: its times (UTC), payload, headers,
result and each failed attempt. Tables and databases count their jobs on their own, so
more than one job can have the ID: all of them are shown, or that of the QUEUE.

` + exitCodes,
		Example: "  qsidecar show 17\n  qsidecar show mail 17 --json",
		Args:    argCount(1, 2, "the id of a job, and at most its queue before"),
		RunE: func(cmd *cobra.Command, args []string) error {
			queue, id := strings.Join(args[:len(args)-1], ""), args[len(args)-1]
			if id == "" {
				return usagef("an id is empty")
			}
			none := func(ctx context.Context, c *qsidecar.Client) error {
				if others, err := c.Peek(ctx, qsidecar.Peek{IDs: []string{id}}); queue != "" && err == nil && len(others) > 0 { // of the queues that the user may see
					return &codeError{exitFailure, fmt.Errorf("no job of the queue %s has the id %s, but one of the queue %s has: run `qsidecar show %s`", queue, id, others[0].Queue, id)}
				}
				return &codeError{exitFailure, fmt.Errorf("no job has the id %s: it was deleted, or it is done and not kept", id)}
			}
			return a.peek(cmd, &protocol.Request{Op: protocol.OpPeek, Queue: queue, IDs: []string{id}}, none, func(jobs []protocol.JobView) error {
				texts := make([]string, len(jobs))
				for i, v := range jobs {
					texts[i] = wiretext.Job(v)
				}
				return a.printf("%s", strings.Join(texts, "\n\n"))
			})
		},
	}
	return a.jsonFlag(cmd)
}

// pageOf checks the arguments of a list of jobs.
func pageOf(req *protocol.Request, most int) error {
	if most < 1 || most > protocol.MaxList {
		return usagef("--max: %d is outside 1 to %d", most, protocol.MaxList)
	}
	if req.After != "" && req.Queue == "" && req.AfterQueue == "" {
		return usagef("--after needs the queue of the job: name it")
	}
	return nil
}

// peek requests jobs and prints them with show, or as JSON lines. If there are none, it calls none, which can be nil.
func (a *app) peek(cmd *cobra.Command, req *protocol.Request, none func(context.Context, *qsidecar.Client) error, show func([]protocol.JobView) error) error {
	return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		rep, err := c.Call(ctx, req)
		if wire, ok := errors.AsType[*protocol.Error](err); ok && wire.Code == protocol.CodeUnsupported && req.Newest {
			req.Newest = false // an adopted table has no index for it
			rep, err = c.Call(ctx, req)
		}
		if err != nil {
			return err
		}
		if on := goOn(rep); on != "" {
			fmt.Fprintf(a.errOut, "%s read, and there are more: go on with%s\n", textfmt.Plural(rep.Scanned.Or(0), "job"), on)
		}
		switch {
		case len(rep.Views) == 0 && none != nil:
			return none(ctx, c)
		case a.json:
			return a.printEach(rep, "jobs")
		}
		return show(rep.Views)
	})
}

// goOn returns the options with which a search continues; empty: there are no more jobs.
func goOn(rep *protocol.Reply) (options string) {
	if rep.AfterQueue != "" {
		options = " --after-queue " + rep.AfterQueue
	}
	if rep.After != "" {
		options += " --after " + rep.After
	}
	return options
}

func (a *app) jobTable(jobs []protocol.JobView) error {
	if len(jobs) == 0 {
		return a.printf("no such jobs")
	}
	now := time.Now().UnixMilli()
	rows := make([][]string, len(jobs))
	for i, v := range jobs {
		waited := "-"
		if v.EnqueuedAt != 0 {
			waited = wiretext.Age(now - v.EnqueuedAt)
		}
		failed := wiretext.LastFailure(v)
		last := failed.Cause
		if failed.Message != "" {
			last += ": " + wiretext.Summary(failed.Message)
		}
		rows[i] = []string{v.Queue, v.ID, string(v.State), wiretext.Attempt(v), strconv.FormatInt(v.Priority, 10),
			waited, textfmt.OneLine(v.Worker, 32), textfmt.OneLine(v.Key, 24), textfmt.OneLine(string(v.Payload), 48), textfmt.OneLine(last, 60)}
	}
	return a.table("QUEUE ID STATE ATTEMPT PRIORITY AGE WORKER KEY PAYLOAD LAST-ERROR", rows)
}
