package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) fleetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "List the sidecars of all hosts",
		Long: `List the sidecars that use the databases of this one: host and process, version, state,
age of the last heartbeat, and the jobs that their connections held at that time. The
state is one of

  alive  its heartbeats are in time
  late   its last heartbeat is no longer valid; it is declared dead soon
  left   it stopped; its jobs wait for their workers for the restart grace
  dead   its jobs are being returned

` + exitCodes,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpFleet})
				if err != nil {
					return err
				}
				if a.json {
					return a.printEach(rep, "sidecars")
				}
				return a.table("SIDECAR STATE HEARTBEAT LEASES VERSION DATABASE NOTE", sidecarRows(rep.Sidecars))
			})
		},
	}
	return a.jsonFlag(cmd)
}

func sidecarRows(all []protocol.Sidecar) (rows [][]string) {
	for _, s := range all {
		var notes []string
		if s.Self {
			notes = append(notes, "this one")
		}
		if s.StatsLeader {
			notes = append(notes, "reads statistics")
		}
		rows = append(rows, []string{s.Name, string(s.State), wiretext.Age(s.HeartbeatAgeMS), wiretext.Optional(s.Leases), s.Version, s.Database, strings.Join(notes, ", ")})
	}
	return rows
}
