package dial

import (
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// control sets TCP_USER_TIMEOUT. Without it the kernel repeats what is not acknowledged for about 15 minutes.
func control(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var option error
	err := c.Control(func(fd uintptr) {
		option = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(Timeout.Milliseconds()))
	})
	return errors.Join(err, option)
}
