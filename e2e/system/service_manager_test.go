package system

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// manager is a service manager from a service's view: the messages that it gets, and the sockets
// that it creates.
type manager struct {
	t    *testing.T
	path string
	told chan string
}

func newManager(t *testing.T, dir string) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(dir, "notify"), told: make(chan string, 1000)}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go func() {
		for buf := make([]byte, 64<<10); ; {
			n, err := socket.Read(buf)
			if err != nil {
				return // the test has ended
			}
			if n > 4<<10 {
				t.Errorf("a message of %d bytes: systemd ignores it, and stays at what it heard before", n)
			}
			m.told <- string(buf[:n])
		}
	}()
	return m
}

// start starts a service, with sockets as descriptors from 3 on.
func (m *manager) start(sc *kit.Sidecar, watchdog time.Duration, sockets ...net.Listener) {
	m.t.Helper()
	sc.Env = []string{"NOTIFY_SOCKET=" + m.path, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()),
		fmt.Sprintf("LISTEN_FDS=%d", len(sockets)), "LISTEN_FDNAMES=" + strings.Repeat("qsidecar.socket:", len(sockets))}
	sc.Files = nil
	for _, ln := range sockets {
		f, err := ln.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { f.Close() })
		sc.Files = append(sc.Files, f)
	}
	sc.Wrap = []string{"sh", "-c", `LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$@"`, "sh"}
	sc.Launch()
}

// expect waits for a message that contains all of these lines, or their prefixes.
func (m *manager) expect(lines ...string) {
	m.t.Helper()
	var others []string
	for {
		output := testwait.Receive(m.t, fmt.Sprintf("the service manager gets %q after %q", lines, others), m.told)
		if all := strings.Split(output, "\n"); !slices.ContainsFunc(lines, func(want string) bool {
			return !slices.ContainsFunc(all, func(line string) bool { return strings.HasPrefix(line, want) })
		}) {
			return
		}
		others = append(others, output)
	}
}

// listen creates a socket.
func (m *manager) listen(path string) net.Listener {
	m.t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { ln.Close() })
	return ln
}

// TestServiceManager checks the messages to a service manager during a sidecar's life. The
// manager's socket is served unchanged, and exists after the sidecar has ended.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Extra = "drain_timeout: 60s\n"
	a := s.Sidecar("a")
	m := newManager(t, s.Dir)
	ln := m.listen(a.Socket)
	m.start(a, 2*time.Second, ln)
	m.expect("READY=1", "STATUS=serving on "+a.Socket+", database sqlite:")
	c := a.Dial()
	c.Must(kit.Msg{"op": "ping"})
	for range 3 {
		m.expect("WATCHDOG=1")
	}
	good, err := os.ReadFile(a.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(a.ConfigFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(string(good) + "limits: {jobs_per_connection: 77}\n")
	m.expect("RELOADING=1")
	m.expect("READY=1", "STATUS=serving on "+a.Socket+", database sqlite:"+filepath.Join(s.Dir, "q.db")+", config generation 2")
	write(string(good) + wrongKeys(300))
	m.expect("RELOADING=1")
	m.expect("READY=1", "STATUS=serving on "+a.Socket)
	write(strings.ReplaceAll(string(good), a.Socket, a.Socket+"2"))
	testwait.Until(t, "leaving the manager's socket out is refused", func() bool {
		return strings.Contains(c.Must(kit.Msg{"op": "status"}).ConfigError, "hands over the socket "+a.Socket)
	})
	write(string(good))
	testwait.Until(t, "the config is well again", func() bool { return c.Must(kit.Msg{"op": "status"}).ConfigError == "" })

	c.Enqueue("q", 1)
	job := c.ClaimOne("q")
	a.Signal(syscall.SIGTERM)
	m.expect("STOPPING=1", "EXTEND_TIMEOUT_USEC=105000000") // 60s, a sidecar_timeout of 30s, and 15s
	m.expect("WATCHDOG=1")                                  // while a worker holds a job
	c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	if code := a.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(a.Socket + ".lock"); err == nil {
		t.Error("there is a lock of another owner's socket")
	}
	waits := a.Dial()
	m.start(a, time.Hour, ln)
	waits.Must(kit.Msg{"op": "ping"})
}

// TestServiceManagerOfOthers checks that variables for another process have no effect, and that a
// socket which can't be served is an error with the reason.
func TestServiceManagerOfOthers(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Sidecar("a")
	a.Env = []string{"LISTEN_PID=1", "LISTEN_FDS=1", "WATCHDOG_PID=1", "WATCHDOG_USEC=1", "NOTIFY_SOCKET=" + filepath.Join(s.Dir, "none")}
	a.Start()
	a.Dial().Must(kit.Msg{"op": "ping"})
	untold := func() int { return strings.Count(a.Log(), "event=service_manager_unreachable") }
	testwait.Until(t, "the missing listener is logged", func() bool { return untold() > 0 })
	if n := untold(); n != 1 {
		t.Errorf("the missing listener is logged %d times, want once:\n%s", n, a.Log())
	}

	m := newManager(t, s.Dir)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	other := m.listen(filepath.Join(s.Dir, "other.sock"))
	for name, row := range map[string]struct {
		socket net.Listener
		words  []string
	}{
		"tcp":     {tcp, []string{"qsidecar.socket", "descriptor 3", "only Unix stream sockets"}},
		"unknown": {other, []string{"hands over the socket " + other.Addr().String(), "not in the list"}},
	} {
		b := s.Sidecar(name)
		m.start(b, time.Hour, row.socket)
		if code := b.WaitExit(); code != 2 {
			t.Errorf("%s: exit code %d, want 2", name, code)
		}
		for _, w := range row.words {
			if !strings.Contains(b.Log(), w) {
				t.Errorf("%s: it does not say %q:\n%s", name, w, b.Log())
			}
		}
	}
}
