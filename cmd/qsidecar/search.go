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

// searchBatch is how many jobs of a search one request changes. Each is a transaction.
const searchBatch = 500

// search selects the jobs of a queue that a command changes.
type search struct {
	text    string
	error   string
	headers []string
	states  []protocol.State // the states that it reads, in this order
}

// flags adds the options that select jobs by their contents.
func (s *search) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.text, "text", "", "jobs with this `text` in key, payload, headers or errors, in this case")
	cmd.Flags().StringVar(&s.error, "error", "", "jobs with an error that contains this `text`, in this case")
	cmd.Flags().StringArrayVar(&s.headers, "header", nil, "jobs with this header: `name=value`; repeatable")
}

// fill adds the search to a request.
func (s *search) fill(req *protocol.Request) (err error) {
	req.Text, req.Error = s.text, s.error
	req.Headers, err = parseHeaders(s.headers)
	return err
}

// given reports whether one of the options is.
func (s *search) given() bool { return s.text != "" || s.error != "" || s.headers != nil }

// ways returns how many of the ways to name jobs are used.
func ways(used ...bool) (n int) {
	for _, u := range used {
		if u {
			n++
		}
	}
	return n
}

// operations describe what operateFound does: to one job, and to all of them.
var operations = map[protocol.Op]struct{ verb, doing, done, of string }{
	protocol.OpCancel: {"cancel", "cancelling", "cancelled", "that wait or run"},
	protocol.OpRetry:  {"retry", "retrying", "retried", "that are dead"},
	protocol.OpDelete: {"delete", "deleting", "deleted", "that aren't claimed"},
}

// operateFound sends an operator's request about the jobs that a search finds, in batches. allow is called with the plan
// first; its error ends the command.
func (a *app) operateFound(cmd *cobra.Command, s *search, req *protocol.Request, allow func(ctx context.Context, what string) error) error {
	find := &protocol.Request{Op: protocol.OpPeek, Queue: req.Queue, Max: protocol.Some(int64(protocol.MaxList))}
	if err := s.fill(find); err != nil {
		return err
	}
	text := operations[req.Op]
	return a.oneRequestWithin(cmd, longTimeout, func(ctx context.Context, c *qsidecar.Client) error {
		ids, err := a.find(ctx, c, find, s.states)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return &codeError{exitFailure, errors.New("no such jobs " + text.of)}
		}
		if err := allow(ctx, fmt.Sprintf("%s %s of %s", text.verb, textfmt.Plural(int64(len(ids)), "job"), req.Queue)); err != nil {
			return err
		}
		done, left := int64(0), &protocol.Reply{}
		stop := a.progress(ctx, func(context.Context) string { return fmt.Sprintf("%s the jobs of %s …", text.doing, req.Queue) })
		defer func() { stop() }()
		for some := range slices.Chunk(ids, searchBatch) {
			req.IDs = some
			rep, err := c.Call(ctx, req)
			if err != nil {
				return fmt.Errorf("%d of %d jobs are %s: %w", done, len(ids), text.done, err)
			}
			done, left.Unchanged = done+rep.Count.Or(0), append(left.Unchanged, rep.Unchanged...)
			if a.json {
				if err := a.printReply(rep); err != nil {
					return err
				}
			}
		}
		stop()
		stop = func() {}
		if n := int64(len(ids)) - done; n > 0 {
			fmt.Fprintf(a.errOut, "qsidecar: %s of %d not %s: %s\n", textfmt.Plural(n, "job"), len(ids), text.done, leftOut(req, left))
		}
		if a.json {
			return nil
		}
		return a.printf("%s %s", text.done, textfmt.Plural(done, "job"))
	})
}

// find lists the ids of the jobs in the states that a peek selects.
func (a *app) find(ctx context.Context, c *qsidecar.Client, req *protocol.Request, states []protocol.State) (ids []string, err error) {
	searches := req.Text != "" || req.Error != "" || req.Headers != nil
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
