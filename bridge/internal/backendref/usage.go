package backendref

import (
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Usage is what the database's Backends have used so far, as far as they tell: the present
// one, those that were replaced, and those of them that somebody still uses.
func (l *Ref) Usage() (u backends.Usage, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u, ok = l.current.usage()
	u.Add(l.past)
	for _, e := range l.inUse {
		was, metered := e.usage()
		u.Add(was)
		ok = ok || metered
	}
	return u, ok || l.past.RoundTrips.Count > 0
}

func (e *endpoint) usage() (u backends.Usage, ok bool) {
	if m, ok := e.Backend.(backends.Metered); ok {
		return m.Usage(), true
	}
	return u, false
}

// addPast keeps what a Backend used that nobody uses any more. l.mu is held.
func (l *Ref) addPast(e *endpoint) {
	u, _ := e.usage()
	l.past.Add(u)
	l.inUse = slices.DeleteFunc(l.inUse, func(o *endpoint) bool { return o == e })
}
