package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge"
)

func (a *app) checkCommand() *cobra.Command {
	var s setup
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the config, and that the database can be used",
		Long: `Check everything that serve would use: the config file (all its errors are shown, with
their lines) and the databases, which are opened as serve opens them: tables that
are missing are made.

Exit codes: 0 all is well, 1 a database cannot be used, 2 wrong arguments or config.`,
		Example: "  qsidecar check --config /etc/qsidecar.yaml",
		Args:    takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			c, err := a.config(s)
			if err != nil {
				return err
			}
			open, err := openAll(cmd.Context(), &c, a.newLog(c.Log))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closeAll(open)) }()
			if _, err := bridge.New(c.options(open), slog.New(slog.DiscardHandler)); err != nil {
				return &usageError{fmt.Errorf("the configuration does not hold together:\n%w", err)}
			}
			return a.checked(cmd, c, open)
		},
	}
	s.flags(cmd)
	return cmd
}

// checked asks each database something that reads its tables, and tells what was found.
func (a *app) checked(cmd *cobra.Command, c config, open map[string]backends.Backend) error {
	for _, name := range slices.Sorted(maps.Keys(open)) {
		b := open[name]
		if i, ok := b.(backends.Inspector); ok {
			if _, err := i.Stats(cmd.Context(), ""); err != nil {
				return fmt.Errorf("database %s, %s: %w", name, placeOf(b), err)
			}
		}
		if err := a.say("database %s: %s, ok", name, placeOf(b)); err != nil {
			return err
		}
	}
	for _, l := range c.Listen {
		if err := a.say("socket: %s", l.Socket); err != nil {
			return err
		}
	}
	names := slices.Sorted(maps.Keys(c.Queues))
	if i := slices.Index(names, "*"); i >= 0 {
		names[i] = "* (any other name)"
	}
	return a.say("queues: %s", strings.Join(names, ", "))
}
