package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/internal/config"
)

// serviceManager notifies the service manager that started this process (systemd,
// sd_notify(3)). A nil one does nothing.
type serviceManager struct {
	log           *slog.Logger
	send          func(message string) error
	watchdog      time.Duration // interval in which it expects a sign of life; 0: none
	stopping      atomic.Bool
	failureLogged atomic.Bool // a failed notification was logged
}

// newServiceManager returns nil if no service manager expects notifications.
func newServiceManager(in config.Input, log *slog.Logger) *serviceManager {
	if socket, _ := in.Env("NOTIFY_SOCKET"); socket == "" {
		return nil
	}
	m := &serviceManager{log: log, send: func(message string) error {
		_, err := daemon.SdNotify(false, message)
		return err
	}}
	var err error
	if m.watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		log.Warn("service manager watchdog disabled", "event", "watchdog_disabled", "error", err)
	}
	return m
}

// statusLimit is the limit of a status in bytes. systemd ignores a whole message of more
// than 4 KiB, and with it that the service is ready.
const statusLimit = 1 << 10

// notify sends a status, which `systemctl status` shows, and further assignments.
func (s *serviceManager) notify(status string, lines ...string) {
	if s == nil {
		return
	}
	if status != "" {
		status = strings.Join(strings.Fields(status), " ")
		if end := statusLimit; len(status) > end {
			for !utf8.RuneStart(status[end]) {
				end--
			}
			status = status[:end] + "…"
		}
		lines = append(lines, "STATUS="+status)
	}
	if err := s.send(strings.Join(lines, "\n")); err != nil && !s.failureLogged.Swap(true) {
		s.log.Warn("can't notify the service manager", "event", "service_manager_unreachable", "error", err)
	}
}

// notifyReady reports that the sidecar serves.
func (s *serviceManager) notifyReady(serving string) { s.notify(serving, daemon.SdNotifyReady) }

// notifyReloading reports that a reload has begun. notifyReady ends it.
func (s *serviceManager) notifyReloading() {
	s.notify("reloading the config", daemon.SdNotifyReloading)
}

// notifyStopping reports that the sidecar drains and ends within that time.
func (s *serviceManager) notifyStopping(within time.Duration) {
	if s == nil {
		return
	}
	s.stopping.Store(true)
	s.notify("stopping: workers can settle their jobs", daemon.SdNotifyStopping,
		fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", within.Microseconds()))
}

// errNotInTime means that a check of the sidecar timed out.
var errNotInTime = errors.New("not in time")

// livenessProber is a bridge.Bridge.
type livenessProber interface {
	Alive(context.Context) error   // whether its goroutines make progress
	Answers(context.Context) error // whether its sockets answer
}

// feedWatchdog notifies the watchdog twice per interval until ran is closed. Before each
// time it checks b, so that systemd kills a sidecar that is stuck. Each check takes a
// quarter of the interval at most, so at least two checks fit in. While the sidecar stops,
// its own time limit applies instead.
func (s *serviceManager) feedWatchdog(ran <-chan struct{}, b livenessProber) {
	if s == nil || s.watchdog == 0 {
		return
	}
	next := time.NewTimer(s.watchdog / 2)
	defer next.Stop()
	for {
		select {
		case <-ran:
			return
		case <-next.C:
		}
		if err := s.check(b); err != nil {
			s.log.Error("sidecar makes no progress", "event", "no_progress", "error", err)
			next.Reset(s.watchdog / 16)
			continue
		}
		s.notify("", daemon.SdNotifyWatchdog)
		next.Reset(s.watchdog / 2)
	}
}

func (s *serviceManager) check(b livenessProber) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.watchdog/4, errNotInTime)
	defer cancel()
	err := b.Alive(ctx)
	if err == nil {
		err = b.Answers(ctx)
	}
	if s.stopping.Load() {
		return nil
	}
	return err
}

// InheritedSockets returns the sockets that the service manager passed to this process
// (sd_listen_fds(3)). Child processes inherit neither the sockets nor the variables.
func InheritedSockets() (listeners []*net.UnixListener, err error) {
	if err := checkInherited(); err != nil {
		return nil, err
	}
	for i, f := range activation.Files(true) {
		ln, e := inheritOne(f)
		if e != nil {
			err = errors.Join(err, config.Errorf("the service manager hands over the socket %s (descriptor %d), which cannot be served: %w: "+
				"take it out of the socket unit, and restart that and the service", f.Name(), 3+i, e))
			continue
		}
		listeners = append(listeners, ln)
	}
	return listeners, err
}

// maxInherited limits the sockets from the service manager. The library uses each descriptor up
// to LISTEN_FDS, also those that don't exist.
const maxInherited = 100

func checkInherited() error {
	count := os.Getenv("LISTEN_FDS")
	if count == "" || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil
	}
	if n, err := strconv.Atoi(count); err != nil || n < 0 || n > maxInherited {
		return config.Errorf("LISTEN_FDS is %.20q, and must be the number of sockets that the service manager hands over, 0 to %d: correct or unset it", count, maxInherited)
	}
	return nil
}

func inheritOne(f *os.File) (*net.UnixListener, error) {
	switch listens, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN); {
	case err != nil:
		return nil, fmt.Errorf("it is not a socket: %w", err)
	case listens == 0:
		return nil, errors.New("it does not listen (Accept=yes hands over connections; leave that out)")
	}
	ln, err := net.FileListener(f) // it duplicates the descriptor
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	if u, ok := ln.(*net.UnixListener); ok && ln.Addr().Network() == "unix" && strings.HasPrefix(ln.Addr().String(), "/") {
		return u, nil
	}
	return nil, errors.Join(fmt.Errorf("it is %s %s, and only Unix stream sockets with a path are", ln.Addr().Network(), ln.Addr()), ln.Close())
}
