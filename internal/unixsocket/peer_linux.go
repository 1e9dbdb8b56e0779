package unixsocket

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel who connected: user, groups and process as they were then
// (unix(7), SO_PEERCRED and SO_PEERGROUPS). Nothing that the client does later changes it.
func peerOf(conn *net.UnixConn) (*Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("who connected: %w", err)
	}
	var p Peer
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = fmt.Errorf("who connected: SO_PEERCRED: %w", err)
			return
		}
		groups, err := peerGroups(fd)
		if err != nil {
			failed = fmt.Errorf("who connected: SO_PEERGROUPS: %w", err)
			return
		}
		p = Peer{UID: cred.Uid, PID: cred.Pid, Groups: append([]uint32{cred.Gid}, groups...)}
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	return &p, nil
}

// peerGroups are the supplementary groups. The kernel says ERANGE where there are more
// than the buffer holds, and how many.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[:size/4], nil
		case syscall.ERANGE:
			groups = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}
