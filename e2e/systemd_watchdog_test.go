package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// watchdogIs sets the watchdog's time for the tests of it.
func (s *service) watchdogIs(d time.Duration) {
	s.t.Helper()
	s.write("/etc/systemd/system/"+unit+".d/watchdog.conf", fmt.Sprintf("[Service]\nWatchdogSec=%dms\n", d.Milliseconds()))
	s.do("systemctl daemon-reload")
}

const watchdogTime = 2 * time.Second

// unitStuck: a process that does nothing any more is killed and started again.
func unitStuck(t *testing.T, s *service) {
	s.watchdogIs(watchdogTime)
	s.config("{}\n")
	pid, _ := s.running()
	began := time.Now()
	s.do("kill -STOP %s", pid)
	eventually(t, patience, "each of its threads has stopped", func() bool {
		_, err := s.try("! grep -qv ') T ' /proc/" + pid + "/task/*/stat")
		return err == nil
	})
	waits := s.dial() // systemd's socket takes it
	waits.must(msg{"op": "ping"})
	figure(t, "a stopped process was killed and replaced %v later, WatchdogSec=%v", time.Since(began).Round(100*time.Millisecond), watchdogTime)
	if s.restarted(pid) == pid {
		t.Error("the stuck process goes on")
	}
	if got := s.property(unit, "StatusText"); !strings.HasPrefix(got, "serving on "+unitSocket+", database sqlite:/var/lib/qsidecar/qsidecar.db") {
		t.Errorf("without a database in the config: %s", got)
	}
	if said := s.journal(unit); !strings.Contains(said, "Watchdog timeout") || !strings.Contains(said, "SIGABRT") {
		t.Errorf("the journal does not say that it was the watchdog:\n%s", said)
	}
}

// unitDatabase: a database that is away for several times the watchdog's restarts nothing.
// Its password is a credential.
func unitDatabase(t *testing.T, s *service) {
	_, db := newPostgresSite(t)
	wire, url := db.network()
	s.watchdogIs(watchdogTime)
	s.do("%s", s.commands("password"))
	s.do("umask 077; echo secret >/etc/qsidecar/database.password")
	s.config("databases: {main: {url: '" + url + "', password_file: '${CREDENTIALS_DIRECTORY}/database', host_lease: 60s}}\n")
	pid, restarts := s.running()
	client := s.dial()
	client.enqueueN("q", 1)
	waits := s.dial()
	wire.poison(toxic("timeout", "upstream", "timeout", 0), toxic("timeout", "downstream", "timeout", 0)) // bytes vanish
	down := time.Now()
	waits.post(msg{"op": "enqueue", "queue": "q"}) // for the database
	asks := 0
	for ; time.Since(down) < 2*watchdogTime; asks++ {
		client.must(msg{"op": "ping"})
		time.Sleep(10 * time.Millisecond)
	}
	wire.proxy.Stop()
	for ; time.Since(down) < 4*watchdogTime; asks++ {
		client.refused("unavailable", msg{"op": "claim", "queue": "q"})
	}
	wire.start()
	eventually(t, patience, "the database is back", func() bool { return client.ask(msg{"op": "enqueue", "queue": "q"}).Error == nil })
	if now, times := s.running(); now != pid || times != restarts {
		t.Errorf("the service was restarted for its database: process %s, then %s; %s restarts, then %s", pid, now, restarts, times)
	}
	figure(t, "the database was silent, then away, %v in all (%d requests were answered meanwhile), WatchdogSec=%v: not restarted", time.Since(down).Round(100*time.Millisecond), asks, watchdogTime)
	client.Close()
	s.do("rm /etc/systemd/system/%s.d/password.conf", unit)
}
