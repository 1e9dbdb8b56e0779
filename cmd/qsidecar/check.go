package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/check"
	"github.com/qsidecar/qsidecar/internal/config"
)

func (a *app) checkCommand() *cobra.Command {
	in := config.Input{Once: true}
	var strict bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the config, and how fit the databases are",
		Long: `Check everything that serve uses, and change nothing. That is the config file, with all
its errors and their lines; each database: its server, its tables, the rights of this
login, the plan of the real claim statement, and settings that make it slower or less
safe; and whether serve can create its sockets as this user. Every finding has a fix. It
is one of

  error    serve does not start, or can't keep its guarantees
  warning  it works, and could be better or safer
  info     good to know

The config file is --config, or else QSIDECAR_CONFIG, or else /etc/qsidecar/config.yaml if
it exists. It can be a pipe, as in --config /dev/stdin or --config <(…).

With --json each finding is a line: {"database", "severity", "topic", "text", "fix"}.

Exit codes: 0 no errors (with --strict: and no warnings), 1 there are some, 2 wrong
arguments or config.`,
		Example: `  qsidecar check
  qsidecar check --config ./config.yaml
  qsidecar check --database @/run/secrets/url --json | jq -r 'select(.severity != "info") | .text'`,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, _, stop := a.interruptible(cmd.Context())
			defer stop()
			return a.check(ctx, a.configInput(in), strict)
		},
	}
	inputFlags(cmd, &in)
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 if there are warnings, too")
	return a.jsonFlag(cmd)
}

func (a *app) check(ctx context.Context, in config.Input, strict bool) error {
	c, usage := in.Load()
	if usage != nil {
		c.KeepUsable(usage)
	}
	all := check.Databases(ctx, &c, a.newLog(c.Log).Logger)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	for _, d := range all {
		usage = errors.Join(usage, d.ConfigErr)
	}
	if usage == nil {
		usage = check.Bridge(&c, all)
	}
	var host check.Result
	if usage == nil {
		host.Findings = append(check.Host(&c), check.TimeZones()...)
	}
	if err := a.printResults(in.File, c, all, host, usage); err != nil {
		return err
	}
	if usage != nil {
		return &usageError{usage}
	}
	for _, d := range append(all, host) {
		if d.Count(backends.SeverityError) > 0 || strict && d.Count(backends.SeverityWarning) > 0 {
			return &codeError{code: exitFailure} // the reason is on stdout
		}
	}
	return nil
}
