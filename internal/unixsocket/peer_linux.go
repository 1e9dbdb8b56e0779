package unixsocket

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel for the credentials of the peer at the time it connected (unix(7), SO_PEERCRED and
// SO_PEERGROUPS). The client cannot change them later.
func peerOf(conn *net.UnixConn) (*Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("identifying the client: %w", err)
	}
	var p Peer
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = fmt.Errorf("identifying the client: SO_PEERCRED: %w", err)
			return
		}
		groups, err := peerGroups(fd)
		if err != nil {
			failed = fmt.Errorf("identifying the client: SO_PEERGROUPS: %w", err)
			return
		}
		p = newPeer(cred, groups, overflowUser(), overflowGroup())
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	return &p, nil
}

// newPeer removes the numbers that stand for all users and groups of other user namespaces.
func newPeer(cred *unix.Ucred, groups []uint32, user, group overflow) Peer {
	p := Peer{UID: cred.Uid, PID: cred.Pid, Groups: append([]uint32{cred.Gid}, groups...)}
	if user.is(p.UID) {
		p.UID = UnknownUser
	}
	p.Groups = slices.DeleteFunc(p.Groups, group.is)
	return p
}

// peerGroups returns the supplementary groups. If the buffer is too small, the kernel returns ERANGE and the
// number of groups.
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
