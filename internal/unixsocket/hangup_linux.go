package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// HangUpWatcher notices peers that are gone, even while nothing reads from their connections. On a Unix socket
// Linux distinguishes the two ends of input: a peer that only shut down its writing side (nc -N) raises
// EPOLLRDHUP, one that closed or died also raises EPOLLHUP. An epoll instance with an empty interest set and edge
// triggering wakes for EPOLLHUP and EPOLLERR alone, once.
type HangUpWatcher struct {
	fail    context.CancelCauseFunc // called if hang-ups can't be noticed any more
	running sync.WaitGroup

	mu   sync.Mutex
	poll *os.File // the epoll instance, itself polled by the Go runtime: no thread waits. nil: not started
	next uint64
	gone map[uint64]func()
}

// NewHangUpWatcher returns a watcher that calls fail if it cannot notice hang-ups any more.
func NewHangUpWatcher(fail context.CancelCauseFunc) *HangUpWatcher {
	return &HangUpWatcher{fail: fail, gone: make(map[uint64]func())}
}

// start begins to wait for hang-ups, with the first connection. h.mu is held.
func (h *HangUpWatcher) start() error {
	if h.poll != nil {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(fmt.Errorf("epoll: set nonblocking: %w", err), unix.Close(fd))
	}
	h.poll = os.NewFile(uintptr(fd), "epoll")
	h.running.Go(func() {
		if err := h.run(h.poll); err != nil {
			h.fail(err)
		}
	})
	return nil
}

// run waits for hang-ups until Close.
func (h *HangUpWatcher) run(poll *os.File) error {
	raw, err := poll.SyscallConn()
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	var events [64]unix.EpollEvent
	for {
		var n int
		var waitErr error
		err := raw.Read(func(fd uintptr) bool {
			n, waitErr = unix.EpollWait(int(fd), events[:], 0)
			return n > 0 || waitErr != nil && !errors.Is(waitErr, unix.EINTR)
		})
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err = errors.Join(err, waitErr); err != nil {
			return fmt.Errorf("epoll_wait: %w", err)
		}
		for _, ev := range events[:n] {
			h.notify(eventKey(ev))
		}
	}
}

func (h *HangUpWatcher) notify(key uint64) {
	h.mu.Lock()
	gone := h.gone[key]
	delete(h.gone, key)
	h.mu.Unlock()
	if gone != nil {
		gone()
	}
}

// watch calls gone once when the peer of conn hangs up. The caller calls forget before it closes conn.
func (h *HangUpWatcher) watch(conn *net.UnixConn, gone func()) (forget func(), err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("watch for hang-ups: %w", err)
	}
	h.mu.Lock()
	if err := h.start(); err != nil {
		h.mu.Unlock()
		return nil, err
	}
	h.next++
	key := h.next
	h.gone[key] = gone
	h.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLET, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
	var ctlErr error
	err = raw.Control(func(fd uintptr) {
		var epErr error
		if epErr = h.control(unix.EPOLL_CTL_ADD, int(fd), &ev); epErr != nil {
			ctlErr = fmt.Errorf("epoll_ctl: %w", epErr)
		}
	})
	forget = func() {
		h.mu.Lock()
		delete(h.gone, key)
		h.mu.Unlock()
	}
	if err = errors.Join(err, ctlErr); err != nil {
		forget()
		return nil, err
	}
	return forget, nil // closing conn takes it out of the epoll set
}

func (h *HangUpWatcher) control(op, fd int, ev *unix.EpollEvent) (err error) {
	raw, err := h.poll.SyscallConn()
	if err != nil {
		return err
	}
	ctl := raw.Control(func(ep uintptr) { err = unix.EpollCtl(int(ep), op, fd, ev) })
	return errors.Join(err, ctl)
}

// Close ends the watch. No connection is open by then.
func (h *HangUpWatcher) Close() (err error) {
	h.mu.Lock()
	if h.poll != nil {
		err = h.poll.Close()
	}
	h.mu.Unlock()
	h.running.Wait()
	return err
}

func eventKey(ev unix.EpollEvent) uint64 {
	return uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
}

// hungUp reports whether the peer of conn is gone, rather than only finished with writing.
func hungUp(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		for {
			_, err := unix.Poll(fds, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			gone = err != nil || fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
			return
		}
	})
	return gone || err != nil
}
