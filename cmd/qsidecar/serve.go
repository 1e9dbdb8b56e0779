package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/internal/check"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/daemon"
	"github.com/qsidecar/qsidecar/internal/logging"
)

// inputFlags adds the flags of a command that reads a config.
func inputFlags(cmd *cobra.Command, in *config.Input) {
	configFlag(cmd, in)
	cmd.Flags().StringVar(&in.Database, "database", "", "sqlite:PATH or a server's `URL`, or @FILE that holds it")
	cmd.Flags().Var(&in.LogLevel, "log-level", "debug, info, warn or error (default info)")
}

// configFlag adds --config.
func configFlag(cmd *cobra.Command, in *config.Input) {
	cmd.Flags().StringVar(&in.File, "config", "", "the config `FILE` (default: QSIDECAR_CONFIG, "+config.SystemFile+")")
}

func (a *app) serveCommand() *cobra.Command {
	var in config.Input
	var hint bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the queues of a database on a Unix socket",
		Long: `Serve the queues of a database on a Unix socket until SIGTERM or SIGINT. The sidecar
then claims no more jobs, and workers can settle their jobs until drain_timeout (30s).
A second signal ends that at once. Leases stay valid over a restart.

The config file is --config, or else QSIDECAR_CONFIG, or else /etc/qsidecar/config.yaml if
it exists. --config none reads no file.

Without a config file it uses an SQLite database in $XDG_STATE_HOME/qsidecar (default:
~/.local/state/qsidecar; root: /var/lib/qsidecar) and one socket (see qsidecar --help),
and the first use of a queue creates it. QSIDECAR_DATABASE and QSIDECAR_SOCKET override
these defaults. The config file overrides the environment, and flags override the config
file.

The config, and each file that it names, must be a regular file of at most 16 MiB,
because serve reads it again when it changes.

If the database of a server is unreachable, or takes longer than 15 s to open, serve
listens and answers requests with ` + "`unavailable`" + ` until the database is open. A wrong
password is an error.

Under systemd (deploy/systemd) it reports its state, feeds the watchdog, and uses the
sockets of a socket unit. They must be in the config's ` + "`listen`" + `. Without a config and
without --socket, it serves on these sockets.

Exit codes: 0 stopped in order; 1 it could not serve, or could not record in its database
that it stops, so leases end after sidecar_timeout instead of restart_grace; 2 wrong arguments
or config.`,
		Example: `  qsidecar serve
  qsidecar serve --database sqlite:/var/lib/app/jobs.db --socket /run/app/qsidecar.sock
  qsidecar serve --config ./config.yaml`,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if a.inherited, err = daemon.InheritedSockets(); err != nil {
				return err
			}
			in := a.configInput(in)
			c, err := in.Load()
			if err != nil {
				return err
			}
			return a.serve(cmd.Context(), in, c, hint)
		},
	}
	inputFlags(cmd, &in)
	cmd.Flags().BoolVar(&hint, "hint", false, "print lines to try it out with")
	return cmd
}

func (a *app) serve(ctx context.Context, in config.Input, c config.Config, hint bool) error {
	daemon.SetGCHeadroom()
	idleCtx, stopTrim := context.WithCancel(ctx)
	defer stopTrim()
	go daemon.TrimWhenIdle(idleCtx)
	hangUps, stop := a.hangUps()
	defer stop()
	return a.runDaemon(ctx, daemon.Options{Input: in, Load: in.Load, Managed: true, OpenTimeout: a.openTimeout}, c, func(ctx context.Context, p *daemon.Daemon) error {
		// Serving continues if stdout is closed.
		serving := p.Serving()
		if in.File != "" {
			serving += ", config " + in.File
		}
		fmt.Fprintln(a.out, serving)
		p.Ready()
		if hint {
			a.hint(c.Listen[0].Socket)
		}
		p.Watch(ctx, hangUps, config.WatchOptions{Poll: a.pollInterval, NoEvents: a.noEvents})
		return nil
	})
}

// runDaemon runs a sidecar and f, with its log on stderr.
func (a *app) runDaemon(ctx context.Context, o daemon.Options, c config.Config, f func(ctx context.Context, p *daemon.Daemon) error) error {
	log := a.newLog(c.Log)
	defer log.Flush()
	a.errOut = log.Writer() // the last error uses it too
	o.Log, o.Signals, o.Inherited, o.Open, o.Check = log, a.signals, a.inherited, a.open, check.Running
	v := programVersion()
	o.Version, o.Revision = v.Number, v.Commit
	return daemon.Run(ctx, o, f)
}

// hint prints three commands that show the life of a job.
func (a *app) hint(socket string) {
	bin, err := os.Executable()
	if err != nil {
		bin = "qsidecar"
	}
	at := ""
	if a.socket != "" || a.getenv("QSIDECAR_SOCKET") != "" || !slices.Contains(a.sockets(), socket) {
		at = " --socket " + shellQuote(socket)
	}
	q := shellQuote(bin)
	_, _ = io.WriteString(a.out, "\nPaste these into another terminal:\n\n"+
		fmt.Sprintf("  %s enqueue mail 'hello, world'%s\n", q, at)+
		fmt.Sprintf("  job=$(%s claim mail --env%s) && eval \"$job\" && printf 'working on: %%s\\n' \"$QSIDECAR_PAYLOAD\" && %s ack \"$QSIDECAR_LEASE\"%s\n", q, at, q, at)+
		fmt.Sprintf("  %s stats mail%s\n\n", q, at))
}

// hangUps returns a channel that receives SIGHUP until stop. It keeps one signal, and a
// SIGHUP during start or stop doesn't end the process.
func (a *app) hangUps() (hangUps <-chan os.Signal, stop func()) {
	all := make(chan os.Signal, 1)
	if !a.terminal(a.in) { // at a terminal SIGHUP means that the terminal is gone
		signal.Notify(all, syscall.SIGHUP)
	}
	return all, func() { signal.Stop(all) }
}

// newLog returns a command's log.
func (a *app) newLog(c config.Log) *logging.Log {
	return logging.New(a.errOut, c.Level.SlogLevel(), c.JSON())
}
