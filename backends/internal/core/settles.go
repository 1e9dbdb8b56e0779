package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/backends"
)

// settle is one lease of one write.
type settle struct {
	Lease
	write, n int  // the index of the write, and of the lease in it
	done     bool // a fast statement carried it out
	lost     bool
}

// list fills settles. If two leases name the same job, it sets fast to false.
func (k *Commit) list(fast *bool) {
	k.settles = make([]settle, 0, len(k.batch.Writes))
	seen := make(map[int64]bool, len(k.batch.Writes))
	for i, w := range k.batch.Writes {
		if k.res.Writes[i].Err != nil {
			continue
		}
		owner, result := backends.Identity(0), []byte(nil)
		switch w := w.(type) {
		case backends.Release:
			owner = w.Owner
		case backends.Ack:
			result = w.Result
		}
		for n, l := range backends.LeasesOf(w) {
			id, ok := Number(l.Job)
			if !ok {
				id = 0
			}
			if seen[id] && id != 0 {
				*fast = false
			}
			seen[id] = true
			k.settles = append(k.settles, settle{
				Lease: Lease{ID: id, Host: int64(l.Token.Host), Number: int64(l.Token.Number), Owner: int64(owner), Result: result},
				write: i, n: n,
			})
		}
	}
}

// setLockedAside removes the writes whose rows other transactions have locked. It locks the other rows, so that the
// rest of the commit waits for none.
func (k *Commit) setLockedAside(ctx context.Context, tx Tx) error {
	f, ok := tx.(LockFinder)
	ids := k.ids(func(*settle) bool { return true })
	if !ok || len(ids) == 0 {
		return nil
	}
	locked, err := f.FindLocked(ctx, ids)
	if err != nil {
		return err
	}
	for i := range k.settles {
		if x := &k.settles[i]; slices.Contains(locked, x.ID) {
			k.s.locked.start()
			k.res.Writes[x.write].Err = mustRunAlone()
		}
	}
	k.settles = slices.DeleteFunc(k.settles, func(x settle) bool { return k.res.Writes[x.write].Err != nil })
	return nil
}

func mustRunAlone() error { return &backends.LockedError{Err: errors.New("the write must run alone")} }

// errSetAside means that the keys of some writes are locked. The next try leaves these writes out.
var errSetAside = fmt.Errorf("%w: some writes must run alone", ErrNotAll)

// setLockedKeysAside finds the jobs that end and whose keys other transactions have locked. If there are any, it
// notes their writes, and the commit has to be tried again: a write happens as a whole, and the transaction has
// possibly carried out other parts of these writes.
func (k *Commit) setLockedKeysAside(ctx context.Context, tx Tx) error {
	f, ok := tx.(KeyLockFinder)
	var ending []*Row
	for _, r := range k.rows {
		if r.endsKey() {
			ending = append(ending, r)
		}
	}
	if !ok || len(ending) == 0 {
		return nil
	}
	slices.SortFunc(ending, func(a, b *Row) int { return compareIDs(a.ID, b.ID) })
	locked, err := f.FindLockedKeys(ctx, ending)
	if err != nil || len(locked) == 0 {
		return err
	}
	if k.aside == nil {
		k.aside = map[int]bool{}
	}
	for i := range k.settles {
		if x := &k.settles[i]; !x.lost && slices.Contains(locked, x.ID) {
			k.aside[x.write] = true
		}
	}
	return errSetAside
}

// isFast reports whether a fast statement carries out the settle.
func (k *Commit) isFast(x *settle, fast bool) bool {
	if !fast || x.ID == 0 {
		return false
	}
	switch w := k.batch.Writes[x.write].(type) {
	case backends.Ack:
		return len(w.Enqueue) == 0
	case backends.Deliver:
		return k.s.traits.FastDeliver
	}
	return false
}

// isLost reports whether the lease of the settle is lost if a fast statement did not carry it out.
func (k *Commit) isLost(x *settle) bool {
	_, ack := k.batch.Writes[x.write].(backends.Ack)
	return ack && k.s.traits.AcksAll
}

// queueFast queues the fast statements. If answers is true, the caller learns after a Flush what they did not
// do.
func (k *Commit) queueFast(tx Tx, fast bool) (answers bool) {
	acks := make([]*settle, 0, len(k.settles))
	var delivers []*settle
	for i := range k.settles {
		x := &k.settles[i]
		if !k.isFast(x, fast) {
			continue
		}
		if _, is := k.batch.Writes[x.write].(backends.Ack); is {
			acks = append(acks, x)
		} else {
			delivers = append(delivers, x)
		}
	}
	if len(acks) > 0 {
		sortByID(acks)
		if tx.Ack(leasesIn(acks), func(i int) { acks[i].done = true }) {
			for _, x := range acks {
				x.done = true
			}
		} else {
			answers = true
		}
	}
	if len(delivers) > 0 {
		sortByID(delivers)
		deliveries := make([]backends.Delivery, len(delivers))
		for i, x := range delivers {
			deliveries[i] = k.batch.Writes[x.write].(backends.Deliver).Deliveries[x.n]
		}
		tx.Deliver(leasesIn(delivers), deliveries, func(i int) { delivers[i].done = true })
		answers = true
	}
	return answers
}

// queueLocks queues a statement that locks and reads the rows of some settles.
func (k *Commit) queueLocks(tx Tx, which func(x *settle) bool) (some bool) {
	ids := k.ids(which)
	if len(ids) > 0 {
		tx.Lock(ids, func(r *Row) { k.rows[r.ID] = r })
	}
	return len(ids) > 0
}

// ids returns the ids of some settles in ascending order, each once.
func (k *Commit) ids(which func(x *settle) bool) (ids []int64) {
	for i := range k.settles {
		if x := &k.settles[i]; x.ID != 0 && which(x) {
			ids = append(ids, x.ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// mayFree reports whether writes whose rows are locked first can make jobs ready. Claims of the batch must see
// those jobs.
func (k *Commit) mayFree(locks bool) bool {
	return locks && slices.ContainsFunc(k.batch.Writes, func(w backends.Write) bool {
		switch w := w.(type) {
		case backends.Nack, backends.Release:
			return true
		case backends.Ack:
			return len(w.Enqueue) > 0
		}
		return false
	})
}

// countdown makes the next commits do something that the last one needed, because more of them are likely to need
// it: end jobs that Writer.Ack doesn't end, or avoid locked rows.
type countdown struct{ n atomic.Int32 }

// countdownFrom is for how many commits this lasts.
const countdownFrom = 1000

func (c *countdown) start() { c.n.Store(countdownFrom) }

func (c *countdown) next() bool { return c.n.Load() > 0 && c.n.Add(-1) >= 0 }
