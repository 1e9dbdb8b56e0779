package bridge

import (
	"net"
	"slices"
)

// inherited is the listener that was handed over at the path; nil: none was.
func (o *Options) inherited(path string) *net.UnixListener {
	i := slices.IndexFunc(o.Inherited, func(ln *net.UnixListener) bool { return ln.Addr().String() == path })
	if i < 0 {
		return nil
	}
	return o.Inherited[i]
}

// checkInherited: whatever was handed over is served, by the rules of an entry of its
// own. Left alone it would take connections that nobody answers, and without an entry
// it would let anybody do anything.
func (o *Options) checkInherited(bad func(format string, args ...any)) {
	for _, ln := range o.Inherited {
		path := ln.Addr().String() // where it was bound, whatever is there now
		if !slices.ContainsFunc(o.Sockets, func(s Socket) bool { return s.Path == path }) {
			bad("listen: the service manager hands over the socket %s, which is not in the list: add it with just this path, "+
				"or take it out of the socket unit, and restart that and the service", path)
		}
	}
}

// isInherited: the socket belongs to whoever handed it over. Its file, owner and mode are
// left alone, it needs no lock, and it goes on to take connections when this process ends.
func (l *listener) isInherited() bool { return l.lock == nil }
