package main

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the sidecar's settings and what changed them",
		Long: `Show all settings that the sidecar uses, also the defaults, without passwords; then its
reloads since the start, at most 50, the newest first: what changed, or why a newer
config was rejected.

` + exitCodes,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpConfig})
				if err != nil {
					return err
				}
				if a.json {
					return a.printReply(rep)
				}
				return a.showConfig(rep.Config)
			})
		},
	}
	return a.jsonFlag(cmd)
}

func (a *app) showConfig(c *protocol.Config) error {
	if err := a.printf("%s\n", strings.Join(c.Settings, "\n")); err != nil {
		return err
	}
	for _, r := range c.Reloads {
		at := time.UnixMilli(r.At).Format(time.RFC3339)
		what := cmp.Or(strings.Join(r.Changes, "\n  "), "config files changed; settings are unchanged")
		if r.Error != "" {
			what = "REJECTED: " + strings.ReplaceAll(r.Error, "\n", "\n  ")
		}
		if err := a.printf("%s generation %d: %s", at, r.Generation, what); err != nil {
			return err
		}
	}
	return nil
}
