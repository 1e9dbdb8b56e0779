// Package dialtest checks the network connections that an engine opens.
package dialtest

import (
	"context"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/backends/internal/dial"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Options checks the options of the socket that open connects to a host. The host accepts the connection, and then closes it.
func Options(t *testing.T, open func(ctx context.Context, host string) error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	opened := make(chan error, 1)
	ctx, cancel := context.WithCancel(testwait.Context(t))
	defer cancel()
	go func() { opened <- open(ctx, l.Addr().String()) }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	fd := socketOf(t, c.RemoteAddr().(*net.TCPAddr).Port)
	for name, o := range map[string]struct{ level, option, want int }{
		"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"TCP_KEEPCNT":      {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5},
		"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(dial.Timeout.Milliseconds())},
	} {
		testwait.Until(t, fmt.Sprintf("%s is %d", name, o.want), func() bool { // some options are set after the host accepted
			got, err := unix.GetsockoptInt(fd, o.level, o.option)
			return err == nil && got == o.want
		})
	}
	cancel()
	_ = c.Close()
	if err := testwait.Receive(t, "the end of open", opened); err == nil {
		t.Errorf("a connection to a host without a database succeeded")
	}
}

// socketOf returns this process's socket with a local TCP port.
func socketOf(t *testing.T, port int) int {
	t.Helper()
	for fd := range 1 << 16 {
		if a, ok := localAddress(fd).(*unix.SockaddrInet4); ok && a.Port == port {
			return fd
		}
	}
	t.Fatal("the socket is gone")
	return 0
}

func localAddress(fd int) unix.Sockaddr {
	a, err := unix.Getsockname(fd)
	if err != nil {
		return nil // fd isn't a socket
	}
	return a
}
