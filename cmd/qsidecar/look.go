package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) statsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats [QUEUE]",
		Short: "Count the jobs of one queue or of all",
		Long: `Count the jobs of each queue by state, and tell how long the oldest ready one has
waited and the oldest claimed one has been worked on. A ~ marks an estimate.

` + exitCodes,
		Args: takes(0, 1, "at most one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpStats, Queue: strings.Join(args, "")})
				if err != nil {
					return err
				}
				if a.json {
					return a.printEach(rep, "queues")
				}
				if len(rep.Queues) == 0 {
					return a.say("no queue has a job")
				}
				return a.table("QUEUE READY SCHEDULED CLAIMED DEAD DONE OLDEST-READY OLDEST-CLAIMED STATE", statRows(rep.Queues))
			})
		},
	}
	return a.jsonFlag(cmd)
}

func statRows(stats []protocol.QueueStat) (rows [][]string) {
	for _, s := range stats {
		count := func(n int64) string {
			if s.Approx && n > 10_000 {
				return "~" + strconv.FormatInt(n, 10)
			}
			return strconv.FormatInt(n, 10)
		}
		state := "open"
		if s.Paused {
			state = "paused"
		}
		rows = append(rows, []string{s.Queue, count(s.Ready), count(s.Scheduled), count(s.Claimed),
			count(s.Dead), count(s.Done), age(s.OldestReadyMS), age(s.OldestClaimedMS), state})
	}
	return rows
}

const states = "ready, scheduled, claimed, done or dead"

func parseState(s string) (protocol.State, error) {
	switch st := protocol.State(s); st {
	case protocol.StateReady, protocol.StateScheduled, protocol.StateClaimed, protocol.StateDone, protocol.StateDead:
		return st, nil
	}
	return "", usagef("--state: %q is none of %s", s, states)
}

func (a *app) peekCommand() *cobra.Command {
	var state, after string
	var ids []string
	var most int
	cmd := &cobra.Command{
		Use:   "peek QUEUE",
		Short: "Show jobs without taking them",
		Long: `Show jobs of a queue without taking them: ready ones in the order of claims, scheduled
ones by due time, others the longest in their state first. --json shows everything,
also each failed attempt and the whole payload.

` + exitCodes,
		Example: `  qsidecar peek mail --state dead
  qsidecar peek mail --ids 17,18 --json`,
		Args: takes(1, 1, "one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpPeek, Queue: args[0], IDs: ids, After: after}
			if cmd.Flags().Changed("ids") && (cmd.Flags().Changed("state") || after != "") {
				return usagef("--ids shows jobs in any state: leave --state and --after out")
			}
			if most < 1 || most > protocol.MaxList {
				return usagef("--max: %d is outside 1 to %d", most, protocol.MaxList)
			}
			if ids == nil {
				st, err := parseState(state)
				if err != nil {
					return err
				}
				req.State, req.Max = st, protocol.Some(int64(most))
			}
			return a.peek(cmd, req)
		},
	}
	cmd.Flags().StringVar(&state, "state", "ready", states)
	cmd.Flags().StringSliceVar(&ids, "ids", nil, "these jobs, in whatever state: `ID,ID…`")
	cmd.Flags().IntVar(&most, "max", 10, "at most so many")
	cmd.Flags().StringVar(&after, "after", "", "go on after the job with this `ID`")
	return a.jsonFlag(cmd)
}

func (a *app) peek(cmd *cobra.Command, req *protocol.Request) error {
	return a.ask(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		rep, err := c.Call(ctx, req)
		if err != nil {
			return err
		}
		if a.json {
			return a.printEach(rep, "jobs")
		}
		if len(rep.Views) == 0 {
			return a.say("no such jobs")
		}
		now := time.Now().UnixMilli()
		rows := make([][]string, len(rep.Views))
		for i, v := range rep.Views {
			last := ""
			if n := len(v.Errors); n > 0 {
				last = v.Errors[n-1].Cause
				if m := v.Errors[n-1].Message; m != "" {
					last += ": " + m
				}
			}
			attempt := strconv.FormatInt(v.Attempt, 10)
			if v.MaxAttempts > 0 {
				attempt = fmt.Sprintf("%d/%d", v.Attempt, v.MaxAttempts)
			}
			rows[i] = []string{v.ID, string(v.State), attempt, strconv.FormatInt(v.Priority, 10),
				age(now - v.EnqueuedAt), cell(v.Worker, 32), cell(v.Key, 24), cell(string(v.Payload), 48), cell(last, 60)}
		}
		return a.table("ID STATE ATTEMPT PRIORITY AGE WORKER KEY PAYLOAD LAST-ERROR", rows)
	})
}

func (a *app) pingCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "Ask whether the sidecar answers",
		Long:  "Ask the sidecar for an answer, and tell who it is and how long that took.\n\n" + exitCodes,
		Args:  takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				start := time.Now()
				if err := c.Ping(ctx); err != nil {
					return err
				}
				took := time.Since(start)
				hello := c.Server()
				if a.json {
					return a.printReply(&protocol.Reply{OK: true, Hello: &hello})
				}
				return a.say("%s answers in %v", hello.Server, took.Round(time.Microsecond))
			})
		},
	}
	return a.jsonFlag(cmd)
}
