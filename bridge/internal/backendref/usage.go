package backendref

import (
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Usage returns what the database's Backends have used so far: the current one and those that were replaced. ok is
// false if none of them counts its usage.
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

// addPast keeps the usage of a Backend that is no longer in use. l.mu is held.
func (l *Ref) addPast(e *endpoint) {
	u, _ := e.usage()
	l.past.Add(u)
	l.inUse = slices.DeleteFunc(l.inUse, func(o *endpoint) bool { return o == e })
}
