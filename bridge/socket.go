package bridge

// SocketListener is a Unix socket made by the rules of those that workers connect to: it
// appears with its owner and mode at one instant, a stale one is replaced, and a lock
// beside it keeps others off. Close removes it.
type SocketListener struct{ *listener }

// ListenSocket listens on a Unix socket. The rules in s.Allow are not its business.
func ListenSocket(s Socket) (*SocketListener, error) {
	ln, err := listen(s)
	if err != nil {
		return nil, err
	}
	return &SocketListener{ln}, nil
}

// Close stops listening and removes the socket, if it is still this one. Once is enough.
func (l *SocketListener) Close() error { return l.close() }

// Adjust gives the socket another mode and group.
func (l *SocketListener) Adjust(s Socket) error { return l.adjust(s) }
