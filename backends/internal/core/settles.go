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

// list fills settles. distinct: no two leases name the same job.
func (c *Commit) list() (distinct bool) {
	distinct = true
	c.settles = make([]settle, 0, len(c.batch.Writes))
	seen := make(map[int64]bool, len(c.batch.Writes))
	for i, w := range c.batch.Writes {
		if c.res.Writes[i].Err != nil {
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
				distinct = false
			}
			seen[id] = true
			c.settles = append(c.settles, settle{
				Lease: Lease{ID: id, Sidecar: int64(l.Token.Sidecar), Number: int64(l.Token.Number), Owner: int64(owner), Result: result},
				write: i, n: n,
			})
		}
	}
	return distinct
}

// setLockedAside removes the writes whose rows other transactions have locked. It locks the other rows, so that the
// rest of the commit waits for none.
func (c *Commit) setLockedAside(ctx context.Context, tx Tx) error {
	f, ok := tx.(LockFinder)
	var ids []int64
	for i := range c.settles {
		if id := c.settles[i].ID; id != 0 {
			ids = append(ids, id)
		}
	}
	ids = inOrder(ids)
	if !ok || len(ids) == 0 {
		return nil
	}
	locked, err := f.FindLocked(ctx, ids)
	if err != nil {
		return err
	}
	for i := range c.settles {
		if x := &c.settles[i]; slices.Contains(locked, x.ID) {
			c.s.locked.start()
			c.res.Writes[x.write].Err = mustRunAlone()
		}
	}
	c.settles = slices.DeleteFunc(c.settles, func(x settle) bool { return c.res.Writes[x.write].Err != nil })
	return nil
}

func mustRunAlone() error { return &backends.LockedError{Err: errors.New("the write must run alone")} }

// errSetAside means that the keys of some writes are locked. The next try leaves these writes out.
var errSetAside = fmt.Errorf("%w: some writes must run alone", ErrNotAll)

// setLockedKeysAside finds the jobs that end and whose keys other transactions have locked. If there are any, it
// notes their writes, and the commit has to be tried again: a write happens as a whole, and the transaction has
// possibly carried out other parts of these writes.
func (c *Commit) setLockedKeysAside(ctx context.Context, tx Tx) error {
	f, ok := tx.(KeyLockFinder)
	var ending []*Row
	for _, r := range c.rows {
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
	if c.aside == nil {
		c.aside = map[int]error{}
	}
	for i := range c.settles {
		if x := &c.settles[i]; !x.lost && slices.Contains(locked, x.ID) {
			c.aside[x.write] = mustRunAlone()
		}
	}
	return errSetAside
}

// ack queues the statement that ends claims. If unsure is true, the caller learns after a Flush which it did not end.
func (c *Commit) ack(tx Tx, acks []*settle) (unsure bool) {
	if len(acks) == 0 {
		return false
	}
	sortByID(acks)
	if !tx.Ack(leasesIn(acks), func(i int) { acks[i].done = true }) {
		return true
	}
	for _, x := range acks {
		x.done = true
	}
	return false
}

// deliver queues the statement that records deliveries. The caller learns after a Flush which it did not record.
func (c *Commit) deliver(tx Tx, delivers []*settle) {
	if len(delivers) == 0 {
		return
	}
	sortByID(delivers)
	deliveries := make([]backends.Delivery, len(delivers))
	for i, x := range delivers {
		deliveries[i] = c.batch.Writes[x.write].(backends.Deliver).Deliveries[x.n]
	}
	tx.Deliver(leasesIn(delivers), deliveries, func(i int) { delivers[i].done = true })
}

// lock queues the statement that locks and reads rows.
func (c *Commit) lock(tx Tx, ids []int64) {
	if len(ids) > 0 {
		tx.Lock(ids, func(r *Row) { c.rows[r.ID] = r })
	}
}

// leftOf returns the rows of the acks and deliveries that the fast statements left.
func (c *Commit) leftOf(p plan) (ids []int64) {
	left := func(all []*settle) {
		for _, x := range all {
			if !x.done {
				ids = append(ids, x.ID)
			}
		}
	}
	left(p.acks)
	left(p.delivers)
	return inOrder(ids)
}

// inOrder sorts ids, each once.
func inOrder(ids []int64) []int64 {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// countdown makes the next commits do something that the last one needed, because more of them are likely to need
// it: end jobs that Writer.Ack doesn't end, or avoid locked rows.
type countdown struct{ n atomic.Int32 }

// countdownFrom is for how many commits this lasts.
const countdownFrom = 1000

func (c *countdown) start() { c.n.Store(countdownFrom) }

func (c *countdown) next() bool { return c.n.Load() > 0 && c.n.Add(-1) >= 0 }
