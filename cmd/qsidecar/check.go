package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
)

// checkTimeout is how long one database may take to answer all that it is asked.
const checkTimeout = time.Minute

func (a *app) checkCommand() *cobra.Command {
	in := config.Input{Once: true}
	var strict bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the config, and how fit the databases are",
		Long: `Check everything that serve would use, and change nothing: the config file (all its
errors are shown, with their lines), and each database: its server, its tables and this
login's rights on them, the plan of the real claim statement, and settings that make it
slower or less safe than it could be; and whether this user's serve could have its sockets
where they should be. Every finding says what to do. It is one of

  problem  serve would not start, or could not keep what it promises
  advice   it works, and could be better or safer
  fact     good to know

What is checked may come through a pipe, as in --config /dev/stdin or --config <(…).

With --json each finding is a line: {"database", "grade", "topic", "text", "do"}.

Exit codes: 0 no problems (with --strict: and no advice), 1 there are some, 2 wrong
arguments or config.`,
		Example: `  qsidecar check --config /etc/qsidecar.yaml
  qsidecar check --database @/run/secrets/url --json | jq -r 'select(.grade != "fact") | .text'`,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, _, stop := a.interruptible(cmd.Context())
			defer stop()
			return a.check(ctx, a.input(in), strict)
		},
	}
	inputFlags(cmd, &in)
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 where there is advice, too")
	return a.jsonFlag(cmd)
}

// checked is what was found out about one database, or about this host.
type checkResult struct {
	name     string
	info     backends.Info
	findings []backends.Finding
	usage    error // what is wrong with the config of it
}

func (c checkResult) count(g backends.Severity) (n int) {
	for _, f := range c.findings {
		if f.Severity == g {
			n++
		}
	}
	return n
}

func (a *app) check(ctx context.Context, in config.Input, strict bool) error {
	c, usage := in.Load()
	if usage != nil {
		c.KeepUsable(usage)
	}
	all := a.examineAll(ctx, &c)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	for _, d := range all {
		usage = errors.Join(usage, d.usage)
	}
	if usage == nil {
		usage = checkBridgeOptions(&c, all)
	}
	var host checkResult
	if usage == nil {
		host.findings = examineHost(&c)
	}
	if err := a.printResults(in.File, c, all, host, usage); err != nil {
		return err
	}
	if usage != nil {
		return &usageError{usage}
	}
	for _, d := range append(all, host) {
		if d.count(backends.SeverityError) > 0 || strict && d.count(backends.SeverityWarning) > 0 {
			return &codeError{code: exitFailure} // stdout says why
		}
	}
	return nil
}

// examineAll looks at all databases at once. What it returns is in the order of
// their names.
func (a *app) examineAll(ctx context.Context, c *config.Config) []checkResult {
	queues := make(map[string][]backends.Policy)
	for name, q := range c.BridgeOptions(nil).Queues {
		queues[q.Database] = append(queues[q.Database], backends.Policy{
			Queue: name, MaxAttempts: q.MaxAttempts, Timeout: q.Timeout, Backoff: q.Backoff, BackoffMax: q.BackoffMax,
			RetainDone: q.Keep, RetainDead: q.KeepDead, LIFO: q.LIFO,
		})
	}
	log := a.newLog(c.Log).Logger
	all := make([]checkResult, 0, len(c.Databases))
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) {
		all = append(all, checkResult{name: name})
	}
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { all[i].examine(ctx, c, queues[all[i].name], log) })
	}
	wg.Wait()
	return all
}

func (c *checkResult) examine(ctx context.Context, all *config.Config, queues []backends.Policy, log *slog.Logger) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("it took longer than %v", checkTimeout))
	defer cancel()
	var found backends.Findings
	defer func() { c.findings = found }()
	b, err := databases.OpenEngine(ctx, all, c.name, true, log)
	if _, ok := errors.AsType[*config.Error](err); ok {
		c.usage = fmt.Errorf("databases.%s: %w", c.name, err)
		return
	}
	if err != nil {
		found.AddError("server", err.Error(), "see that the server runs and lets this host in, and that the url and the password are right")
		return
	}
	b, adopts := databases.ExamineAdopted(ctx, all, c.name, b)
	if e, ok := b.(backends.Examiner); !ok {
		found.AddInfo("server", "this engine cannot be examined")
	} else if found, err = e.Examine(ctx, queues); err != nil {
		found.AddError("server", fmt.Sprintf("it could not be asked: %v", err), "see that the server can be reached, and try again")
	}
	found = append(found, adopts...)
	c.info = b.Info()
	if err := b.Close(); err != nil {
		found.AddWarning("server", fmt.Sprintf("closing the connection: %v", err), "try again")
	}
}

// lookedAt stands for a database that was closed again.
type closedDatabase struct {
	backends.Backend
	info backends.Info
}

func (l closedDatabase) Info() backends.Info { return l.info }

// holdsTogether says whether a bridge would take the config.
func checkBridgeOptions(c *config.Config, all []checkResult) error {
	open := make(map[string]backends.Backend)
	for _, d := range all {
		info := d.info
		info.Database = cmp.Or(info.Database, "unknown "+d.name)
		open[d.name] = closedDatabase{info: info}
	}
	if _, err := bridge.New(c.BridgeOptions(open), slog.New(slog.DiscardHandler)); err != nil {
		return fmt.Errorf("the configuration does not hold together:\n%w", err)
	}
	return nil
}
