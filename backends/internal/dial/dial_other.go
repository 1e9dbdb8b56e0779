//go:build !linux

package dial

import "syscall"

// control is nil: only Linux has TCP_USER_TIMEOUT.
var control func(network, address string, c syscall.RawConn) error
