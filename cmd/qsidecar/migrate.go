package main

import (
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/internal/engines"
)

func (a *app) migrateCommand() *cobra.Command {
	in := config.Input{Once: true}
	var show bool
	var from int
	var role string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or update the tables in the database",
		Long: `Create the tables in the database, or update them. serve does that itself. Use migrate if
the role of serve can't create tables: run it as their owner, or print the SQL with
--print and run it by hand. The SQL is for psql, mysql or sqlcmd -I -b, and ends with the
rights that the role of serve needs.

Exit codes: 0 done, 1 it failed, 2 wrong arguments or config.`,
		Example: "  qsidecar migrate --print --role app_sidecar | psql -v ON_ERROR_STOP=1 postgres://owner@db/app",
		Args:    argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !show && (from != 0 || role != "") {
				return usagef("--from and --role are for --print")
			}
			if from < 0 {
				return usagef("--from %d: give the version of the tables as they are (0: there are none)", from)
			}
			c, err := a.configInput(in).Load()
			if err != nil {
				return err
			}
			if show {
				return a.printSchemas(c, role, from)
			}
			stop := a.progress(cmd.Context(), working("creating or updating the tables"))
			open, err := databases.OpenAll(cmd.Context(), &c, a.newLog(c.Log).Logger)
			stop()
			if err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(open)) {
				err = errors.Join(err, a.printf("%s: the tables in %s are up to date", name, databases.Describe(open[name].Info())))
			}
			return errors.Join(err, databases.CloseAll(open))
		},
	}
	inputFlags(cmd, &in)
	cmd.Flags().BoolVar(&show, "print", false, "print the SQL and touch nothing")
	cmd.Flags().IntVar(&from, "from", 0, "with --print: start from tables of this version (0: there are none)")
	cmd.Flags().StringVar(&role, "role", "", "with --print: the role of serve (default qsidecar_sidecar)")
	return cmd
}

// printSchemas prints the SQL for each engine that the config uses.
func (a *app) printSchemas(c config.Config, role string, from int) error {
	printed := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		u, err := engines.ParseURL(c.Databases[name].URL)
		if err != nil {
			return &usageError{err}
		}
		if from > u.Latest {
			return usagef("--from %d: this program's tables have the version %d", from, u.Latest)
		}
		sql := u.Migrations(c.Databases[name].Schema, role, from)
		if printed[sql] {
			continue
		}
		printed[sql] = true
		if _, err := io.WriteString(a.out, strings.TrimRight(sql, "\n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}
