package daemon

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// fakeProber answers the watchdog's checks.
type fakeProber struct{ alive, answers func(context.Context) error }

var healthyProber = fakeProber{healthy, healthy}

// currentProber returns the current prober.
type currentProber func() *fakeProber

func (c currentProber) Alive(ctx context.Context) error   { return c().alive(ctx) }
func (c currentProber) Answers(ctx context.Context) error { return c().answers(ctx) }

func healthy(context.Context) error { return nil }

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestWatchdogIsFedByChecks checks that a sidecar with a stuck part stops feeding the
// watchdog, checks itself again in the remaining time, and resumes when it recovers.
func TestWatchdogIsFedByChecks(t *testing.T) {
	for name, stuck := range map[string]*fakeProber{"parts": {hangs, healthy}, "sockets": {healthy, hangs}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex // guards checks, notified and now
				var checks, notified int
				now := &healthyProber
				replace := func(p *fakeProber) {
					mu.Lock()
					defer mu.Unlock()
					now, checks, notified = p, 0, 0
				}
				prober := func() *fakeProber {
					mu.Lock()
					defer mu.Unlock()
					checks++
					return now
				}
				counts := func() (int, int) {
					synctest.Wait()
					mu.Lock()
					defer mu.Unlock()
					return checks, notified
				}
				log := new(lockedBuffer)
				m := &serviceManager{log: slog.New(slog.NewTextHandler(log, nil)), watchdog: 30 * time.Second}
				m.send = func(message string) error {
					mu.Lock()
					defer mu.Unlock()
					if message != daemon.SdNotifyWatchdog {
						t.Errorf("the manager was sent %q", message)
					}
					notified++
					return nil
				}
				ran, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					m.feedWatchdog(ran, currentProber(prober))
				}()
				time.Sleep(5*time.Minute + time.Second)
				if _, notified := counts(); notified != 20 {
					t.Errorf("%d notifications in 5 minutes, want one each 15 s", notified)
				}
				replace(stuck)
				time.Sleep(29 * time.Second) // just before systemd would kill it
				if checks, notified := counts(); notified != 0 || checks < 2 || !strings.Contains(log.String(), "event=no_progress") {
					t.Errorf("stuck: %d notifications, %d checks; the log: %s", notified, checks, log)
				}
				replace(&healthyProber)
				time.Sleep(15 * time.Second)
				if _, notified := counts(); notified == 0 {
					t.Error("it goes on, and gives no sign of life")
				}
				replace(stuck)
				m.stopping.Store(true)
				time.Sleep(time.Minute)
				if _, notified := counts(); notified < 2 {
					t.Errorf("while it stops: %d notifications in a minute", notified)
				}
				close(ran)
				<-ended
			})
		})
	}
}

// TestInheritedSocketsAreBounded checks that a wrong LISTEN_FDS is rejected before any descriptor
// is used.
func TestInheritedSocketsAreBounded(t *testing.T) {
	for count, refused := range map[string]bool{
		"1000000000": true, "101": true, "99999999999999999999": true, "-1": true, "many": true, "": false, "0": false,
	} {
		t.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
		t.Setenv("LISTEN_FDS", count)
		_, err := InheritedSockets()
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), "LISTEN_FDS is "+strconv.Quote(count)) {
			t.Errorf("LISTEN_FDS=%s: %v", count, err)
		}
	}
	t.Setenv("LISTEN_PID", "1") // of another process
	t.Setenv("LISTEN_FDS", "1000000000")
	if got, err := InheritedSockets(); err != nil || got != nil {
		t.Errorf("the variables of another process: %v, %v", got, err)
	}
}
