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

// manager is a service manager as far as a service sees it: what it is told, and the
// sockets that it makes.
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
				return // the test is over
			}
			if n > 4<<10 {
				t.Errorf("a message of %d bytes: systemd ignores it, and stays at what it heard before", n)
			}
			m.told <- string(buf[:n])
		}
	}()
	return m
}

// starts is how it starts a service: with sockets as descriptors from 3 on.
func (m *manager) starts(sc *kit.Sidecar, watchdog time.Duration, sockets ...net.Listener) {
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

// hears waits for a message with all of these lines, or their beginnings.
func (m *manager) hears(lines ...string) {
	m.t.Helper()
	var others []string
	for {
		said := testwait.Receive(m.t, fmt.Sprintf("the service manager is told %q after %q", lines, others), m.told)
		if all := strings.Split(said, "\n"); !slices.ContainsFunc(lines, func(want string) bool {
			return !slices.ContainsFunc(all, func(line string) bool { return strings.HasPrefix(line, want) })
		}) {
			return
		}
		others = append(others, said)
	}
}

// listens makes a socket.
func (m *manager) listens(path string) net.Listener {
	m.t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { ln.Close() })
	return ln
}

// TestServiceManager: what a service manager is told in a sidecar's life; its socket is
// served as it is, and outlives the sidecar.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Extra = "drain_timeout: 60s\n"
	a := s.Sidecar("a")
	m := newManager(t, s.Dir)
	ln := m.listens(a.Socket)
	m.starts(a, 2*time.Second, ln)
	m.hears("READY=1", "STATUS=serving on "+a.Socket+", database sqlite:")
	c := a.Dial()
	c.Must(kit.Msg{"op": "ping"})
	for range 3 {
		m.hears("WATCHDOG=1")
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
	write(string(good) + "limits: {held: 77}\n")
	m.hears("RELOADING=1")
	m.hears("READY=1", "STATUS=serving on "+a.Socket+", database sqlite:"+filepath.Join(s.Dir, "q.db")+", config generation 2")
	write(string(good) + wrongKeys(300))
	m.hears("RELOADING=1")
	m.hears("READY=1", "STATUS=serving on "+a.Socket)
	write(strings.ReplaceAll(string(good), a.Socket, a.Socket+"2"))
	testwait.Until(t, "leaving the manager's socket out is refused", func() bool {
		return strings.Contains(c.Must(kit.Msg{"op": "status"}).ConfigError, "hands over the socket "+a.Socket)
	})
	write(string(good))
	testwait.Until(t, "the config is well again", func() bool { return c.Must(kit.Msg{"op": "status"}).ConfigError == "" })

	c.Enqueue("q", 1)
	job := c.ClaimOne("q")
	a.Signal(syscall.SIGTERM)
	m.hears("STOPPING=1", "EXTEND_TIMEOUT_USEC=105000000") // 60s, a host_lease of 30s, and 15s
	m.hears("WATCHDOG=1")                                  // while a worker holds a job
	c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	if code := a.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(a.Socket + ".lock"); err == nil {
		t.Error("there is a lock of a socket of somebody else's")
	}
	waits := a.Dial()
	m.starts(a, time.Hour, ln)
	waits.Must(kit.Msg{"op": "ping"})
}

// TestServiceManagerOfOthers: what was said to another process is nothing to this one, and
// what cannot be served is refused with the reason.
func TestServiceManagerOfOthers(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Sidecar("a")
	a.Env = []string{"LISTEN_PID=1", "LISTEN_FDS=1", "WATCHDOG_PID=1", "WATCHDOG_USEC=1", "NOTIFY_SOCKET=" + filepath.Join(s.Dir, "none")}
	a.Start()
	a.Dial().Must(kit.Msg{"op": "ping"})
	untold := func() int { return strings.Count(a.Log(), "the service manager cannot be notified") }
	testwait.Until(t, "that nobody hears it is said", func() bool { return untold() > 0 })
	if n := untold(); n != 1 {
		t.Errorf("that nobody hears it is said %d times, want once:\n%s", n, a.Log())
	}

	m := newManager(t, s.Dir)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	other := m.listens(filepath.Join(s.Dir, "other.sock"))
	for name, row := range map[string]struct {
		socket net.Listener
		words  []string
	}{
		"tcp":     {tcp, []string{"qsidecar.socket", "descriptor 3", "only Unix stream sockets"}},
		"unknown": {other, []string{"hands over the socket " + other.Addr().String(), "not in the list"}},
	} {
		b := s.Sidecar(name)
		m.starts(b, time.Hour, row.socket)
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
