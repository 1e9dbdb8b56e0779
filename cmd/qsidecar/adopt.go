package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/internal/adopt"
	"github.com/qsidecar/qsidecar/internal/config"
)

func (a *app) adoptCommand() *cobra.Command {
	var database, queue string
	cmd := &cobra.Command{
		Use:   "adopt TABLE",
		Short: "Propose a config for a queue in an existing table",
		Long: `Examine a table that other programs use as a queue, and print a config to start from. It
derives the role of each column from names, types, keys and at most a thousand rows. It
changes nothing in the table.

Check each line with "# guessed", and decide each "# TODO". Then run
` + "`qsidecar check --config FILE`" + `. The config doesn't contain the password.

TABLE is NAME or SCHEMA.NAME, as in the database. Put a name that contains a dot or a
quote between double quotes.

Exit codes: 0 printed, 1 the table can't hold a queue, or the database is unreachable, 2
wrong arguments.`,
		Example: `  qsidecar adopt --database @/run/secrets/url my_queue > qsidecar.yaml
  QSIDECAR_DATABASE=mysql://app@db/shop qsidecar adopt things`,
		Args: argCount(1, 1, "one table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if database == "" && a.getenv("QSIDECAR_DATABASE") == "" {
				return usagef("which database? Name it with --database URL, --database @FILE or QSIDECAR_DATABASE")
			}
			in := a.input(config.Input{Database: database, Once: true})
			at, err := in.DatabaseURL()
			if err != nil {
				return err
			}
			table, err := config.ParseTableName(args[0])
			if err != nil {
				return usagef("TABLE: %w", err)
			}
			ctx, _, stop := a.interruptible(cmd.Context())
			defer stop()
			text, err := adopt.Propose(ctx, adopt.Request{URL: at, Table: table, Queue: queue, Log: a.newLog(config.Default("", at).Log).Logger})
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.out, text)
			return err
		},
	}
	cmd.Flags().StringVar(&database, "database", "", "sqlite:PATH or a server's `URL`, or @FILE that holds it")
	cmd.Flags().StringVar(&queue, "queue", "", "the queue's `NAME` (default: the table's)")
	return cmd
}
