package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// setup is what serve, stdio and check are told about the sidecar to be.
type setup struct {
	config   string
	database string
	logLevel logLevel
	once     bool // the files are not read again
}

// read is how its files are read.
func (s *setup) read() reading {
	if s.once {
		return readOnce
	}
	return readFile
}

func (s *setup) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.config, "config", "", "the config `FILE` (YAML; see deploy/qsidecar.example.yaml)")
	cmd.Flags().StringVar(&s.database, "database", "", "sqlite:PATH or a server's `URL`, or @FILE that holds it")
	cmd.Flags().Var(&s.logLevel, "log-level", "debug, info, warn or error (default info)")
}

// config puts flags, file, environment and defaults together, in this order of weight. With
// an error it is what could be read of the file.
func (a *app) config(s setup) (config, error) {
	c := defaultConfig()
	if s.config != "" {
		var err error
		if c, err = loadConfig(s.config, s.read(), a.env); err != nil {
			return c, err
		}
	}
	if s.database != "" && len(c.Databases) > 0 {
		return c, usagef("--database and `databases` in %s both say which database: leave one out", s.config)
	}
	db := ""
	if len(c.Databases) == 0 {
		var err error
		if db, err = a.database(s.database, s.read()); err != nil {
			return c, err
		}
		if file, ok := strings.CutPrefix(cmp.Or(s.database, a.getenv("QSIDECAR_DATABASE")), "@"); ok {
			c.urlFile = file
		}
		if _, err := parseDatabaseURL(db); err != nil {
			return c, usagef("the database: %w", err)
		}
	}
	if a.socket != "" {
		c.Listen = nil // the flag's socket instead of the file's
	}
	c.listenOn(a.handedOver())
	c.fill(a.sockets()[0], db)
	if s.logLevel != "" {
		c.Log.Level = s.logLevel
	}
	return c, nil
}

func (a *app) serveCommand() *cobra.Command {
	var s setup
	var hint bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the queues of a database on a Unix socket",
		Long: `Serve the queues of a database on a Unix socket until SIGTERM or SIGINT. Then no
more jobs are given out, and workers may settle what they hold until drain_timeout
(30s); a second signal ends that at once. Leases stay valid over a restart.

Without a config file: an SQLite database in $XDG_STATE_HOME/qsidecar (root:
/var/lib/qsidecar), one socket, and queues that are made by their first use.
QSIDECAR_DATABASE and QSIDECAR_SOCKET say otherwise; flags weigh more than the config
file, and the file more than the environment.

The config, and the files that it names, are regular files of at most 16 MiB: they are
read again whenever they change, which a pipe cannot be.

A server's database that cannot be reached, or takes longer than 15 s to open, is waited
for: the sockets are served, and requests answered ` + "`unavailable`" + ` until then. A wrong
password is an error.

Under systemd (deploy/systemd) it tells when it serves and how it goes, feeds the
watchdog, and takes over the sockets of a socket unit: those must be in the config's
` + "`listen`" + `; without a config, and without --socket, they are what it serves.

Exit codes: 0 stopped in order; 1 it could not serve, or not tell its database that it
stops, and leases end with host_lease in place of restart_grace; 2 wrong arguments or
config.`,
		Example: `  qsidecar serve
  qsidecar serve --database sqlite:/var/lib/app/jobs.db --socket /run/app/qsidecar.sock
  qsidecar serve --config /etc/qsidecar.yaml`,
		Args: takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if a.inherited, err = inherit(); err != nil {
				return err
			}
			c, err := a.config(s)
			if err != nil {
				return err
			}
			return a.serve(cmd.Context(), s, c, hint)
		},
	}
	s.flags(cmd)
	cmd.Flags().BoolVar(&hint, "hint", false, "print lines to try it out with")
	return cmd
}

func (a *app) serve(ctx context.Context, s setup, c config, hint bool) error {
	keepHeadroom()
	hangUps, stop := a.hangUps()
	defer stop()
	a.tells = true
	return a.withBridge(ctx, s, a.config, c, func(ctx context.Context, p *instance) error {
		serving := p.served()
		// Who started it may not listen to what it says: no reason to end.
		fmt.Fprintln(a.out, serving)
		p.began()
		p.manager.ready(serving)
		if hint {
			a.hint(c.Listen[0].Socket)
		}
		a.watch(ctx, p, hangUps)
		return nil
	})
}

// withBridge runs a sidecar and f beside it, once it is ready. The first signal
// drains it, the second ends it at once; it ends too when f returns. c is what read gave.
func (a *app) withBridge(ctx context.Context, s setup, read func(setup) (config, error), c config, f func(ctx context.Context, p *instance) error) (err error) {
	log, settings := a.changingLog(c.Log)
	defer settings.flush()
	a.errOut = settings.out // the last words too
	p := &instance{setup: s, read: read, ready: a.makeSocketDir, log: log, inherited: a.inherited, logs: settings, opens: a.opens}
	if p.opens == nil {
		p.opens = openAdopted
	}
	if a.tells {
		p.manager, p.patience = a.manager(log), cmp.Or(a.patience, openPatience)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ran := make(chan struct{})
	watched := a.watchSignals(p, cancel, ran)
	defer func() {
		close(ran)
		<-watched
	}()
	p.manager.tell("opening the databases")
	if err := p.start(ctx); err != nil {
		if ctx.Err() != nil {
			log.Info("stopped before it served")
			return nil
		}
		p.manager.tell("it could not start: " + err.Error())
		return err
	}
	defer func() { err = p.close(err) }()
	return a.run(ctx, cancel, p, f)
}

// run runs a sidecar that was made, and f beside it.
func (a *app) run(ctx context.Context, cancel context.CancelFunc, p *instance, f func(ctx context.Context, p *instance) error) error {
	ran := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() { p.manager.beat(ran, p.b) })
	beating.Go(func() { p.await(ctx) })
	beside := make(chan error, 1)
	go func() {
		select {
		case <-p.b.Ready():
			beside <- f(ctx, p)
			cancel()
		case <-ran:
			beside <- nil
		}
	}()
	err := p.b.Run(ctx)
	if err == nil {
		p.log.Info("stopped: what was asked is written, and leases stay valid for the restart grace")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = &codeError{exitFailure, err} // what a client's code would be for it says nothing here
	}
	close(ran)
	cancel()
	beating.Wait()
	return errors.Join(err, <-beside)
}

// watchSignals drains the sidecar at the first signal, or ends its start, and aborts at the second.
func (a *app) watchSignals(p *instance, drain context.CancelFunc, ran <-chan struct{}) <-chan struct{} {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for n := 0; ; n++ {
			select {
			case sig := <-a.signals:
				if n == 0 {
					p.log.Info("stopping: workers may settle what they hold; a second signal ends that", "signal", sig.String())
					p.manager.stops(max(time.Duration(p.longest.Load()), stopMargin))
					drain()
				} else if b := p.made.Load(); b != nil {
					b.Abort()
				}
			case <-ran:
				return
			}
		}
	}()
	return watched
}

// hint prints three lines that show the whole life of a job.
func (a *app) hint(socket string) {
	bin, err := os.Executable()
	if err != nil {
		bin = "qsidecar"
	}
	at := ""
	if a.socket != "" || a.getenv("QSIDECAR_SOCKET") != "" || socket != a.sockets()[0] {
		at = " --socket " + shellQuote(socket)
	}
	q := shellQuote(bin)
	_, _ = io.WriteString(a.out, "\nPaste these into another terminal:\n\n"+
		fmt.Sprintf("  %s enqueue mail 'hello, world'%s\n", q, at)+
		fmt.Sprintf("  job=$(%s claim mail --env%s) && eval \"$job\" && echo \"working on: $QSIDECAR_PAYLOAD\" && %s ack \"$QSIDECAR_LEASE\"%s\n", q, at, q, at)+
		fmt.Sprintf("  %s stats mail%s\n\n", q, at))
}
