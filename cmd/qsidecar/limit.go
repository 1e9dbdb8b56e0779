package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) limitCommand() *cobra.Command {
	var most, burst, ofGroup, ready int64
	var rate, onFailure string
	var none bool
	cmd := &cobra.Command{
		Use:   "limit [QUEUE]",
		Short: "Limit how many jobs of a queue or of its groups run at a time, or start in a time, on all hosts together",
		Long: `Limit how many jobs of a queue are claimed at a time (--max-claimed), or how many start in
a second, a minute or an hour (--rate), on all hosts together. A change counts within a
second on every host. The other limits of the queue stay as they are; 0 removes one.

--group-limit is how many jobs of each group are claimed at a time, and 1 without it. A
failed job keeps its slot of the group during its back-off, or gives it up
(--group-on-failure skip).

--group-ready is how many jobs of each group are ready at a time, besides those that workers
have. So one group can use all workers, and many groups take turns. Without --group-limit,
any number of jobs of a group is claimed at a time then.

Without options it lists the limits of the queue, or of all queues. "limit apply FILE"
sets those of several queues as in a file.

` + exitCodes,
		Example: "  qsidecar limit mail --max-claimed 3\n  qsidecar limit api --rate 100/s --burst 10\n  qsidecar limit api --none\n  qsidecar limit",
		Args:    argCount(0, 1, "at most one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpLimit, Queue: strings.Join(args, ""), None: none}
			changes := none
			for _, f := range []struct {
				name string
				set  func()
			}{
				{"max-claimed", func() { req.MaxClaimed = protocol.Some(most) }},
				{"burst", func() { req.Burst = protocol.Some(burst) }},
				{"rate", func() { req.Rate = rate }},
				{"group-limit", func() { req.GroupLimit = protocol.Some(ofGroup) }},
				{"group-on-failure", func() { req.GroupOnFailure = onFailure }},
				{"group-ready", func() { req.GroupReady = protocol.Some(ready) }},
			} {
				if cmd.Flags().Changed(f.name) {
					f.set()
					changes = true
				}
			}
			switch {
			case !changes:
				return a.listLimits(cmd, req.Queue)
			case req.Queue == "":
				return usagef("limit which queue? Name it, or leave the options out to list all limits")
			case cmd.Flags().Changed("rate") && rate == "":
				return usagef("--rate is empty: use a rate such as 100/s, or 0 for no rate")
			case cmd.Flags().Changed("group-on-failure") && onFailure == "":
				return usagef("--group-on-failure is empty: use hold or skip")
			}
			return a.operate(cmd, "limited", req)
		},
	}
	cmd.Flags().Int64Var(&most, "max-claimed", 0, "how many jobs are claimed at a time; 0: any number")
	cmd.Flags().StringVar(&rate, "rate", "", "how many start in a time (100/s, 30/m or 5/h); 0: any number")
	cmd.Flags().Int64Var(&burst, "burst", 0, "how many start at once after a pause; 0: those of a second")
	cmd.Flags().Int64Var(&ofGroup, "group-limit", 0, "how many jobs of a group are claimed at a time; 0: one")
	cmd.Flags().StringVar(&onFailure, "group-on-failure", "", "a failed job keeps its slot of the group, or not: hold, skip")
	cmd.Flags().Int64Var(&ready, "group-ready", 0, "how many jobs of a group are ready at a time; 0: any number")
	cmd.Flags().BoolVar(&none, "none", false, "first remove all limits of the queue")
	cmd.AddCommand(a.limitApplyCommand())
	return a.jsonFlag(cmd)
}

// listLimits prints the limits of a queue, or of all that have some.
func (a *app) listLimits(cmd *cobra.Command, queue string) error {
	return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpStats, Queue: queue})
		if err != nil {
			return err
		}
		limited := rep.Queues[:0]
		for i := range rep.Queues {
			if queue != "" || limitsText(&rep.Queues[i]) != "" {
				limited = append(limited, rep.Queues[i])
			}
		}
		if rep.Queues = limited; a.json {
			return a.printEach(rep, "queues")
		}
		var rows [][]string
		for i := range limited {
			s := &limited[i]
			row := []string{s.Queue, "-", "-", "-", "-", cmp.Or(s.GroupOnFailure, "-"), "-"}
			if n, ok := s.MaxClaimed.Get(); ok {
				row[1] = fmt.Sprint(n)
			}
			if n, ok := s.Burst.Get(); ok {
				row[2], row[3] = s.Rate, fmt.Sprint(n)
			}
			if n, ok := s.GroupLimit.Get(); ok {
				row[4] = fmt.Sprint(n)
			}
			if n, ok := s.GroupReady.Get(); ok {
				row[6] = fmt.Sprint(n)
			}
			rows = append(rows, row)
		}
		if len(rows) == 0 {
			return a.printf("no queue has a limit")
		}
		return a.table("QUEUE MAX-CLAIMED RATE BURST GROUP-LIMIT GROUP-ON-FAILURE GROUP-READY", rows)
	})
}

// limitsText returns the limits of a queue in a few words; empty: none.
func limitsText(s *protocol.QueueStat) string {
	var all []string
	if n, ok := s.MaxClaimed.Get(); ok {
		all = append(all, fmt.Sprintf("max %d claimed", n))
	}
	if s.Rate != "" {
		all = append(all, "max "+s.Rate)
	}
	if n, ok := s.GroupLimit.Get(); ok {
		all = append(all, fmt.Sprintf("max %d of a group", n))
	}
	if n, ok := s.GroupReady.Get(); ok {
		all = append(all, fmt.Sprintf("max %d ready of a group", n))
	}
	if s.GroupOnFailure != "" {
		all = append(all, "failed jobs "+s.GroupOnFailure)
	}
	if s.Limited != "" {
		all = append(all, "reached")
	}
	return strings.Join(all, ", ")
}
