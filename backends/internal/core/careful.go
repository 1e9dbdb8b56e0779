package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// The database can refuse the claim of single rows: a trigger, a CHECK, a unique index of the rows that run. Such a row fails
// the whole transaction. So the claim is tried again with fewer and fewer rows, until the row is alone. It becomes an
// obstacle of the ObstacleSet, and claims leave it out.

const (
	// CarefulTries is how many transactions one claim tries to find refused rows.
	CarefulTries = 32
	// probeTries is how many refused rows one claim tries again.
	probeTries = 4
	// probeShare is the part of the time in which refused rows are tried again: 1/probeShare.
	probeShare = 10
)

// Careful makes a transaction's only claim, from one queue, leave rows out. The claim scans the whole queue, and no cursor learns
// from it: what it passes over can be claimed later.
type Careful struct {
	Except []int64 // the ids of the rows to leave out, in ascending order

	// Few: the claim ends after its first rows, and Tried gets their ids before they are changed. An engine that changes one
	// row after the other replaces the id each time.
	Few   bool
	Tried []int64

	dry bool // the transaction ends with ErrDryRun
}

// ErrDryRun ends a transaction that only had to find out whether the database accepts the changes. Nothing was written.
var ErrDryRun = fmt.Errorf("%w: the transaction is a trial", ErrNotAll)

// Retries decide which refused rows of a queue are tried again: those that are due, and all of them after a settle, which
// can have removed the obstacle. They take a bounded part of the time. The zero value is ready for use.
type Retries struct {
	mu      sync.Mutex
	settled bool      // something was settled since sweep was filled
	sweep   []string  // to try because of a settle
	next    time.Time // before this time none is tried
}

// Settled notes that a settle can have removed obstacles.
func (r *Retries) Settled() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settled = true
}

// Take returns rows to try now.
func (r *Retries) Take(all, due []string, now time.Time) (jobs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(all) == 0 || now.Before(r.next) {
		return nil
	}
	if len(r.sweep) == 0 && r.settled {
		r.settled, r.sweep = false, byNumber(all)
	}
	for len(r.sweep) > 0 && len(jobs) < probeTries {
		if slices.Contains(all, r.sweep[0]) {
			jobs = append(jobs, r.sweep[0])
		}
		r.sweep = r.sweep[1:]
	}
	for _, job := range byNumber(due) {
		if len(jobs) < probeTries && !slices.Contains(jobs, job) {
			jobs = append(jobs, job)
		}
	}
	return jobs
}

// byNumber sorts ids as numbers if they are numbers: most tables number their rows in the order of claims.
func byNumber(jobs []string) []string {
	return slices.SortedFunc(slices.Values(jobs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
}

// Took paces the tries.
func (r *Retries) Took(began, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = now.Add((probeShare - 1) * now.Sub(began))
}

// Due reports whether Take returns rows.
func (r *Retries) Due(all, due int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return all > 0 && !now.Before(r.next) && (r.settled || len(r.sweep) > 0 || due > 0)
}

// ClaimParts is a claim that runs in several transactions. Left begins as Claim.MaxBytes.
type ClaimParts struct {
	Claim backends.Claim
	Res   backends.ClaimResult
	Left  int64 // bytes that the result can still hold
}

// Full reports whether the claim is done.
func (p *ClaimParts) Full() bool { return len(p.Res.Jobs) == len(p.Claim.Slots) || p.Res.More }

// Next is the rest of the claim, of these queues.
func (p *ClaimParts) Next(queues []backends.Policy) backends.Claim {
	c := p.Claim
	c.Queues, c.Slots, c.MaxBytes, c.Strict = queues, c.Slots[len(p.Res.Jobs):], p.Left, c.Strict || len(p.Res.Jobs) > 0
	return c
}

// Add adds the result of a part.
func (p *ClaimParts) Add(got backends.ClaimResult) {
	p.Res.Failed.AddAll(got.Failed)
	p.Res.Groups = append(p.Res.Groups, got.Groups...)
	p.Res.Jobs, p.Res.More = append(p.Res.Jobs, got.Jobs...), got.More
	p.Res.Unknown = p.Res.Unknown || got.Unknown
	p.addGates(got)
	for i := range got.Jobs {
		p.Left -= int64(len(got.Jobs[i].Payload))
	}
	if p.Left <= 0 && p.Claim.MaxBytes > 0 {
		p.Res.More = true
	}
}

// addGates adds what a part found out about queues with limits.
func (p *ClaimParts) addGates(got backends.ClaimResult) {
	for _, g := range got.Gates {
		p.Res.Gates = append(slices.DeleteFunc(p.Res.Gates, func(old backends.GateResult) bool { return old.Queue == g.Queue }), g)
		p.Res.More = p.Res.More || g.Missed
	}
}

// Unless returns the error, unless jobs were claimed before: these must reach the caller, and the next claim finds out.
func (p *ClaimParts) Unless(err error) error {
	if err != nil && len(p.Res.Jobs) > 0 {
		p.Res.More = true
		p.Res.Unknown = p.Res.Unknown || errors.Is(err, backends.ErrUnknownOutcome)
		return nil
	}
	return err
}

// RefusedSearch finds the rows of one queue whose claim the database refuses, and claims others.
type RefusedSearch struct {
	Set   *backends.ObstacleSet
	Queue backends.Policy
	Table string // see backends.Obstacle

	// Few claims at most n jobs in one transaction, and leaves out the rows in except besides those in Set. It returns the
	// rows that it tried. If dry is true, it writes nothing, and the error is ErrDryRun if nothing was refused.
	Few func(ctx context.Context, c backends.Claim, n int, except []string, dry bool) (got backends.ClaimResult, tried []string, err error)
}

// Run claims, at first at most n jobs. The error is of a claim that got no job, and of which no row alone was the reason.
func (r *RefusedSearch) Run(ctx context.Context, all *ClaimParts, n int) error {
	queues := []backends.Policy{r.Queue}
	var except []string
	var unknown error // of a row that Set can't remember
	for range CarefulTries {
		if all.Full() {
			return nil
		}
		c := all.Next(queues)
		got, tried, err := r.Few(ctx, c, n, except, false)
		switch {
		case err == nil && len(got.Jobs)+len(got.Failed) == 0: // none waits, or others have locked them
			all.addGates(got)
			return nil
		case err == nil:
			all.Add(got)
			n = min(2*n, len(all.Claim.Slots))
		case !RefusesRow(err) || len(tried) == 0:
			return all.Unless(err)
		case len(tried) > 1:
			n = max(1, len(tried)/2)
		case r.refusesSlot(ctx, c, except, tried[0]):
			return all.Unless(&backends.SlotError{Worker: c.Slots[0].Worker, Lease: c.Slots[0].Lease, Err: err})
		case !r.Set.NoteJob(backends.Obstacle{Queue: r.Queue.Queue, Table: r.Table, Job: tried[0], Doing: backends.DoingClaim, Err: err}):
			unknown = err
			except = append(except, tried[0])
		default:
			except = append(except, tried[0])
		}
	}
	if unknown != nil { // the next claim would find the same rows
		return all.Unless(unknown)
	}
	all.Res.More = true // each claim leaves out more of the refused rows
	return nil
}

// refusesSlot reports whether the reason of a refusal is what the claim stores for its worker, and not the row. It is not known
// if the database refuses the claim only at the commit.
func (r *RefusedSearch) refusesSlot(ctx context.Context, c backends.Claim, except []string, row string) bool {
	slot := c.Slots[0]
	if slot.Worker == "" && slot.Lease == 0 {
		return false
	}
	dry := func(slot backends.Slot) error {
		c.Slots = []backends.Slot{slot}
		_, tried, err := r.Few(ctx, c, 1, except, true)
		if len(tried) != 1 || tried[0] != row {
			return errors.New("another row")
		}
		return err
	}
	return backends.IsRefused(dry(slot)) && errors.Is(dry(backends.Slot{Token: slot.Token}), ErrDryRun)
}
