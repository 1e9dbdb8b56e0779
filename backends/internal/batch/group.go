// Package batch is what engines on database servers have in common when they
// carry out a batch with a few statements over many rows.
package batch

import (
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Group is a run of writes that one statement of each kind can carry out: no job
// and no key comes twice in it, except keys of which the first is certain to be
// stored.
type Group []Part

// Part is a write, or as much of it as the group can carry out.
type Part struct {
	N int // the write's number in the batch
	backends.Write
}

// Grouped splits the writes into as few groups as can be, in their order.
func Grouped(writes []backends.Write) (groups []Group) {
	seen := map[string]struct{}{}  // jobs
	doubtful := map[Key]struct{}{} // keys of jobs that come with an ack that may be lost
	for n, w := range writes {
		for _, w := range distinct(w) {
			if len(groups) == 0 || meets(w, seen, doubtful) {
				groups = append(groups, nil)
				clear(seen)
				clear(doubtful)
			}
			g := &groups[len(groups)-1]
			*g = append(*g, Part{n, w})
			for _, l := range LeasesOf(w) {
				seen[l.Job] = struct{}{}
			}
			if _, ok := w.(backends.Ack); ok {
				for _, k := range KeysOf(w) {
					doubtful[k] = struct{}{}
				}
			}
		}
	}
	return groups
}

func meets(w backends.Write, seen map[string]struct{}, doubtful map[Key]struct{}) bool {
	for _, l := range LeasesOf(w) {
		if _, twice := seen[l.Job]; twice {
			return true
		}
	}
	for _, k := range KeysOf(w) {
		if _, maybe := doubtful[k]; maybe {
			return true
		}
	}
	return false
}

// distinct splits a write whose leases name one job twice, of which only one can
// be right.
func distinct(w backends.Write) []backends.Write {
	all := LeasesOf(w)
	seen := make(map[string]struct{}, len(all))
	for i, l := range all {
		if _, twice := seen[l.Job]; twice {
			return append([]backends.Write{some(w, 0, i)}, distinct(some(w, i, len(all)))...)
		}
		seen[l.Job] = struct{}{}
	}
	return []backends.Write{w}
}

// some is the part of a write that is about its leases from i to j.
func some(w backends.Write, i, j int) backends.Write {
	switch w := w.(type) {
	case backends.Ack:
		w.Leases = w.Leases[i:j]
		return w
	case backends.Nack:
		w.Leases = w.Leases[i:j]
		return w
	case backends.Extend:
		w.Leases = w.Leases[i:j]
		return w
	case backends.Release:
		w.Leases = w.Leases[i:j]
		return w
	case backends.Deliver:
		w.Deliveries = w.Deliveries[i:j]
		return w
	}
	return w
}

// Key is a job's key in its queue.
type Key struct{ Queue, Key string }

// JobsOf are the jobs that a write stores.
func JobsOf(w backends.Write) []backends.NewJob {
	switch w := w.(type) {
	case backends.Enqueue:
		return w.Jobs
	case backends.Ack:
		return w.Enqueue
	}
	return nil
}

// KeysOf are the keys of the jobs that a write stores.
func KeysOf(w backends.Write) (keys []Key) {
	jobs := JobsOf(w)
	for i := range jobs {
		if jobs[i].Key != "" {
			keys = append(keys, Key{jobs[i].Queue, jobs[i].Key})
		}
	}
	return keys
}

// LeasesOf are the leases that a write is about.
func LeasesOf(w backends.Write) (l []backends.Lease) {
	switch w := w.(type) {
	case backends.Ack:
		return w.Leases
	case backends.Nack:
		return w.Leases
	case backends.Extend:
		return w.Leases
	case backends.Release:
		return w.Leases
	case backends.Deliver:
		for _, h := range w.Deliveries {
			l = append(l, h.Lease)
		}
	}
	return l
}

// QueuesOf are the queues that claims ask for, each once.
func QueuesOf(claims []backends.Claim) (queues []string) {
	for _, c := range claims {
		for _, p := range c.Queues {
			if !slices.Contains(queues, p.Queue) {
				queues = append(queues, p.Queue)
			}
		}
	}
	return queues
}

// Free notes that a job of the queue became ready.
func Free(r *backends.WriteResult, queue string) {
	if !slices.Contains(r.MadeReady, queue) {
		r.MadeReady = append(r.MadeReady, queue)
	}
}
