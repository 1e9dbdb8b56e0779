package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// cancelBatch is how many jobs of a search one request cancels. Each is a transaction.
const cancelBatch = 500

func (a *app) cancelCommand() *cobra.Command {
	var key, state, text string
	var headers []string
	var remove, yes bool
	cmd := &cobra.Command{
		Use:   "cancel QUEUE ID… | --key K | --state STATE | --text TEXT | --header NAME=VALUE",
		Short: "End jobs that wait or run",
		Long: `End jobs that wait or run: they are dead with the cause "cancelled", or, with --delete, removed.
The worker of a running job gets an event, at once on this host, and within two seconds on
another one. Its late result changes nothing. ` + "`qsidecar retry`" + ` makes a cancelled job ready again.

With --state, --text or --header it searches the queue for ready, blocked, scheduled and
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
			search := state != "" || text != "" || headers != nil
			ways := 0
			for _, given := range []bool{req.IDs != nil, cmd.Flags().Changed("key"), search} {
				if given {
					ways++
				}
			}
			switch {
			case ways > 1:
				return usagef("ids, --key and a search exclude each other: give one of them")
			case ways == 0:
				return usagef("cancel which jobs? Name their ids, or give --key, or search with --state, --text and --header")
			case !search && !remove:
				return a.operate(cmd, "cancelled", req)
			case !search:
				what := fmt.Sprintf("cancel and delete %s of %s", textfmt.Plural(int64(max(len(req.IDs), 1)), "job"), args[0])
				if err := a.confirm(cmd.Context(), yes, what); err != nil {
					return err
				}
				return a.operate(cmd, "cancelled", req)
			}
			find := &protocol.Request{Op: protocol.OpPeek, Queue: args[0], Text: text, Max: protocol.Some(int64(protocol.MaxList))}
			live := []protocol.State{protocol.StateScheduled, protocol.StateBlocked, protocol.StateReady, protocol.StateClaimed} // the way of a job, so that it can't pass the search
			var err error
			if find.Headers, err = parseHeaders(headers); err != nil {
				return err
			}
			if state != "" {
				st, err := parseState(state)
				if err != nil {
					return err
				}
				if !slices.Contains(live, st) {
					return usagef("--state: %s jobs have ended already: use ready, blocked, scheduled or claimed", state)
				}
				live = []protocol.State{st}
			}
			return a.cancelFound(cmd, req, find, live, yes)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "the job that has this key")
	cmd.Flags().StringVar(&state, "state", "", "jobs in this state: ready, blocked, scheduled or claimed")
	cmd.Flags().StringVar(&text, "text", "", "jobs whose key, payload, header values or errors contain this text")
	cmd.Flags().StringArrayVar(&headers, "header", nil, "jobs with this header: `name=value`; repeatable")
	cmd.Flags().BoolVar(&remove, "delete", false, "remove the jobs instead of keeping them as dead ones")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it without asking")
	return a.jsonFlag(cmd)
}

// cancelFound cancels the jobs that a search finds.
func (a *app) cancelFound(cmd *cobra.Command, req, find *protocol.Request, states []protocol.State, yes bool) error {
	return a.oneRequestWithin(cmd, longTimeout, func(ctx context.Context, c *qsidecar.Client) error {
		ids, err := a.find(ctx, c, find, states)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return &codeError{exitFailure, errors.New("no such jobs that wait or run")}
		}
		what := "cancel "
		if req.Delete {
			what = "cancel and delete "
		}
		what += fmt.Sprintf("%s of %s", textfmt.Plural(int64(len(ids)), "job"), req.Queue)
		if err := a.confirm(ctx, yes, what); err != nil {
			return err
		}
		done, left := int64(0), 0
		stop := a.progress(ctx, func(context.Context) string { return fmt.Sprintf("cancelling the jobs of %s …", req.Queue) })
		defer func() { stop() }()
		for some := range slices.Chunk(ids, cancelBatch) {
			req.IDs = some
			rep, err := c.Call(ctx, req)
			if err != nil {
				return fmt.Errorf("%d of %d jobs are cancelled: %w", done, len(ids), err)
			}
			done, left = done+rep.Count.Or(0), left+len(some)-int(rep.Count.Or(0))
			if a.json {
				if err := a.printReply(rep); err != nil {
					return err
				}
			}
		}
		stop()
		stop = func() {}
		if left > 0 {
			fmt.Fprintf(a.errOut, "qsidecar: %s ended before they could be cancelled\n", textfmt.Plural(int64(left), "job"))
		}
		if a.json {
			return nil
		}
		return a.printf("cancelled %s", textfmt.Plural(done, "job"))
	})
}

// find lists the ids of the jobs in the states that a peek selects.
func (a *app) find(ctx context.Context, c *qsidecar.Client, req *protocol.Request, states []protocol.State) (ids []string, err error) {
	searches := req.Text != "" || req.Headers != nil
	found := map[string]bool{} // a job can change its state during the search
	for _, req.State = range states {
		for req.After = ""; ; {
			rep, err := c.Call(ctx, req)
			if err != nil {
				return nil, err
			}
			for i := range rep.Views {
				if id := rep.Views[i].ID; !found[id] {
					ids, found[id] = append(ids, id), true
				}
			}
			if searches {
				req.After = rep.After
			} else if req.After = ""; len(rep.Views) > 0 {
				req.After = rep.Views[len(rep.Views)-1].ID
			}
			if req.After == "" {
				break
			}
		}
	}
	return ids, nil
}
