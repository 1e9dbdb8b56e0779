package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) reloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the sidecar read its config again",
		Long: `Make the sidecar read its config and its secrets again, and show what changed, or why
nothing did. It does so by itself when the files change, and on SIGHUP.

A config applies as a whole or not at all: if it has an error, or a database is not
reachable, the exit code is 2 and what ran before goes on. Connections stay, and so do the
jobs they hold.

The sidecar also asks its databases again for what they refused, such as new jobs for a
table without the right to INSERT.

` + exitCodes,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpReload})
				if err != nil {
					return err
				}
				if a.json {
					return a.printReply(rep)
				}
				if len(rep.Changes) == 0 {
					return a.printf("nothing changed: %s", cmp.Or(rep.Why, "the sidecar gives no reason"))
				}
				for _, change := range rep.Changes {
					if err := a.printf("%s", change); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	return a.jsonFlag(cmd)
}

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the sidecar's config, databases and connections",
		Long: `Show which config runs, and why a newer one does not; the sockets, and where
metrics are served; the databases, whether they can be reached, how many connections
of their pool are at work, of how many, the server's role in its cluster, and what they
refuse, for example a job that a constraint of its table keeps from being given back; and
each connection: its worker, and its leases, by queue and age.

` + exitCodes,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpStatus})
				if err != nil {
					return err
				}
				if a.json {
					return a.printReply(rep)
				}
				return a.showStatus(c.Server().Server, rep.Status)
			})
		},
	}
	return a.jsonFlag(cmd)
}

func (a *app) showStatus(server string, st *protocol.Status) error {
	if err := a.printf("%s, up for %s, config generation %d", server, wiretext.Age(st.UptimeMS), st.Generation); err != nil {
		return err
	}
	if st.ConfigError != "" {
		since := time.UnixMilli(st.FailedAt.Or(0)).Format(time.RFC3339)
		if err := a.printf("THE NEWEST CONFIG DOES NOT RUN (seen last at %s): %s", since, st.ConfigError); err != nil {
			return err
		}
	}
	var rows [][]string
	if st.Admin != "" {
		at := "web page, "
		if st.Page != "" {
			at = "web page at " + st.Page + ", "
		}
		if err := a.printf("%smetrics and health at %s", at, textfmt.URLOf(st.Admin)); err != nil {
			return err
		}
	}
	for _, s := range st.Sockets {
		rows = append(rows, []string{s.Path, strconv.FormatInt(s.Sessions, 10)})
	}
	fmt.Fprintln(a.out)
	if err := a.table("SOCKET CONNECTIONS", rows); err != nil {
		return err
	}
	for _, s := range st.Sockets {
		if s.Error == "" {
			continue
		}
		if err := a.printf("socket %s: %s", s.Path, s.Error); err != nil {
			return err
		}
	}
	fmt.Fprintln(a.out)
	if err := a.showDatabases(st.Databases); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	rows = nil
	for _, s := range st.Sessions {
		rows = append(rows, []string{s.Session, textfmt.OneLine(s.Worker, 32), wiretext.Optional(s.UID), wiretext.Optional(s.PID), cmp.Or(s.Socket, "stdio"), wiretext.Age(s.AgeMS),
			strconv.FormatInt(s.Leases, 10), wiretext.Age(s.OldestLeaseMS), wiretext.Queues(&s), strconv.FormatInt(s.Waiting, 10)})
	}
	return a.table("CONNECTION WORKER UID PID SOCKET AGE LEASES OLDEST QUEUES WAITING", rows)
}

// showDatabases prints a table, then the cluster, the full error and the obstacles of each database that has them.
func (a *app) showDatabases(all []protocol.DatabaseStatus) error {
	var rows [][]string
	for _, d := range all {
		state := wiretext.DatabaseState(&d)
		if d.Error != "" {
			state += ", see below"
		}
		rows = append(rows, []string{d.Name, d.Engine + " " + d.Version, textfmt.OneLine(d.Address, 48), wiretext.Age(max(d.HeartbeatAgeMS, 0)), wiretext.Pool(&d),
			strconv.FormatInt(d.Leases, 10), state})
	}
	if err := a.table("DATABASE SERVER ADDRESS HEARTBEAT POOL LEASES STATE", rows); err != nil {
		return err
	}
	for _, d := range all {
		replica := ""
		if d.ReplicaError != "" {
			replica = "statistics come from the primary: " + d.ReplicaError
		}
		texts := []string{d.Cluster, d.Error, replica}
		for _, o := range d.Obstacles {
			texts = append(texts, "can't "+wiretext.Obstacle(&o))
		}
		if more := d.ObstacleCount - int64(len(d.Obstacles)); more > 0 {
			texts = append(texts, textfmt.Plural(more, "more obstacle"))
		}
		for _, text := range texts {
			if text == "" {
				continue
			}
			if err := a.printf("database %s: %s", d.Name, text); err != nil {
				return err
			}
		}
	}
	return nil
}
