package adopted

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
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

// startVanishingPath listens at an address and forwards everything to another one.
func startVanishingPath(t testing.TB, at, to string) *vanishingPath {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
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

func (r *vanishingPath) accept() {
	for {
		from, err := r.Accept()
		if err != nil {
			return // closed
		}
		to, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = from.Close()
			continue
		}
		r.mu.Lock()
		r.open = append(r.open, from, to)
		r.mu.Unlock()
		r.done.Go(func() { r.carry(from, to) })
		r.done.Go(func() { r.carry(to, from) })
	}
}

// carry copies until the stream ends. While the path is frozen, it forwards no end.
func (r *vanishingPath) carry(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if r.frozen.Load() {
			<-r.mended
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

// networkNamespace is a network namespace with one link to this one.
type networkNamespace struct {
	wrap []string // a command prefix that runs a command in it
	here string   // address of this end
	link string
}

// newNetworkNamespace creates one. It returns an error if this machine does not permit it.
func newNetworkNamespace(t testing.TB) (*networkNamespace, error) {
	// A separate process keeps the namespace for as long as the test runs.
	keeper := exec.Command("unshare", "--net", "sh", "-c", "echo; exec sleep 3600")
	keeper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := keeper.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := keeper.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		_ = keeper.Process.Kill() // it may have ended
		_ = keeper.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("unshare: %w", err)
	}
	pid := fmt.Sprint(keeper.Process.Pid)
	in := []string{"nsenter", "--target", pid, "--net"}
	number := keeper.Process.Pid % (1 << 14)
	net := fmt.Sprintf("198.18.%d.", number>>6) // of 198.18.0.0/15, which is reserved for tests
	i := &networkNamespace{wrap: in, here: fmt.Sprint(net, number&63*4+1), link: fmt.Sprint("qs", keeper.Process.Pid)}
	for _, c := range []string{
		"ip link add " + i.link + " type veth peer name eth0 netns " + pid,
		"ip addr add " + i.here + "/30 dev " + i.link,
		"ip link set " + i.link + " up",
		strings.Join(in, " ") + fmt.Sprintf(" ip addr add %s%d/30 dev eth0", net, number&63*4+2),
		strings.Join(in, " ") + " ip link set eth0 up",
	} {
		args := strings.Fields(c)
		if output, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", c, err, output)
		}
	}
	return i, nil
}

// cut takes the link down.
func (i *networkNamespace) cut(t testing.TB) {
	t.Helper()
	if output, err := exec.Command("ip", "link", "set", i.link, "down").CombinedOutput(); err != nil {
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
func checkVanishedHostOfB(t *testing.T, h kit.TableServer, a kit.Adoption) {
	how, at := "its network namespace was cut off", "127.0.0.1:0"
	away, err := newNetworkNamespace(t)
	if err != nil {
		how = fmt.Sprintf("what it sent was lost on the way, for no network namespace can be had (%v)", err)
	} else {
		at = away.here + ":0"
	}
	r := startVanishingPath(t, at, h.Addr)
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
