package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) statsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats [QUEUE]",
		Short: "Count the jobs of one queue or of all",
		Long: `Count the jobs of each queue by state, and show how long the oldest ready one has
waited and the oldest claimed one has been worked on. A ~ marks an estimate.

` + exitCodes,
		Args: argCount(0, 1, "at most one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpStats, Queue: strings.Join(args, "")})
				if err != nil {
					return err
				}
				if rep.Unknown {
					a.noteUnknown(ctx, c, args[0])
				}
				if a.json {
					return a.printEach(rep, "queues")
				}
				if len(rep.Queues) == 0 {
					return a.printf("no queue has a job")
				}
				return a.table("QUEUE READY BLOCKED SCHEDULED CLAIMED DEAD DONE OLDEST-READY OLDEST-CLAIMED STATE", statRows(rep.Queues))
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
		if limits := limitsText(&s); limits != "" {
			state += ", " + limits
		}
		rows = append(rows, []string{s.Queue, count(s.Ready), count(s.Blocked), count(s.Scheduled), count(s.Claimed),
			count(s.Dead), count(s.Done), wiretext.Age(s.OldestReadyMS), wiretext.Age(s.OldestClaimedMS), state})
	}
	return rows
}

const states = "ready, blocked, scheduled, claimed, done or dead"

func parseState(s string) (protocol.State, error) {
	switch st := protocol.State(s); st {
	case protocol.StateReady, protocol.StateBlocked, protocol.StateScheduled, protocol.StateClaimed, protocol.StateDone, protocol.StateDead:
		return st, nil
	}
	return "", usagef("--state: %q is not one of %s", s, states)
}

func (a *app) pingCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "Ask whether the sidecar answers",
		Long:  "Send a request to the sidecar, and show its version and how long the answer took.\n\n" + exitCodes,
		Args:  argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				start := time.Now()
				if err := c.Ping(ctx); err != nil {
					return err
				}
				took := time.Since(start)
				hello := c.Server()
				if a.json {
					return a.printReply(&protocol.Reply{OK: true, Hello: &hello})
				}
				return a.printf("%s answers in %v", hello.Server, took.Round(time.Microsecond))
			})
		},
	}
	return a.jsonFlag(cmd)
}
