package unixsocket

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// dialAgain is the pause before another try to connect to a socket whose queue is full.
const dialAgain = 20 * time.Millisecond

// Dial connects to a socket. It waits while the socket's queue is full.
func Dial(ctx context.Context, path string) (conn net.Conn, err error) {
	var d net.Dialer
	for {
		if conn, err = d.DialContext(ctx, "unix", path); !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(dialAgain):
		}
	}
}
