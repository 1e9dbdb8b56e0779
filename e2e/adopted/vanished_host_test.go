package adopted

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
)

// vanishingPath is a network path from a host that can vanish: bytes sent before arrive, later ones do not,
// and no side learns that the connection is over.
type vanishingPath struct {
	net.Listener
	to     string
	frozen atomic.Bool
	mended chan struct{}
	mu     sync.Mutex
	open   []net.Conn
	done   sync.WaitGroup
}

// startVanishingPath forwards all connections of a listener, which it closes, to an address.
func startVanishingPath(t testing.TB, l net.Listener, to string) *vanishingPath {
	t.Helper()
	r := &vanishingPath{Listener: l, to: to, mended: make(chan struct{})}
	r.done.Go(r.accept)
	t.Cleanup(func() {
		close(r.mended)
		_ = l.Close()
		r.mu.Lock()
		for _, c := range r.open {
			_ = c.Close() // possibly it is already closed
		}
		r.mu.Unlock()
		r.done.Wait()
	})
	return r
}

func (v *vanishingPath) accept() {
	for {
		from, err := v.Accept()
		if err != nil {
			return // closed
		}
		to, err := net.Dial("tcp", v.to)
		if err != nil {
			_ = from.Close()
			continue
		}
		v.mu.Lock()
		v.open = append(v.open, from, to)
		v.mu.Unlock()
		v.done.Go(func() { v.carry(from, to) })
		v.done.Go(func() { v.carry(to, from) })
	}
}

// carry copies until the stream ends. While the path is frozen, it forwards no end.
func (v *vanishingPath) carry(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if v.frozen.Load() {
			<-v.mended
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				_ = to.(*net.TCPConn).CloseWrite() // possibly it is already closed
			}
			return
		}
	}
}

// farHost is a host in a network of two: two network namespaces with a link between them. The network of this machine doesn't
// change. If it did, Chromium, which other tests run at the same time, would end its requests with ERR_NETWORK_CHANGED.
type farHost struct {
	wrap     []string     // a command prefix that runs a command at the far host
	near     []string     // the same for the near one
	listener net.Listener // at the near host
}

// newFarHost creates one. It returns an error if this machine does not permit it.
func newFarHost(t testing.TB) (*farHost, error) {
	far, err := newNetworkNamespace(t)
	if err != nil {
		return nil, err
	}
	near, err := newNetworkNamespace(t)
	if err != nil {
		return nil, err
	}
	h := &farHost{wrap: inNamespace(far), near: inNamespace(near)}
	for _, c := range []struct {
		in      []string
		command string
	}{
		{h.near, fmt.Sprint("ip link add eth0 type veth peer name eth0 netns ", far)},
		{h.near, "ip addr add 198.18.0.1/30 dev eth0"}, // of 198.18.0.0/15, which is reserved for tests
		{h.near, "ip link set eth0 up"},
		{h.wrap, "ip addr add 198.18.0.2/30 dev eth0"},
		{h.wrap, "ip link set eth0 up"},
	} {
		args := slices.Concat(c.in, strings.Fields(c.command))
		if output, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, output)
		}
	}
	if h.listener, err = listenIn(near, "198.18.0.1:0"); err != nil {
		return nil, err
	}
	return h, nil
}

// newNetworkNamespace starts a process in a new network namespace, which exists until the test ends, and returns its id.
func newNetworkNamespace(t testing.TB) (pid int, err error) {
	keeper := exec.Command("unshare", "--net", "sh", "-c", "echo; exec sleep 3600")
	keeper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := keeper.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := keeper.Start(); err != nil {
		return 0, err
	}
	t.Cleanup(func() {
		_ = keeper.Process.Kill() // it may have ended
		_ = keeper.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		return 0, fmt.Errorf("unshare: %w", err)
	}
	return keeper.Process.Pid, nil
}

// inNamespace returns a command prefix that runs a command in the network namespace of a process.
func inNamespace(pid int) []string { return []string{"nsenter", "--target", fmt.Sprint(pid), "--net"} }

// listenIn listens in the network namespace of a process.
func listenIn(pid int, at string) (l net.Listener, err error) {
	there, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	defer there.Close()
	runtime.LockOSThread() // until it is back. The thread must not end, because processes end with the thread that started them (Pdeathsig)
	defer runtime.UnlockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer here.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	l, err = net.Listen("tcp", at)
	if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
		panic(fmt.Sprintf("can't return to the own network namespace: %v", err)) // nothing in this process could connect reliably
	}
	return l, err
}

// cut takes the link down.
func (f *farHost) cut(t testing.TB) {
	t.Helper()
	args := slices.Concat(f.near, strings.Fields("ip link set eth0 down"))
	if output, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}

// by returns the database's URL with another address.
func by(t testing.TB, at, addr string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = addr
	u.RawQuery = "sslmode=disable"
	if u.Scheme == "mysql" {
		u.RawQuery = "tls=false"
	}
	return u.String()
}

// checkVanishedHostOfB checks a host that vanishes without closing its connections. The server ends its
// transactions by its own timeout, within the lease time.
func checkVanishedHostOfB(t *testing.T, h adopt.Server, a adopt.Table) {
	how := "its network namespace was cut off"
	away, err := newFarHost(t)
	var l net.Listener
	if err == nil {
		l = away.listener
	} else {
		how = fmt.Sprintf("its packets were dropped on the way, because there is no network namespace (%v)", err)
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	r := startVanishingPath(t, l, h.Addr)
	b := newSharedTable(a, t, h, 2)
	s := kit.NewSite(t)
	s.URL, s.Queues, s.SidecarTimeout = by(t, b.s.URL, r.Addr().String()), "  "+a.Name+":"+a.Config, 20*time.Second // longer than a busy machine delays a heartbeat
	far := s.Sidecar("far")
	if away != nil {
		far.Wrap = away.wrap
	}
	far.Start()
	w := far.Dial()
	held := w.ClaimOne(a.Name)
	if got := b.own("own", 1); got[0] == held.ID {
		t.Fatalf("its own consumer takes %s, which the sidecar's worker has", held.ID)
	}
	b.finish("own", "2")
	if away != nil {
		away.cut(t)
	}
	r.frozen.Store(away == nil)
	began := kit.Monotonic()
	b.free("the row is free without its host", held.ID)
	took := kit.Since(began)
	b.failures("0")
	w.Post(kit.Msg{"op": "ack", "lease": held.Lease})
	if r := w.Next(); r.Error == nil {
		t.Errorf("an ack by a host that is cut off: %+v", r)
	}
	if got := strings.Join(b.db.Texts(`SELECT concat_ws(' ', id, CASE WHEN is_done THEN 't' ELSE 'f' END) FROM worker_queue ORDER BY id`), ","); got != "1 f,2 t" {
		t.Errorf("the rows are %s", got)
	}
	kit.Figure(t, "a host vanished (%s): the row that it held is free after %v (sidecar_timeout %v)", how, took.Round(time.Millisecond), s.SidecarTimeout)
}
