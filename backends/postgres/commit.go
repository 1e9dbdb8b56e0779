package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Commit implements backends.Backend.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	k := &commitment{s: s, batch: b}
	sc := scope{unsynced: len(b.Writes) == 0}
	if len(b.Claims) > 0 {
		host := int64(b.Host)
		sc.host, sc.queues = &host, batch.QueuesOf(b.Claims)
	}
	err := s.write(ctx, sc, k.round)
	if err != nil {
		return backends.Results{}, err
	}
	k.learn(sc.queues)
	s.tell.freed(k.res.Writes)
	return k.res, nil
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
	began  cursor.Event // the transaction
}

// round implements work.
func (k *commitment) round(t *tx, round int) (more bool, err error) {
	if round == 0 {
		k.res = backends.Results{Writes: make([]backends.WriteResult, len(k.batch.Writes))}
		k.claims, k.probes, k.looked = nil, nil, false
		groups := batch.Grouped(k.batch.Writes)
		k.plain = len(groups) == 1 && !t.s.kept.seen()
		for _, g := range groups {
			if err := queueGroup(t, g, k.res.Writes, k.plain); err != nil {
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
	if len(acks.ID) == 0 {
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
			case batch.JobsOf(w)[n].Key == "":
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
	var l batch.Leases
	for i, w := range k.batch.Writes {
		owner := backends.Identity(0)
		if r, ok := w.(backends.Release); ok {
			owner = r.Owner
		}
		for _, lease := range k.res.Writes[i].Lost {
			l.Add(i, lease, owner)
		}
	}
	if len(l.ID) == 0 {
		return false
	}
	k.lost, k.looked = false, true
	l.Sort()
	t.each(t.s.sql.still, func(pgx.Rows) error {
		k.lost = true
		return nil
	}, l.ID, l.Host, l.Number, l.Owner)
	return true
}

// queueGroup puts the group's statements into the transaction; their answers go into res.
func queueGroup(t *tx, g batch.Group, res []backends.WriteResult, plain bool) error {
	var enqueues storing
	var acks acking
	var fails givingUp
	var hands delivering
	var extends extending
	for _, p := range g {
		n := p.N
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
