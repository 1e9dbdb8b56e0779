package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/internal/logging"
	"github.com/qsidecar/qsidecar/protocol"
)

// Options configure a sidecar.
type Options struct {
	Input     config.Input
	Load      func() (config.Config, error) // loads the current config
	Log       *logging.Log
	Signals   <-chan os.Signal // the first drains the sidecar, the second aborts it
	Inherited []*net.UnixListener
	Open      databases.Opener // nil: databases.Open

	Version, Revision string // of the program

	// Check examines a config and its databases, as `qsidecar check` does. Nil: the op check is unsupported.
	Check func(ctx context.Context, c *config.Config, log *slog.Logger) []protocol.Finding

	// Managed: Run notifies the service manager, and waits for unreachable databases.
	Managed     bool
	OpenTimeout time.Duration // how long the start waits for databases if Managed is set; 0: 15 s
}

// StopError is the error of a sidecar that didn't stop in order.
type StopError struct{ Err error }

func (e *StopError) Error() string { return e.Err.Error() }
func (e *StopError) Unwrap() error { return e.Err }

// Run runs a sidecar until a signal, or until f returns. It calls f once the sidecar is
// ready.
func Run(ctx context.Context, o Options, f func(ctx context.Context, p *Daemon) error) (err error) {
	p := &Daemon{input: o.Input, load: o.Load, log: o.Log, inherited: o.Inherited, openFunc: o.Open, version: o.Version, revision: o.Revision, checkFunc: o.Check}
	if p.openFunc == nil {
		p.openFunc = databases.Open
	}
	if o.Managed {
		p.manager, p.openTimeout = newServiceManager(o.Input, o.Log.Logger), cmp.Or(o.OpenTimeout, openTimeout)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ran := make(chan struct{})
	watched := p.watchSignals(o.Signals, cancel, ran)
	defer func() {
		close(ran)
		<-watched
	}()
	p.manager.notify("opening the databases")
	if err := p.start(ctx); err != nil {
		if ctx.Err() != nil {
			p.log.Info("stopped before serving", "event", "stopped_before_serving")
			return nil
		}
		p.manager.notify("can't start: " + err.Error())
		return err
	}
	defer func() { err = p.close(err) }()
	return p.run(ctx, cancel, f)
}

// run runs the bridge and f.
func (d *Daemon) run(ctx context.Context, cancel context.CancelFunc, f func(ctx context.Context, p *Daemon) error) error {
	ran := make(chan struct{})
	var background sync.WaitGroup
	background.Go(func() { d.manager.feedWatchdog(ran, d.bridge) })
	background.Go(func() { d.retryPending(ctx) })
	extra := make(chan error, 1)
	go func() {
		select {
		case <-d.bridge.Ready():
			extra <- f(ctx, d)
			cancel()
		case <-ran:
			extra <- nil
		}
	}()
	err := d.bridge.Run(ctx)
	if err == nil {
		d.log.Info("stopped", "event", "stopped")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = &StopError{err}
	}
	close(ran)
	cancel()
	background.Wait()
	return errors.Join(err, <-extra)
}

// watchSignals drains the sidecar at the first signal, or cancels its start. It aborts at
// the second signal.
func (d *Daemon) watchSignals(signals <-chan os.Signal, drain context.CancelFunc, ran <-chan struct{}) <-chan struct{} {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for n := 0; ; n++ {
			select {
			case sig := <-signals:
				if n == 0 {
					d.log.Info("stopping", "event", "stopping", "signal", sig.String())
					d.manager.notifyStopping(max(time.Duration(d.stopTimeout.Load()), stopMargin))
					drain()
				} else if b := d.bridgePtr.Load(); b != nil {
					b.Abort()
				}
			case <-ran:
				return
			}
		}
	}()
	return watched
}
