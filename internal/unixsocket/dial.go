package unixsocket

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// dialAgain is the pause before a socket whose queue is full is tried again.
const dialAgain = 20 * time.Millisecond

// connect waits for a place in the socket's queue.
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
