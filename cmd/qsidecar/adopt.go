package main

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/internal/adopt"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) adoptCommand() *cobra.Command {
	var given config.Input
	var queue string
	cmd := &cobra.Command{
		Use:   "adopt TABLE",
		Short: "Propose a config for a queue in an existing table",
		Long: `Examine a table that other programs use as a queue, and print a config to start from. It
derives the role of each column from names, types, keys and at most a thousand rows. It
changes nothing in the table.

Check each line with "# guessed", and decide each "# TODO". Then run
` + "`qsidecar check --config FILE`" + `. The config doesn't contain the password.

The database is --database, or else the one of the config file (--config, QSIDECAR_CONFIG
or /etc/qsidecar/config.yaml), or else QSIDECAR_DATABASE.

TABLE is NAME or SCHEMA.NAME, as in the database. Put a name that contains a dot or a
quote between double quotes.

Exit codes: 0 printed, 1 the table can't hold a queue, or the database is unreachable, 2
wrong arguments.`,
		Example: `  qsidecar adopt --database @/run/secrets/url my_queue > config.yaml
  QSIDECAR_DATABASE=mysql://app@db/shop qsidecar adopt things`,
		Args: argCount(1, 1, "one table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if e := protocol.CheckQueueName("queue", queue); queue != "" && e != nil {
				return usagef("--%s", e.Message)
			}
			c, database, err := a.adoptFrom(given)
			if err != nil {
				return err
			}
			table, err := config.ParseTableName(args[0])
			if err != nil {
				return usagef("TABLE: %w", err)
			}
			ctx, _, stop := a.interruptible(cmd.Context())
			defer stop()
			done := a.progress(ctx, working("examining "+args[0]))
			text, err := adopt.Propose(ctx, adopt.Request{Config: c, Database: database, Table: table, Queue: queue, Log: a.newLog(c.Log).Logger})
			done()
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.out, text)
			return err
		},
	}
	configFlag(cmd, &given)
	cmd.Flags().StringVar(&given.Database, "database", "", "sqlite:PATH or a server's `URL`, or @FILE that holds it")
	cmd.Flags().StringVar(&queue, "queue", "", "the queue's `NAME` (default: the table's)")
	return cmd
}

// adoptFrom returns the config and the name of its database that adopt examines. Without
// --database, a config file that names databases takes precedence over QSIDECAR_DATABASE.
func (a *app) adoptFrom(given config.Input) (c config.Config, database string, err error) {
	given.Once = true
	in := a.configInput(given)
	if given.Database != "" {
		in.File = "" // the flag alone names the database
	}
	if in.Database == "" && in.File == "" && a.getenv("QSIDECAR_DATABASE") == "" {
		return c, "", usagef("which database? Name it with --database URL, --database @FILE, --config FILE or QSIDECAR_DATABASE")
	}
	if c, err = in.Load(); err != nil {
		return c, "", err
	}
	names := slices.Sorted(maps.Keys(c.Databases))
	if len(names) > 1 {
		return c, "", usagef("%s has several databases (%s): name the one with the table by --database", in.File, strings.Join(names, ", "))
	}
	return c, names[0], nil
}
