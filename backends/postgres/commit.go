package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
)

// Commit implements backends.Backend.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	k := &commitment{s: s, batch: b}
	sc := scope{unsynced: len(b.Writes) == 0}
	if len(b.Claims) > 0 {
		host := int64(b.Host)
		sc.host, sc.queues = &host, queuesOf(b.Claims)
	}
	err := s.write(ctx, sc, k.round)
	if err != nil {
		return backends.Results{}, err
	}
	k.learn(sc.queues)
	s.tell.freed(k.res.Writes)
	return k.res, nil
}

func queuesOf(claims []backends.Claim) (queues []string) {
	for _, c := range claims {
		for _, p := range c.Queues {
			if !slices.Contains(queues, p.Queue) {
				queues = append(queues, p.Queue)
			}
		}
	}
	return queues
}

// commitment is a batch on its way.
type commitment struct {
	s      *Store
	batch  backends.Batch
	res    backends.Results
	claims []*claiming
	probes []*probing
	lost   bool // some lease was; who says so is asked again
	looked bool
	plain  bool // acks were tried by the plain statement, and those that it did not know are still to be asked for
	last   ending
}

// round implements work.
func (k *commitment) round(t *tx, round int) (more bool, err error) {
	if round == 0 {
		k.res = backends.Results{Writes: make([]backends.WriteResult, len(k.batch.Writes))}
		k.claims, k.probes, k.looked = nil, nil, false
		groups := grouped(k.batch.Writes)
		k.plain = len(groups) == 1 && !t.s.kept.seen()
		for _, g := range groups {
			if err := g.queue(t, k.res.Writes, k.plain); err != nil {
				return false, err
			}
		}
		k.startClaims(t)
		return true, nil
	}
	more = k.goOnClaims(t)
	if k.plain {
		if k.plain = false; k.ackOthers(t) {
			return true, nil
		}
	}
	if err := k.check(t); err != nil {
		return false, err
	}
	if !k.looked && k.stillValid(t) {
		more = true
	}
	return more, nil
}

// ackOthers asks again for the acks that the plain statement did not know: their
// jobs are kept or have a key, or their leases are lost.
func (k *commitment) ackOthers(t *tx) bool {
	var acks acking
	for i, w := range k.batch.Writes {
		if w, ok := w.(backends.Ack); ok && len(k.res.Writes[i].Lost) > 0 {
			w.Leases = k.res.Writes[i].Lost
			k.res.Writes[i].Lost = nil
			acks.add(i, w)
		}
	}
	if len(acks.id) == 0 {
		return false
	}
	acks.found = t.s.kept.note
	acks.queue(t, k.res.Writes)
	return true
}

// kept remembers whether acks met jobs that are kept or have a key, as they are
// likely to again: then the statement that is for all of them is asked at once.
type kept struct{ n atomic.Int32 }

// keptFor is how many commits the memory lasts.
const keptFor = 1000

func (k *kept) note()      { k.n.Store(keptFor) }
func (k *kept) seen() bool { return k.n.Load() > 0 && k.n.Add(-1) >= 0 }

// check looks at what the server answered for what no error says.
func (k *commitment) check(t *tx) error {
	if k.looked && k.lost || t.passedOver {
		return backends.Refused(errPassedOver)
	}
	for i, w := range k.batch.Writes {
		want := 0
		switch w := w.(type) {
		case backends.Enqueue:
			want = len(w.Jobs)
		case backends.Ack:
			if len(k.res.Writes[i].Lost) == 0 {
				want = len(w.Enqueue)
			}
		}
		stored := k.res.Writes[i].Stored
		if len(stored) != want {
			return backends.Refused(errPassedOver)
		}
		for n, s := range stored {
			switch {
			case s.ID != "":
			case jobsOf(w)[n].Key == "":
				return backends.Refused(errPassedOver)
			default:
				return &againError{"a key was forgotten while it was looked at"}
			}
		}
	}
	return nil
}

var errPassedOver = errors.New("a trigger on qsidecar_jobs passed the row over (it returned NULL)")

// stillValid asks once more about the leases that were lost: where one is valid
// all the same, somebody's trigger kept its row from being changed.
func (k *commitment) stillValid(t *tx) bool {
	var l leases
	for i, w := range k.batch.Writes {
		owner := backends.Identity(0)
		if r, ok := w.(backends.Release); ok {
			owner = r.Owner
		}
		for _, lease := range k.res.Writes[i].Lost {
			l.add(i, lease, owner)
		}
	}
	if len(l.id) == 0 {
		return false
	}
	k.lost, k.looked = false, true
	l.sort()
	t.each(t.s.sql.still, func(pgx.Rows) error {
		k.lost = true
		return nil
	}, l.id, l.host, l.number, l.owner)
	return true
}

// leases are arrays of leases, and which write each is of.
type leases struct {
	of               []int
	lease            []backends.Lease
	id, host, number []int64
	owner            []int64
}

// add appends a lease. One whose job is no job's id is looked for under 0, which
// no row has.
func (l *leases) add(write int, lease backends.Lease, owner backends.Identity) {
	id, ok := number(lease.Job)
	if !ok {
		id = 0
	}
	l.of, l.lease = append(l.of, write), append(l.lease, lease)
	l.id, l.host = append(l.id, id), append(l.host, int64(lease.Token.Host))
	l.number, l.owner = append(l.number, int64(lease.Token.Number)), append(l.owner, int64(owner))
}

// number is a job's id as the table has it; ok is false for what is none.
func number(id string) (n int64, ok bool) {
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == id
}

func idOf(n int64) string { return strconv.FormatInt(n, 10) }

// ms is d in milliseconds, rounded up: what was asked for lasts at least so long.
func ms(d time.Duration) int64 {
	n := d.Milliseconds()
	if d > time.Duration(n)*time.Millisecond {
		n++
	}
	return n
}

func fromMS(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// group is a run of writes that one statement of each kind can carry out: no job
// and no key comes twice in it, except keys of which the first is certain to be
// stored.
type group []part

// part is a write, or as much of it as the group can carry out.
type part struct {
	n int // the write's number in the batch
	backends.Write
}

// grouped splits the writes into as few groups as can be, in their order.
func grouped(writes []backends.Write) (groups []group) {
	seen := map[string]struct{}{}  // jobs
	doubtful := map[key]struct{}{} // keys of jobs that come with an ack that may be lost
	for n, w := range writes {
		for _, w := range distinct(w) {
			if len(groups) == 0 || meets(w, seen, doubtful) {
				groups = append(groups, nil)
				clear(seen)
				clear(doubtful)
			}
			g := &groups[len(groups)-1]
			*g = append(*g, part{n, w})
			for _, l := range leasesOf(w) {
				seen[l.Job] = struct{}{}
			}
			if _, ok := w.(backends.Ack); ok {
				for _, k := range keysOf(w) {
					doubtful[k] = struct{}{}
				}
			}
		}
	}
	return groups
}

func meets(w backends.Write, seen map[string]struct{}, doubtful map[key]struct{}) bool {
	for _, l := range leasesOf(w) {
		if _, twice := seen[l.Job]; twice {
			return true
		}
	}
	for _, k := range keysOf(w) {
		if _, maybe := doubtful[k]; maybe {
			return true
		}
	}
	return false
}

// distinct splits a write whose leases name one job twice, of which only one can
// be right.
func distinct(w backends.Write) []backends.Write {
	all := leasesOf(w)
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
		w.Handed = w.Handed[i:j]
		return w
	}
	return w
}

type key struct{ queue, key string }

func jobsOf(w backends.Write) []backends.NewJob {
	switch w := w.(type) {
	case backends.Enqueue:
		return w.Jobs
	case backends.Ack:
		return w.Enqueue
	}
	return nil
}

func keysOf(w backends.Write) (keys []key) {
	jobs := jobsOf(w)
	for i := range jobs {
		if jobs[i].Key != "" {
			keys = append(keys, key{jobs[i].Queue, jobs[i].Key})
		}
	}
	return keys
}

func leasesOf(w backends.Write) (l []backends.Lease) {
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
		for _, h := range w.Handed {
			l = append(l, h.Lease)
		}
	}
	return l
}

// queue puts the group's statements into the transaction; their answers go into res.
func (g group) queue(t *tx, res []backends.WriteResult, plain bool) error {
	var enqueues storing
	var acks acking
	var fails givingUp
	var hands delivering
	var extends extending
	for _, p := range g {
		n := p.n
		switch w := p.Write.(type) {
		case backends.Enqueue:
			enqueues.add(n, w.Jobs, nil)
		case backends.Ack:
			if len(w.Enqueue) > 0 {
				enqueues.add(n, w.Enqueue, &w.Leases[0])
			}
			acks.add(n, w)
			acks.plain = plain
		case backends.Nack:
			fails.nack(n, w)
		case backends.Release:
			fails.release(n, w)
		case backends.Extend:
			extends.add(n, w)
		case backends.Deliver:
			hands.add(n, w)
		default:
			return fmt.Errorf("postgres: a write of the unknown kind %T", w)
		}
	}
	// What comes with an ack is stored first: as long as the claim is there, it
	// says whether to.
	if err := enqueues.queue(t, res); err != nil {
		return err
	}
	acks.queue(t, res)
	hands.queue(t, res)
	fails.queue(t, res)
	extends.queue(t, res)
	return nil
}

// free notes that a job of the queue became ready.
func free(r *backends.WriteResult, queue string) {
	if !slices.Contains(r.Freed, queue) {
		r.Freed = append(r.Freed, queue)
	}
}
