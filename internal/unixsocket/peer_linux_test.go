package unixsocket

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOverflow: only a namespace without some users needs a number for them.
func TestOverflow(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(dir, fmt.Sprint(len(text), "-", strings.Count(text, "\n")))
		write(t, path, text)
		return path
	}
	for _, c := range []struct {
		number, idMap string
		want          overflow
	}{
		{"65534\n", "         0          0 4294967295\n", overflow{65534, true}},
		{"65534\n", "0 0 2147483648\n2147483648 2147483648 2147483647\n", overflow{65534, true}},
		{"65534\n", "0 1000 1\n", overflow{65534, false}},
		{"65534\n", "0 100000 65536\n", overflow{65534, false}}, // a container that has a user of that number
		{"60001\n", "", overflow{60001, false}},
		{"", "?", overflow{65534, false}},
	} {
		if got := readOverflow(file(c.number), file(c.idMap)); got != c.want {
			t.Errorf("%q, %q: %+v, want %+v", c.number, c.idMap, got, c.want)
		}
	}
	if got := readOverflow(dir+"/none", dir+"/none"); got != (overflow{65534, false}) {
		t.Errorf("without /proc: %+v", got)
	}
}

// TestPeerIDs: an unknown user and unknown groups have no number that a rule can have.
func TestPeerIDs(t *testing.T) {
	some, none := overflow{id: 65534}, overflow{id: 65534, none: true}
	cred := &unix.Ucred{Uid: 65534, Gid: 65534, Pid: 7}
	if got := newPeer(cred, []uint32{5, 65534, 6}, some, some); !reflect.DeepEqual(got, Peer{UID: UnknownUser, Groups: []uint32{5, 6}, PID: 7}) {
		t.Errorf("in a namespace without some users: %+v", got)
	}
	if got := newPeer(cred, []uint32{5}, none, none); !reflect.DeepEqual(got, Peer{UID: 65534, Groups: []uint32{65534, 5}, PID: 7}) {
		t.Errorf("in a namespace with all users: %+v", got)
	}
	unknown := &Peer{UID: UnknownUser}
	if text := unknown.String() + unknown.LogValue().String(); strings.Contains(text, "4294967295") || strings.Contains(text, "pid") {
		t.Errorf("an unknown peer: %s", text)
	}
}

// envNamespace names the socket of a child of TestPeerOfAnotherUserNamespace.
const envNamespace = "QSIDECAR_TEST_NAMESPACE_SOCKET"

// TestPeerOfAnotherUserNamespace runs itself in a user namespace that has neither this process's user nor its groups.
func TestPeerOfAnotherUserNamespace(t *testing.T) {
	if path := os.Getenv(envNamespace); path != "" {
		conn, err := net.Dial("unix", path) //nolint:gosec // the parent sent the path
		do(t, err)
		defer conn.Close()
		ln, err := net.Listen("unix", path+".2")
		do(t, err)
		defer ln.Close()
		_, err = conn.Write([]byte("x"))
		do(t, err)
		from, err := ln.Accept()
		do(t, err)
		p, err := peerOf(from.(*net.UnixConn))
		do(t, err)
		fmt.Fprintf(conn, "%d %v %v", p.UID, p.Groups, p.IsKnown())
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can map another user")
	}
	dir := shortDir(t)
	do(t, os.Chmod(dir, 0o777))
	path := filepath.Join(dir, "q")
	ln, err := net.Listen("unix", path)
	do(t, err)
	defer ln.Close()
	do(t, os.Chmod(path, 0o777))
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestPeerOfAnotherUserNamespace$")
	cmd.Env = []string{envNamespace + "=" + path}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 4242, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 4242, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0},
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("this system has no user namespaces: %v", err)
	}
	conn, err := ln.Accept()
	do(t, err)
	defer conn.Close()
	buf := make([]byte, 200)
	_, err = conn.Read(buf)
	do(t, err)
	to, err := net.Dial("unix", path+".2")
	do(t, err)
	defer to.Close()
	n, err := conn.Read(buf)
	do(t, err)
	if got := string(buf[:n]); got != fmt.Sprintf("%d [] false", uint32(UnknownUser)) {
		t.Errorf("the peer is %s", got)
	}
	do(t, cmd.Wait())
}
