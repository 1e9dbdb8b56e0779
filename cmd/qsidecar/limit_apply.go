package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/backends"
	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) limitApplyCommand() *cobra.Command {
	var dryRun, prune, exitCode bool
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Set the limits of queues as in a file",
		Long: `Set the limits of the queues that a YAML file names, and print what changed. A limit that
the file leaves out is removed. Queues that it doesn't name stay as they are, or lose
their limits with --prune. A file with a mistake changes nothing. For example:

  queues:
    api: {max_claimed: 3, rate: 100/s, burst: 20}
    orders: {group_limit: 2, group_on_failure: skip}
    reports: {group_ready: 2}
    mail: {}                # no limits

FILE can be /dev/stdin. Each queue changes at once. If one can't be changed, the others
are, and the exit code is 1.

Exit codes:
  0    the limits are as in the file
  1    failed, and a repetition will fail too; the message has the reason
  2    wrong arguments, or a file with errors; nothing was changed
  3    --exit-code: something was changed, or would be with --dry-run
  5    no sidecar answers, or its database cannot be reached: try again later
  130  interrupted`,
		Example: "  qsidecar limit apply limits.yaml --dry-run\n  qsidecar limit apply limits.yaml --prune",
		Args:    argCount(1, 1, "one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			want, err := config.LimitsFile(args[0])
			if err != nil {
				return err
			}
			changed, err := a.applyLimits(cmd, want, prune, dryRun)
			if err == nil && changed && exitCode {
				return &codeError{code: exitChanged}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would change, and change nothing")
	cmd.Flags().BoolVar(&prune, "prune", false, "remove the limits of queues that the file doesn't name")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 3 if something changed, or would")
	return a.jsonFlag(cmd)
}

// limitsChange is a change of the limits of a queue.
type limitsChange struct {
	queue         string
	before, after backends.Limits
}

// limitsDiffs returns what has to change.
func limitsDiffs(now, want map[string]backends.Limits, prune bool) (all []limitsChange) {
	names := maps.Clone(want)
	if prune {
		for queue := range now {
			names[queue] = want[queue]
		}
	}
	for _, queue := range slices.Sorted(maps.Keys(names)) {
		d := limitsChange{queue, now[queue], want[queue]}
		if len(d.texts()) > 0 {
			all = append(all, d)
		}
	}
	return all
}

// texts lists the limits that differ. A burst that isn't in the file is the default.
func (l *limitsChange) texts() (all []string) {
	add := func(name, before, after string) {
		if before != after {
			all = append(all, fmt.Sprintf("%s %s → %s", name, cmp.Or(before, "none"), cmp.Or(after, "none")))
		}
	}
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}
	burst := func(q backends.Limits) string {
		if q.Rate.Jobs == 0 {
			return ""
		}
		return fmt.Sprint(q.Starts())
	}
	add("max_claimed", number(l.before.MaxClaimed), number(l.after.MaxClaimed))
	add("rate", l.before.Rate.String(), l.after.Rate.String())
	add("burst", burst(l.before), burst(l.after))
	add("group_limit", number(l.before.GroupLimit), number(l.after.GroupLimit))
	add("group_on_failure", string(l.before.GroupOnFailure), string(l.after.GroupOnFailure))
	add("group_ready", number(l.before.GroupReady), number(l.after.GroupReady))
	return all
}

// request returns the request that makes the change.
func (l *limitsChange) request() *protocol.Request {
	req := &protocol.Request{Op: protocol.OpLimit, Queue: l.queue, None: true, Rate: l.after.Rate.String()}
	if n := l.after.MaxClaimed; n > 0 {
		req.MaxClaimed = protocol.Some(n)
	}
	if n := l.after.Burst; n > 0 {
		req.Burst = protocol.Some(n)
	}
	if n := l.after.GroupLimit; n > 0 {
		req.GroupLimit = protocol.Some(n)
	}
	if n := l.after.GroupReady; n > 0 {
		req.GroupReady = protocol.Some(n)
	}
	if l.after.GroupOnFailure == backends.GroupSkips {
		req.GroupOnFailure = protocol.GroupSkip
	}
	return req
}

// applyLimits makes the limits those of want. It goes on after a queue that can't have its limits.
func (a *app) applyLimits(cmd *cobra.Command, want map[string]backends.Limits, prune, dryRun bool) (changed bool, err error) {
	err = a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpStats})
		if err != nil {
			return err
		}
		now := map[string]backends.Limits{}
		for i := range rep.Queues {
			if l := limitsOf(&rep.Queues[i]); l.Stored() {
				now[rep.Queues[i].Queue] = l
			}
		}
		diffs := limitsDiffs(now, want, prune)
		var wrong []error
		for i := range diffs {
			d := &diffs[i]
			if !dryRun {
				if _, err := c.Call(ctx, d.request()); err != nil {
					if _, ok := errors.AsType[*protocol.Error](err); !ok || qsidecar.IsCode(err, protocol.CodeUnavailable) {
						return errors.Join(append(wrong, fmt.Errorf("%s: %w", d.queue, err))...)
					}
					wrong = append(wrong, fmt.Errorf("%s: %w", d.queue, err))
					continue
				}
			}
			changed = true
			if err := a.printDiff(d, dryRun); err != nil {
				return err
			}
		}
		if len(diffs) == 0 && !a.json {
			return a.printf("the limits are as in the file: nothing to change")
		}
		if wrong != nil {
			return &codeError{exitFailure, fmt.Errorf("%s couldn't be changed:\n%w", textfmt.Plural(int64(len(wrong)), "queue"), errors.Join(wrong...))}
		}
		return nil
	})
	return changed, err
}

// limitsOf returns the limits that stats shows.
func limitsOf(s *protocol.QueueStat) (l backends.Limits) {
	l.MaxClaimed, l.Burst, l.GroupLimit, l.GroupReady = s.MaxClaimed.Or(0), s.Burst.Or(0), s.GroupLimit.Or(0), s.GroupReady.Or(0)
	if s.GroupOnFailure == protocol.GroupSkip {
		l.GroupOnFailure = backends.GroupSkips
	}
	if s.Rate != "" {
		l.Rate.Jobs, l.Rate.Per, _ = protocol.ParseRate(s.Rate)
	}
	return l
}

func (a *app) printDiff(d *limitsChange, dryRun bool) error {
	if a.json {
		line, err := json.Marshal(map[string]any{"queue": d.queue, "changes": d.texts(), "changed": !dryRun})
		if err != nil {
			return err
		}
		return a.printf("%s", line)
	}
	how := ""
	if dryRun {
		how = " (dry run)"
	}
	return a.printf("%s: %s%s", d.queue, strings.Join(d.texts(), ", "), how)
}
