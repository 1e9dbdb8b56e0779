package adopted

import (
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// split parts the batch.
func (k *commitment) split() error {
	k.managed.Host = k.batch.Host
	k.at = map[int][]int{}
	for n, w := range k.batch.Writes {
		w, st := k.sortJobs(n, w)
		mine, others, err := k.s.part(w)
		if err != nil {
			return err
		}
		if mine != nil {
			k.parts = append(k.parts, part{n, mine})
		}
		if others != nil {
			if _, ack := w.(backends.Ack); ack {
				st.managed = len(k.managed.Writes)
			}
			k.of, k.managed.Writes = append(k.of, n), append(k.managed.Writes, others)
		}
		if len(st.jobs) > 0 {
			k.stores = append(k.stores, st)
		}
	}
	for n, c := range k.batch.Claims {
		kind := ofManaged
		for i, p := range c.Queues {
			if of := k.s.kind(p.Queue); i == 0 {
				kind = of
			} else if of != kind {
				kind = ofHeld // of several
			}
		}
		switch kind {
		case ofManaged:
			k.claimOf, k.managed.Claims = append(k.claimOf, n), append(k.managed.Claims, c)
		case ofAdopted:
			k.claims = append(k.claims, k.s.claiming(c))
		default:
			k.later = append(k.later, n)
		}
	}
	return nil
}

// The kinds of queues, by how they are claimed.
const (
	ofManaged = iota
	ofAdopted
	ofHeld
)

func (s *Store) kind(queue string) int {
	switch t := s.tables[queue]; {
	case t == nil:
		return ofManaged
	case t.Hold:
		return ofHeld
	}
	return ofAdopted
}

// sortJobs takes the new jobs of adopted queues out of a write.
func (k *commitment) sortJobs(n int, w backends.Write) (backends.Write, storing) {
	st := storing{n: n, managed: -1}
	all := batch.JobsOf(w)
	if !slices.ContainsFunc(all, func(j backends.NewJob) bool { return k.s.Adopted(j.Queue) }) {
		return w, st
	}
	var rest []backends.NewJob
	k.at[n] = []int{}
	for i, j := range all {
		if k.s.Adopted(j.Queue) {
			st.at, st.jobs = append(st.at, i), append(st.jobs, j)
		} else {
			k.at[n], rest = append(k.at[n], i), append(rest, j)
		}
	}
	if a, ok := w.(backends.Ack); ok {
		a.Enqueue = rest
		return a, st
	}
	return backends.Enqueue{Jobs: rest}, st
}

// claiming leaves out the slots of those who claim ahead.
func (s *Store) claiming(c backends.Claim) *claiming {
	if n := slices.IndexFunc(c.Slots, func(slot backends.Slot) bool { return slot.Prefetch }); n >= 0 {
		c.Slots = c.Slots[:n]
	}
	return &claiming{Claim: c, s: s}
}

// part parts a write: what is about adopted jobs, and what is about others.
func (s *Store) part(w backends.Write) (mine, others backends.Write, err error) {
	if w, ok := w.(backends.Enqueue); ok {
		if len(w.Jobs) == 0 {
			return nil, nil, nil
		}
		return nil, w, nil
	}
	a, m := sorted(w)
	switch w := w.(type) {
	case backends.Ack:
		return whole(a, backends.Ack{Leases: a, Result: w.Result, Enqueue: w.Enqueue}), whole(m, backends.Ack{Leases: m, Result: w.Result, Enqueue: w.Enqueue}), nil
	case backends.Nack:
		x := w
		w.Leases, x.Leases = a, m
		return whole(a, w), whole(m, x), nil
	case backends.Release:
		x := w
		w.Leases, x.Leases = a, m
		return whole(a, w), whole(m, x), nil
	case backends.Extend:
		x := w
		w.Leases, x.Leases = a, m
		return whole(a, w), whole(m, x), nil
	case backends.Deliver:
		var rest []backends.Delivery
		for _, h := range w.Deliveries {
			if _, ok := handled(h.Lease.Job); !ok { // adopted jobs are not claimed ahead
				rest = append(rest, h)
			}
		}
		if len(rest) == 0 && len(w.Deliveries) > 0 {
			return nil, nil, nil
		}
		return nil, backends.Deliver{Deliveries: rest}, nil
	}
	return nil, nil, fmt.Errorf("adopted: a write of the unknown kind %T", w)
}

func whole(leases []backends.Lease, w backends.Write) backends.Write {
	if len(leases) == 0 {
		return nil
	}
	return w
}

// sorted are the leases of adopted jobs, and the others.
func sorted(w backends.Write) (adopted, others []backends.Lease) {
	for _, l := range batch.LeasesOf(w) {
		if _, ok := handled(l.Job); ok {
			adopted = append(adopted, l)
		} else {
			others = append(others, l)
		}
	}
	return adopted, others
}
