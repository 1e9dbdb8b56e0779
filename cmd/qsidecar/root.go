package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/textfmt"
)

const rootHelp = `qsidecar is a job queue in your own database. One process per host serves it to
every worker on a Unix socket; workers enqueue, claim, ack and nack.

  qsidecar serve                              in one terminal, then in another:
  qsidecar enqueue mail 'hello'               store a job
  job=$(qsidecar claim mail --env) &&         claim it,
    eval "$job" && printf '%s\n' "$QSIDECAR_PAYLOAD" &&  work on it,
    qsidecar ack "$QSIDECAR_LEASE"            and settle it
  qsidecar work mail -- ./send.sh             or run a command for each job
  qsidecar stats                              see the remaining jobs

Commands look for a sidecar on the socket of --socket or of QSIDECAR_SOCKET, or else on
these, in this order: $XDG_RUNTIME_DIR/qsidecar/qsidecar.sock; for users other than root
qsidecar/qsidecar.sock in $XDG_STATE_HOME (default: ~/.local/state); and
/run/qsidecar/qsidecar.sock. They skip a socket that is closed to this user. "qsidecar serve"
listens on the first if $XDG_RUNTIME_DIR is set, or else on the last if this user can write
there, or else on the second. Root ignores an $XDG_RUNTIME_DIR of another user.

With --json a command prints its answers as JSON lines, and an error as one JSON line on
stderr: {"ok":false,"error":{"code":…,"message":…}}. The code is one of the protocol's, or
"failed" or "interrupted". The exit codes are the same.

` + exitCodes

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "qsidecar",
		Short:         "A job queue in your own database, served on a Unix socket",
		Long:          rootHelp,
		Version:       programVersion().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.started = true
			if f := cmd.Flags().Lookup("json"); f != nil { // claim has it, and its default is true
				a.jsonErrors = f.Changed && f.Value.String() == "true"
			}
			return emptyFlag(cmd)
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w%s\nRun `%s --help` to see what it takes", flagError(err), nearFlag(cmd, err), cmd.CommandPath())
	})
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "the sidecar's socket `PATH`")
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run a sidecar:"},
		&cobra.Group{ID: "work", Title: "Work with jobs:"},
		&cobra.Group{ID: "look", Title: "Look after queues:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("run", a.serveCommand(), a.stdioCommand(), a.checkCommand(), a.adoptCommand(), a.migrateCommand())
	add("work", a.enqueueCommand(), a.claimCommand(), a.ackCommand(), a.nackCommand(), a.extendCommand(),
		a.progressCommand(), a.workCommand(), a.waitCommand())
	add("look", a.statsCommand(), a.peekCommand(), a.deadCommand(), a.showCommand(), a.retryCommand(), a.changeCommand(), a.deleteCommand(), a.cancelCommand(), a.reclaimCommand(),
		a.purgeCommand(), a.pauseCommand(), a.resumeCommand(), a.limitCommand(), a.scheduleCommand(), a.batchCommand(), a.topCommand(), a.tailCommand(), a.pingCommand(), a.statusCommand(), a.fleetCommand(), a.configCommand(), a.reloadCommand())
	root.AddCommand(a.versionCommand(), a.manCommand(), a.guardCommand())
	for _, c := range root.Commands() {
		c.SuggestFor = otherNames[c.Name()]
		a.addCompletion(c)
	}
	return root
}

// rejectUnknownNames makes `help` and `completion` return an error for a name that they don't know. Cobra's own print a
// help text and exit with 0.
func rejectUnknownNames(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run, c.RunE = nil, func(c *cobra.Command, args []string) error {
				named, _, err := root.Find(args)
				if err != nil {
					return unknownCommand(err, root)
				}
				named.InitDefaultHelpFlag()
				return named.Help()
			}
		case "completion":
			c.Args = func(c *cobra.Command, args []string) error {
				if len(args) == 0 {
					return nil
				}
				var shells []string
				for _, shell := range c.Commands() {
					shells = append(shells, shell.Name())
				}
				near := textfmt.Nearest(args[0], shells)
				if near != "" {
					near = ": did you mean " + near + "?"
				}
				return unknownCommand(fmt.Errorf("unknown command %q for %q%s", args[0], c.CommandPath(), near), c)
			}
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

// unknownCommand adds to err where the commands are listed.
func unknownCommand(err error, parent *cobra.Command) error {
	return usagef("%w\nRun `%s --help` to see the commands", err, parent.CommandPath())
}

// flagError is an error of pflag in our terms: Go's own parsers name neither the flag nor what it takes.
func flagError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	wrong, ok := errors.AsType[*strconv.NumError](err)
	if !ok {
		return err
	}
	flag := invalid.GetFlag()
	switch kind := flag.Value.Type(); {
	case kind == "bool":
		return fmt.Errorf("--%s: %q is neither true nor false", flag.Name, wrong.Num)
	case !errors.Is(wrong, strconv.ErrRange):
		return fmt.Errorf("--%s: %q is not a whole number", flag.Name, wrong.Num)
	case kind == "int16":
		return fmt.Errorf("--%s: %s is outside %d to %d", flag.Name, wrong.Num, math.MinInt16, math.MaxInt16)
	}
	return fmt.Errorf("--%s: %s is too large a number", flag.Name, wrong.Num)
}

// emptyFlag reports a flag without the name that it should have, as from "$UNSET" in a script. Its default could be
// another database.
func emptyFlag(cmd *cobra.Command) error {
	for _, name := range []string{"config", "database", "socket", "queue", "role"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.Type() == "string" && f.Value.String() == "" {
			return usagef("--%s is empty: give it a value, or leave it out for the default", name)
		}
	}
	return nil
}

// nearFlag suggests the flag that err was probably about.
func nearFlag(cmd *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return ""
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		return ": if -" + short + " is an argument, write -- before it"
	}
	if hint := flagHints[cmd.Name()+" "+unknown.GetSpecifiedName()]; hint != "" {
		return ": " + hint
	}
	if unknown.GetSpecifiedName() == "queue" && strings.Contains(cmd.Use, "QUEUE") {
		return ": the queue is an argument, not a flag"
	}
	for _, name := range known {
		if slices.Contains(otherFlags[name], unknown.GetSpecifiedName()) {
			return ": did you mean --" + name + "?"
		}
	}
	if near := textfmt.Nearest(unknown.GetSpecifiedName(), known); near != "" {
		return ": did you mean --" + near + "?"
	}
	return ""
}

// databaseURL matches the address of a database.
var databaseURL = regexp.MustCompile(`^(sqlite:|[a-z]+://)`)

// otherNames are names of commands in other programs.
var otherNames = map[string][]string{
	"serve":   {"start", "run", "server", "daemon", "up"},
	"enqueue": {"push", "add", "put", "send", "submit", "publish"},
	"claim":   {"pop", "reserve", "take", "get", "fetch"},
	"work":    {"consume", "process"},
	"ack":     {"done", "complete", "finish"},
	"nack":    {"fail", "reject"},
	"stats":   {"queues", "list", "ls", "count", "info"},
	"peek":    {"jobs", "show-jobs"},
	"status":  {"workers", "connections", "sessions"},
	"purge":   {"clear", "flush", "empty", "drain"},
	"cancel":  {"kill", "stop", "abort"},
	"top":     {"watch", "monitor", "ui", "dashboard"},
	"tail":    {"log", "logs", "follow", "events"},
	"check":   {"doctor", "validate", "lint", "test"},
	"retry":   {"requeue", "redrive", "kick"},
}

// otherFlags are the names that other programs have for flags of this one.
var otherFlags = map[string][]string{
	"jobs":         {"concurrency", "workers", "threads", "processes", "parallel", "parallelism"},
	"max-attempts": {"retries", "max-retries", "tries", "retry"},
	"run-at":       {"at", "when", "eta", "schedule"},
	"delay":        {"in", "wait", "countdown", "after"},
	"key":          {"unique", "idempotency-key", "dedupe", "id"},
	"raw":          {"binary"},
	"drain":        {"burst", "exit"},
	"database":     {"db", "url", "dsn"},
	"max":          {"limit", "count", "n"},
	"yes":          {"force", "y"},
	"json":         {"format", "output"},
	"max-claimed":  {"concurrency", "max-concurrency", "max-running"},
}

// flagHints are what to do in place of a flag that a command doesn't have.
var flagHints = map[string]string{
	"enqueue file":  "the payload is an argument, or stdin as in < FILE",
	"serve port":    "workers connect to --socket, and the web page and metrics are at admin.listen in the config",
	"tail follow":   "leave it out, tail always follows",
	"purge dry-run": "without --yes nothing is changed, and `qsidecar stats QUEUE` shows how many jobs there are",
}

// argCount checks the number of arguments; most < 0 is any number. what describes them.
func argCount(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		if what == "" {
			what = "no arguments"
		}
		if f := cmd.Flags().Lookup("database"); f != nil && most == 0 && len(args) == 1 && databaseURL.MatchString(args[0]) {
			return usagef("%s takes no arguments: did you mean --database? (Put a URL with a password into QSIDECAR_DATABASE, or into a file: --database @FILE)", cmd.Name())
		}
		if f := cmd.Flags().Lookup("config"); f != nil && most == 0 && len(args) == 1 {
			return usagef("%s takes no arguments: did you mean --config %s?", cmd.Name(), args[0])
		}
		hint := ""
		if len(args) > most && strings.HasSuffix(what, "payload") {
			hint = ": quote a payload that has spaces"
		}
		if cmd.Name() == "status" && len(args) == 1 {
			hint = fmt.Sprintf(": `qsidecar stats %s` shows a queue", args[0])
		}
		return usagef("%s takes %s, and was given %s%s\nRun `%s --help` to see more",
			cmd.Name(), what, textfmt.Plural(int64(len(args)), "argument"), hint, cmd.CommandPath())
	}
}

// jsonFlag adds --json to a command.
func (a *app) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.json, "json", false, "answer in JSON lines, for programs")
	return cmd
}

// withClient runs f with a connection to the sidecar. The first signal ends ctx. withClient
// then gives back what the connection still receives, unless a second signal arrives.
func (a *app) withClient(cmd *cobra.Command, f func(ctx context.Context, c *qsidecar.Client) error) error {
	ctx, again, stop := a.interruptible(cmd.Context())
	defer stop()
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	a.out = output{w: a.stdout, limit: func() context.Context { return ctx }}
	err = f(ctx, c)
	bye, cancel := withAnswerTimeout(again, cmp.Or(a.byeTimeout, leaveTimeout))
	defer cancel()
	if e := c.Bye(bye); e != nil {
		err = errors.Join(err, fmt.Errorf("leaving the sidecar: %w", e))
	}
	return err
}

// oneRequest is withClient for a command of one request.
func (a *app) oneRequest(cmd *cobra.Command, f func(ctx context.Context, c *qsidecar.Client) error) error {
	return a.oneRequestWithin(cmd, cmp.Or(a.callTimeout, answerTimeout), f)
}

func (a *app) oneRequestWithin(cmd *cobra.Command, limit time.Duration, f func(ctx context.Context, c *qsidecar.Client) error) error {
	return a.withClient(cmd, func(ctx context.Context, c *qsidecar.Client) error {
		ctx, cancel := withAnswerTimeout(ctx, limit)
		defer cancel()
		return f(ctx, c)
	})
}

// confirm asks before an operation that can't be undone.
func (a *app) confirm(ctx context.Context, yes bool, what string) error {
	if yes {
		return nil
	}
	if !a.terminal(a.in) {
		return usagef("this would %s, which cannot be undone: add --yes to do it", what)
	}
	fmt.Fprintf(a.errOut, "This will %s, which cannot be undone. Go on? [y/N] ", what)
	var line string
	err := a.readInput(ctx, func() (err error) {
		line, err = readLine(a.in)
		return err
	})
	if err != nil {
		return err
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return &codeError{exitFailure, errors.New("nothing was done")}
	}
	return nil
}
