// Package dial opens the network connections of the engines. It uses no engine.
package dial

import (
	"net"
	"time"
)

const (
	// Timeout is the limit for a connection with its login. It is also how long the kernel waits until the server's kernel
	// acknowledges what was sent, before it ends the connection. It is longer than a statement waits for a lock, because a
	// server that waits doesn't read. It is shorter than a heartbeat can take with the default sidecar_timeout.
	Timeout = 10 * time.Second

	// HostTimeout replaces Timeout if there are other hosts to try. It is far below the time of a heartbeat.
	HostTimeout = 2 * time.Second
)

// Dialer returns a dialer whose connections fail if the server's host disappears, also while they are idle.
func Dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         Timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         control,
	}
}
