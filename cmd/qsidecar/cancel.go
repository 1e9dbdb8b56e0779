package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) cancelCommand() *cobra.Command {
	var key, state string
	var found search
	var remove, yes bool
	cmd := &cobra.Command{
		Use:   "cancel QUEUE ID… | --key K | --state S | --error E | --text T | --header N=V",
		Short: "End jobs that wait or run",
		Long: `End jobs that wait or run: they are dead with the cause "cancelled", or, with --delete, removed.
The worker of a running job gets an event, at once on this host, and within two seconds on
another one. Its late result changes nothing. ` + "`qsidecar retry`" + ` makes a cancelled job ready again.

With --state, --error, --text or --header it searches the queue for ready, blocked, scheduled and
claimed jobs, counts them, and cancels them in batches. A search and --delete ask for
confirmation on a terminal; elsewhere they need --yes. --json prints one reply for each batch.

` + exitCodes,
		Example: `  qsidecar cancel mail 17 18
  qsidecar cancel mail --key welcome-ada
  qsidecar cancel mail --text ada@example.com --yes
  qsidecar cancel mail --state ready --delete`,
		Args: argCount(1, 1+protocol.MaxList, "a queue and the ids of jobs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &protocol.Request{Op: protocol.OpCancel, Queue: args[0], IDs: orNil(args[1:]), Key: key, Delete: remove}
			searches := state != "" || found.given()
			switch ways(req.IDs != nil, cmd.Flags().Changed("key"), searches) {
			case 0:
				return usagef("cancel which jobs? Name their ids, or give --key, or search with --state, --error, --text and --header")
			case 1:
			default:
				return usagef("ids, --key and a search exclude each other: give one of them")
			}
			switch {
			case !searches && !remove:
				return a.operate(cmd, "cancelled", req)
			case !searches:
				what := fmt.Sprintf("cancel and delete %s of %s", textfmt.Plural(int64(max(len(req.IDs), 1)), "job"), args[0])
				if err := a.confirm(cmd.Context(), yes, what); err != nil {
					return err
				}
				return a.operate(cmd, "cancelled", req)
			}
			found.states = []protocol.State{protocol.StateScheduled, protocol.StateBlocked, protocol.StateReady, protocol.StateClaimed} // the way of a job, so that it can't pass the search
			if state != "" {
				st, err := parseState(state)
				if err != nil {
					return err
				}
				if !slices.Contains(found.states, st) {
					return usagef("--state: %s jobs have ended already: use ready, blocked, scheduled or claimed", state)
				}
				found.states = []protocol.State{st}
			}
			return a.operateFound(cmd, &found, req, func(ctx context.Context, what string) error {
				if remove {
					what = strings.Replace(what, "cancel", "cancel and delete", 1)
				}
				return a.confirm(ctx, yes, what)
			})
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "the job that has this key")
	cmd.Flags().StringVar(&state, "state", "", "jobs in this state: ready, blocked, scheduled or claimed")
	found.flags(cmd)
	cmd.Flags().BoolVar(&remove, "delete", false, "remove the jobs instead of keeping them as dead ones")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it without asking")
	return a.jsonFlag(cmd)
}
