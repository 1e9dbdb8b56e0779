package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/statusline"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) retryCommand() *cobra.Command {
	var all bool
	found := search{states: []protocol.State{protocol.StateDead}}
	cmd := &cobra.Command{
		Use:   "retry QUEUE ID… | --all | --error E | --text T | --header N=V",
		Short: "Make dead jobs ready again",
		Long: `Make dead jobs ready again, behind the waiting ones, with no attempts counted.
With --all it shows on a terminal how many are left. With --error, --text or --header it
searches the dead jobs of the queue and retries those that it finds, in batches; see them
before with ` + "`qsidecar dead QUEUE --error TEXT`" + `. --json then prints one reply for each batch.
If another job has the key of one of them by now, that one stays dead, and is named.

` + exitCodes,
		Example: "  qsidecar retry mail 17 18\n  qsidecar retry mail --all\n  qsidecar retry mail --error 'connection refused'",
		Args:    argCount(1, 1+protocol.MaxList, "a queue and the ids of jobs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids := args[1:]
			switch n := ways(len(ids) > 0, all, found.given()); {
			case n == 0:
				return usagef("retry which jobs? Name their ids (see `qsidecar dead %s`), or search with --error, --text and --header, or give --all", args[0])
			case n > 1 && !found.given():
				return usagef("--all means every dead job: leave the ids out, or --all")
			case n > 1:
				return usagef("ids, --all and a search exclude each other: give one of them")
			}
			req := &protocol.Request{Op: protocol.OpRetry, Queue: args[0], IDs: orNil(ids), All: all}
			if found.given() {
				return a.operateFound(cmd, &found, req, func(context.Context, string) error { return nil })
			}
			return a.operate(cmd, "retried", req)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every dead job of the queue")
	found.flags(cmd)
	return a.jsonFlag(cmd)
}

func (a *app) changeCommand() *cobra.Command {
	var priority int16
	delay := durationFlag{max: protocol.MaxDelayMS * time.Millisecond}
	cmd := &cobra.Command{
		Use:   "change QUEUE ID…",
		Short: "Change the priority or the time of waiting jobs",
		Long: `Change the priority or the time of ready, blocked and scheduled jobs. Other jobs stay as
they are. A changed job that is ready goes behind the others of its priority. --delay 0
makes a scheduled job ready at once.

` + exitCodes,
		Example: "  qsidecar change mail 17 18 --priority 10\n  qsidecar change mail 17 --delay 1h",
		Args:    argCount(2, 1+protocol.MaxList, "a queue and the ids of jobs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpChange, Queue: args[0], IDs: args[1:]}
			if cmd.Flags().Changed("priority") {
				req.Priority = protocol.Some(int64(priority))
			}
			if delay.set {
				req.DelayMS = protocol.Some(delay.d.Milliseconds())
			}
			if !req.Priority.Set && !req.DelayMS.Set {
				return usagef("change what? Give --priority, --delay or both")
			}
			return a.operate(cmd, "changed", req)
		},
	}
	cmd.Flags().Int16Var(&priority, "priority", 0, "the new priority: higher ones are claimed first")
	cmd.Flags().Var(&delay, "delay", "ready this long from now (10s, 5m, 2h, 7d)")
	return a.jsonFlag(cmd)
}

func (a *app) deleteCommand() *cobra.Command {
	var state string
	var yes bool
	var found search
	cmd := &cobra.Command{
		Use:   "delete QUEUE ID… | --state S | --error E | --text T | --header N=V",
		Short: "Remove jobs that are not claimed",
		Long: `Remove jobs, in any state but claimed. With --error, --text or --header it searches the queue, in
the state if one is given, counts the jobs and deletes them in batches. ` + "`qsidecar purge`" + ` deletes
every job of a state.

` + confirmHelp + "\n\n" + exitCodes,
		Example: "  qsidecar delete mail 17 18 --yes\n  qsidecar delete mail --state dead --error 'no such mailbox'",
		Args:    argCount(1, 1+protocol.MaxList, "a queue and the ids of jobs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpDelete, Queue: args[0], IDs: orNil(args[1:])}
			allow := func(ctx context.Context, what string) error { return a.confirm(ctx, yes, what) }
			switch {
			case req.IDs != nil && (found.given() || state != ""):
				return usagef("ids and a search exclude each other: give one of them")
			case req.IDs == nil && !found.given():
				return usagef("delete which jobs? Name their ids, or search with --error, --text and --header; `qsidecar purge %s` deletes every job of a state", args[0])
			case req.IDs != nil:
				if err := allow(cmd.Context(), fmt.Sprintf("delete %s of %s", textfmt.Plural(int64(len(req.IDs)), "job"), args[0])); err != nil {
					return err
				}
				return a.operate(cmd, "deleted", req)
			}
			found.states = []protocol.State{protocol.StateScheduled, protocol.StateBlocked, protocol.StateReady, protocol.StateDone, protocol.StateDead} // see cancel
			if state != "" {
				st, err := parseState(state)
				if err == nil && st == protocol.StateClaimed {
					err = usagef("--state: claimed jobs are not deleted: their workers have them; cancel them with --delete")
				}
				if err != nil {
					return err
				}
				found.states = []protocol.State{st}
			}
			return a.operateFound(cmd, &found, req, allow)
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "only jobs in this state: ready, blocked, scheduled, done or dead")
	found.flags(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do it without asking")
	return a.jsonFlag(cmd)
}

func (a *app) reclaimCommand() *cobra.Command {
	return a.destructive(&cobra.Command{
		Use:   "reclaim QUEUE ID…",
		Short: "Take claimed jobs from their workers, by force",
		Long: `Take claimed jobs from their workers: they are ready again at once, no attempt is
counted, and the worker's lease is lost, so that what it does with the job cannot be
settled any more. The jobs of a dead worker need no reclaim: they come back by themselves.

` + confirmHelp + "\n\n" + exitCodes,
		Example: "  qsidecar reclaim mail 17 --yes",
		Args:    argCount(2, 1+protocol.MaxList, "a queue and the ids of jobs"),
	}, func(cmd *cobra.Command, args []string) (string, string, *protocol.Request, error) {
		return fmt.Sprintf("take %s of %s from their workers", textfmt.Plural(int64(len(args)-1), "job"), args[0]), "reclaimed",
			&protocol.Request{Op: protocol.OpReclaim, Queue: args[0], IDs: args[1:]}, nil
	})
}

func (a *app) purgeCommand() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:     "purge QUEUE --state STATE",
		Short:   "Remove every job of a queue that is in a state",
		Long:    "Remove every job of a queue that is ready, blocked, scheduled, done or dead. On a terminal it shows\nhow many are left.\n\n" + confirmHelp + "\n\n" + exitCodes,
		Example: "  qsidecar purge mail --state dead --yes",
		Args:    argCount(1, 1, "one queue"),
	}
	cmd.Flags().StringVar(&state, "state", "", "ready, blocked, scheduled, done or dead")
	return a.destructive(cmd, func(cmd *cobra.Command, args []string) (string, string, *protocol.Request, error) {
		if state == "" {
			return "", "", nil, usagef("purge which jobs? Give --state ready, blocked, scheduled, done or dead")
		}
		st, err := parseState(state)
		if err == nil && st == protocol.StateClaimed {
			err = usagef("--state: claimed jobs are not purged: their workers have them; reclaim them first")
		}
		return fmt.Sprintf("delete every %s job of %s", state, args[0]), "purged",
			&protocol.Request{Op: protocol.OpPurge, Queue: args[0], State: st}, err
	})
}

const confirmHelp = "On a terminal it asks for confirmation; elsewhere it needs --yes."

// destructive completes a command that can't be undone. plan describes what the command
// would do, and returns its request.
func (a *app) destructive(cmd *cobra.Command, plan func(cmd *cobra.Command, args []string) (what, done string, req *protocol.Request, err error)) *cobra.Command {
	var yes bool
	cmd.Flags().BoolVar(&yes, "yes", false, "do it without asking")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		what, done, req, err := plan(cmd, args)
		if err == nil {
			err = a.confirm(cmd.Context(), yes, what)
		}
		if err != nil {
			return err
		}
		return a.operate(cmd, done, req)
	}
	return a.jsonFlag(cmd)
}

// operate sends an operator's request and prints how many jobs it changed.
func (a *app) operate(cmd *cobra.Command, done string, req *protocol.Request) error {
	if slices.Contains(req.IDs, "") {
		return usagef("an id is empty")
	}
	limit, long := cmp.Or(a.callTimeout, answerTimeout), req.All || req.Op == protocol.OpPurge
	if long {
		limit = longTimeout
	}
	return a.oneRequestWithin(cmd, limit, func(ctx context.Context, c *qsidecar.Client) error {
		stop := func() {}
		if long {
			stop = a.progress(ctx, statusline.Remaining(c, req))
		}
		rep, err := c.Call(ctx, req)
		stop()
		if err != nil {
			return err
		}
		n, counts := rep.Count.Get()
		switch {
		case rep.Unknown && counts:
			a.noteUnknown(ctx, c, req.Queue)
		case rep.Unknown:
			fmt.Fprintf(a.errOut, "qsidecar: the queue %s had no jobs so far%s\n", req.Queue, cmp.Or(a.likeQueue(ctx, c, req.Queue), ": is its name right?"))
		}
		nothing := counts && n == 0 && (req.IDs != nil || req.Key != "")
		var why error
		if left := leftOut(req, rep); nothing {
			why = &codeError{exitFailure, fmt.Errorf("nothing was %s: %s", done, left)}
		} else if left != "" {
			fmt.Fprintf(a.errOut, "qsidecar: not %s: %s\n", done, left)
		}
		switch {
		case a.json && !nothing:
			return a.printReply(rep)
		case a.json:
			return cmp.Or(a.printReply(rep), why)
		case nothing:
			return why
		case counts:
			return a.printf("%s %s", done, textfmt.Plural(n, "job"))
		}
		return a.printf("%s %s", done, req.Queue)
	})
}

// noteUnknown prints that nothing is recorded about a queue, and which one has a similar name.
func (a *app) noteUnknown(ctx context.Context, c *qsidecar.Client, queue string) {
	fmt.Fprintf(a.errOut, "qsidecar: no job of the queue %s is stored, and none was counted in the last 14 days%s\n", queue, a.likeQueue(ctx, c, queue))
}

// likeQueue returns a question for another queue that has a similar name, or an empty text.
func (a *app) likeQueue(ctx context.Context, c *qsidecar.Client, queue string) string {
	if stats, err := c.Stats(ctx, ""); err == nil { // the user may have no right to it
		names := make([]string, 0, len(stats))
		for i := range stats {
			if stats[i].Queue != queue {
				names = append(names, stats[i].Queue)
			}
		}
		if near := textfmt.Nearest(queue, names); near != "" {
			return ": did you mean " + near + "?"
		}
	}
	return ""
}

// leftOut returns which jobs a request names and did not change, and why.
func leftOut(req *protocol.Request, rep *protocol.Reply) string {
	if req.Key != "" && rep.Count.Or(0) == 0 && rep.Unchanged == nil {
		return fmt.Sprintf("no job of %s has the key %s", req.Queue, textfmt.OneLine(req.Key, protocol.MaxKey))
	}
	var states []protocol.State
	ids := map[protocol.State][]string{}
	for _, u := range rep.Unchanged {
		if ids[u.State] == nil {
			states = append(states, u.State)
		}
		ids[u.State] = append(ids[u.State], textfmt.OneLine(u.ID, protocol.MaxJobID))
	}
	var all []string
	for _, s := range states {
		all = append(all, whyUnchanged(req, s, ids[s]))
	}
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "; ")
}

// shownIDs is how many ids a message lists.
const shownIDs = 20

// whyUnchanged returns why a request did not change jobs in a state, and what helps.
func whyUnchanged(req *protocol.Request, s protocol.State, ids []string) string {
	which := "job " + strings.Join(ids, ", ")
	if len(ids) > 1 {
		which = "jobs " + strings.Join(ids[:min(len(ids), shownIDs)], ", ")
	}
	if len(ids) > shownIDs {
		which += fmt.Sprintf(" and %d more", len(ids)-shownIDs)
	}
	is := map[bool]string{false: "is", true: "are"}[len(ids) > 1]
	if s == protocol.StateDeleted {
		return fmt.Sprintf("%s %s not in the queue %s: done and not kept, removed, or never stored", which, is, req.Queue)
	}
	text := fmt.Sprintf("%s %s %s", which, is, s)
	switch {
	case req.Op == protocol.OpRetry && s == protocol.StateDead:
		return text + fmt.Sprintf(", and another job has the key (run `qsidecar peek %s --key KEY` to see it)", req.Queue)
	case req.Op == protocol.OpRetry && s == protocol.StateScheduled:
		return text + fmt.Sprintf(" (run `qsidecar change %s ID --delay 0` to make it ready)", req.Queue)
	case req.Op == protocol.OpDelete:
		return text + fmt.Sprintf(" (run `qsidecar cancel %s ID --delete` to end it)", req.Queue)
	}
	return text
}

func (a *app) pauseCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:   "pause QUEUE",
		Short: "Stop giving out jobs of a queue, on every host",
		Long:  "Stop giving out jobs of a queue, on every host. Enqueues and settles go on.\n\n" + exitCodes,
		Args:  argCount(1, 1, "one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operate(cmd, "paused", &protocol.Request{Op: protocol.OpPause, Queue: args[0]})
		},
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:   "resume QUEUE",
		Short: "Give out jobs of a paused queue again",
		Long:  "Give out jobs of a paused queue again, on every host.\n\n" + exitCodes,
		Args:  argCount(1, 1, "one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operate(cmd, "resumed", &protocol.Request{Op: protocol.OpResume, Queue: args[0]})
		},
	})
}

func orNil(ids []string) []string {
	if len(ids) == 0 {
		return nil
	}
	return ids
}
