package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// completeTimeout limits how long the completion of a shell waits for the sidecar.
const completeTimeout = 500 * time.Millisecond

// jobStates are the states of the jobs that a command takes by their ids.
var jobStates = map[string]protocol.State{"retry": protocol.StateDead, "reclaim": protocol.StateClaimed}

// addCompletion adds the completion of arguments and flags to a command. The usage line
// names the arguments.
func (a *app) addCompletion(cmd *cobra.Command) {
	_, takes, _ := strings.Cut(cmd.Use, " ")
	switch {
	case strings.Contains(takes, "QUEUE"):
		most := 1
		if strings.Contains(takes, "QUEUE…") {
			most = protocol.MaxList
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
			switch {
			case slices.Contains(a.args, "--"): // cobra sets ArgsLenAtDash also without it
				return nil, cobra.ShellCompDirectiveDefault // the command that `work` runs
			case len(args) < most:
				return a.completeQueues(args, start), cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeJobs(args[0], jobStates[cmd.Name()], args[1:], start), cobra.ShellCompDirectiveNoFileComp
		}
	case !strings.Contains(takes, "DIR"):
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, f := range []struct {
		name     string
		complete cobra.CompletionFunc
	}{
		{"config", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt)},
		{"log-level", words("debug", "info", "warn", "error")},
		{"state", words(statesOf(cmd)...)},
		{"queue", func(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
			return a.completeQueues(nil, start), cobra.ShellCompDirectiveNoFileComp
		}},
	} {
		if adopts := f.name == "queue" && cmd.Name() == "adopt"; cmd.Flags().Lookup(f.name) != nil && !adopts { // it names a new queue
			_ = cmd.RegisterFlagCompletionFunc(f.name, f.complete) // fails only if the flag doesn't exist
		}
	}
}

// words completes one of these words.
func words(list ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}

// statesOf returns the states that --state of a command takes.
func statesOf(cmd *cobra.Command) (list []string) {
	for _, state := range []protocol.State{
		protocol.StateReady, protocol.StateBlocked, protocol.StateScheduled, protocol.StateClaimed, protocol.StateDone, protocol.StateDead,
	} {
		if state != protocol.StateClaimed || cmd.Name() != "purge" {
			list = append(list, string(state))
		}
	}
	return list
}

// completeQueues returns the queues that begin with start and are not in but. Its texts show
// how many jobs are ready and dead.
func (a *app) completeQueues(but []string, start string) (names []string) {
	a.askBriefly(func(ctx context.Context, c *qsidecar.Client) error {
		stats, err := c.Stats(ctx, "")
		for _, s := range stats {
			if strings.HasPrefix(s.Queue, start) && !slices.Contains(but, s.Queue) {
				names = append(names, cobra.CompletionWithDesc(s.Queue, fmt.Sprintf("%d ready, %d dead", s.Ready, s.Dead)))
			}
		}
		return err
	})
	return names
}

// completeJobs returns the ids of jobs of a queue in a state that begin with start and are
// not in but. It returns nothing without a state.
func (a *app) completeJobs(queue string, state protocol.State, but []string, start string) (ids []string) {
	if state == "" {
		return nil
	}
	a.askBriefly(func(ctx context.Context, c *qsidecar.Client) error {
		jobs, err := c.Peek(ctx, qsidecar.Peek{Queue: queue, State: state, Max: 100})
		for _, j := range jobs {
			if strings.HasPrefix(j.ID, start) && !slices.Contains(but, j.ID) {
				ids = append(ids, j.ID)
			}
		}
		return err
	})
	return ids
}

// askBriefly runs f with a connection to a sidecar, if one runs. A completion prints no
// errors, because the shell would show them in the middle of the line.
func (a *app) askBriefly(f func(ctx context.Context, c *qsidecar.Client) error) {
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	c, err := a.dial(ctx)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }() // it holds nothing
	_ = f(ctx, c)
}
