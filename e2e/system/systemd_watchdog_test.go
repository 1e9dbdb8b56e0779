package system

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/proxy"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// watchdogIs sets the watchdog's time.
func (s *service) watchdogIs(d time.Duration) {
	s.t.Helper()
	s.write("/etc/systemd/system/"+unit+".d/watchdog.conf", fmt.Sprintf("[Service]\nWatchdogSec=%dms\n", d.Milliseconds()))
	s.do("systemctl daemon-reload")
}

const watchdogTime = 2 * time.Second

// unitStuck checks that a stopped process is killed and restarted.
func unitStuck(t *testing.T, s *service) {
	s.watchdogIs(watchdogTime)
	s.config("{}\n")
	pid, _ := s.running()
	began := kit.Monotonic()
	s.do("kill -STOP %s", pid)
	testwait.Until(t, "each of its threads has stopped", func() bool {
		_, err := s.try("! grep -qv ') T ' /proc/" + pid + "/task/*/stat")
		return err == nil
	})
	// systemd's socket accepts each connection. systemd sends SIGABRT, then SIGCONT, so the process
	// continues for a moment before it ends. A connection that it takes in this moment ends with it,
	// and the client connects again.
	c := &callers{socket: s.path(unitSocket), over: make(chan struct{})}
	c.join(1, "waiting client", func(m *caller) { m.ask(kit.Msg{"op": "ping"}) })
	c.stop(t)
	kit.Figure(t, "a stopped process was killed and replaced %v later, WatchdogSec=%v", kit.Since(began).Round(100*time.Millisecond), watchdogTime)
	if s.restarted(pid) == pid {
		t.Error("the stuck process goes on")
	}
	if got := s.property(unit, "StatusText"); !strings.HasPrefix(got, "serving on "+unitSocket+", database sqlite:/var/lib/qsidecar/qsidecar.db") {
		t.Errorf("without a database in the config: %s", got)
	}
	if output := s.journal(unit); !strings.Contains(output, "Watchdog timeout") || !strings.Contains(output, "SIGABRT") {
		t.Errorf("the journal does not name the watchdog:\n%s", output)
	}
}

// unitDatabase checks that a database which is silent, and then down, does not stop the service's
// watchdog messages. Its password is a credential.
func unitDatabase(t *testing.T, s *service) {
	_, db := kit.NewPostgresSite(t)
	wire, url := db.Proxy()
	const patient = 20 * time.Second // longer than a busy machine delays a watchdog message
	s.watchdogIs(patient)
	s.do("%s", s.commands("password"))
	s.do("umask 077; echo secret >/etc/qsidecar/database.password")
	s.config("databases: {main: {url: '" + url + "', password_file: '${CREDENTIALS_DIRECTORY}/database', sidecar_timeout: 60s}}\n")
	pid, restarts := s.running()
	client := s.dial()
	client.Enqueue("q", 1)
	waits := s.dial()
	wire.AddToxics(proxy.Toxic("timeout", "upstream", "timeout", 0), proxy.Toxic("timeout", "downstream", "timeout", 0)) // drops all bytes
	down := kit.Monotonic()
	waits.Post(kit.Msg{"op": "enqueue", "queue": "q"}) // waits for the database
	asks := 0
	// keptAlive waits for the service's next two watchdog messages, under requests.
	keptAlive := func(ask func()) {
		t.Helper()
		for range 2 {
			last := s.property(unit, "WatchdogTimestampMonotonic")
			testwait.Until(t, "the service sends a watchdog message", func() bool {
				ask()
				asks++
				return s.property(unit, "WatchdogTimestampMonotonic") != last
			})
		}
	}
	keptAlive(func() { client.Must(kit.Msg{"op": "ping"}) })
	wire.Proxy.Stop()
	keptAlive(func() { client.MustFail("unavailable", kit.Msg{"op": "claim", "queue": "q"}) })
	wire.Start()
	testwait.Until(t, "the database is back", func() bool { return client.Exchange(kit.Msg{"op": "enqueue", "queue": "q"}).Error == nil })
	if now, times := s.running(); now != pid || times != restarts {
		t.Errorf("the service was restarted for its database: process %s, then %s; %s restarts, then %s", pid, now, restarts, times)
	}
	kit.Figure(t, "the database was silent, then away, %v in all (%d requests were answered meanwhile), WatchdogSec=%v: not restarted", kit.Since(down).Round(100*time.Millisecond), asks, patient)
	client.Close()
	s.do("rm /etc/systemd/system/%s.d/password.conf", unit)
}
