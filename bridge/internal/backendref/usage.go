package backendref

import (
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Usage returns what the database's Backends have used so far: the current one and those that were replaced. ok is
// false if none of them counts its usage.
func (r *Ref) Usage() (u backends.Usage, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u, ok = r.current.usage()
	u.Add(r.past)
	for _, e := range r.inUse {
		was, metered := e.usage()
		u.Add(was)
		ok = ok || metered
	}
	return u, ok || r.past.RoundTrips.Count > 0
}

func (e *endpoint) usage() (u backends.Usage, ok bool) {
	if m, ok := e.Backend.(backends.Metered); ok {
		return m.Usage(), true
	}
	return u, false
}

// addPast keeps the usage of a Backend that is no longer in use. r.mu is held.
func (r *Ref) addPast(e *endpoint) {
	u, _ := e.usage()
	r.past.Add(u)
	r.inUse = slices.DeleteFunc(r.inUse, func(o *endpoint) bool { return o == e })
}
