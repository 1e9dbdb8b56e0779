package adopted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// subset is a part of a batch that is committed by itself.
type subset struct {
	backends.CommitContent
	writes, claims []int // the numbers of its writes and claims in the whole batch
}

func (b *subset) addWrite(n int, w backends.Write) {
	b.writes, b.Writes = append(b.writes, n), append(b.Writes, w)
}

func (b *subset) addClaim(n int, c backends.Claim) {
	b.claims, b.Claims = append(b.claims, n), append(b.Claims, c)
}

func (b *subset) empty() bool { return len(b.writes)+len(b.claims) == 0 }

// commit commits the subset unless it is empty, and puts its results where they belong in those of
// the whole batch.
func (b *subset) commit(ctx context.Context, s *Store, at *attempt, res *backends.Results) error {
	if b.empty() {
		return nil
	}
	got, err := s.commit(ctx, b.CommitContent, at)
	if err != nil {
		return err
	}
	for i, n := range b.writes {
		res.Writes[n] = got.Writes[i]
	}
	for i, n := range b.claims {
		res.Claims[n] = got.Claims[i]
	}
	res.Groups, res.Batches = append(res.Groups, got.Groups...), append(res.Batches, got.Batches...)
	return nil
}

// split splits the batch into the engine's part and the parts about adopted queues. Claims leave out queues that are
// obstructed or locked.
func (k *commitment) split(at *attempt) error {
	k.aside, k.closed, k.each = nil, map[int]error{}, map[int]bool{}
	k.managed.Sidecar, k.managed.Jitter = k.batch.Sidecar, k.batch.Jitter
	k.positions = map[int][]int{}
	for n, w := range k.batch.Writes {
		w, ins := k.splitJobs(n, w)
		mine, others, err := splitLeases(w)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(core.JobsOf(k.batch.Writes[n]), func(j backends.NewJob) bool { return j.Batch != "" }); i >= 0 && (mine != nil || len(ins.jobs) > 0) {
			// If the batch can't get the job, the rest of the write must not happen.
			return &backends.UnsupportedError{Queue: core.JobsOf(k.batch.Writes[n])[i].Queue, What: "a job of a batch together with a job of an adopted table"}
		}
		if mine != nil {
			k.settles = append(k.settles, part{n, mine})
		}
		if others != nil {
			if _, ack := w.(backends.Ack); ack {
				ins.managedAck = len(k.managed.Writes)
			}
			k.managed.addWrite(n, others)
		}
		if len(ins.jobs) > 0 {
			k.inserts = append(k.inserts, ins)
			for _, j := range ins.jobs {
				if k.tx == nil && k.s.mustNotTry(k.batch, j.Queue, backends.DoingEnqueue) {
					k.leaveOut(n, j.Queue, backends.DoingEnqueue)
				}
			}
		}
	}
	for n, given := range k.batch.Claims {
		c, each, closed := k.s.openQueues(given, at)
		switch kind, mixed := k.s.kindOf(c); {
		case closed != nil:
			k.closed[n] = closed
		case each:
			k.separate, k.each[n] = append(k.separate, n), true
		case mixed || kind == txQueue:
			k.separate = append(k.separate, n)
		case kind == adoptedQueue:
			k.claims = append(k.claims, k.s.newClaim(n, c))
		default:
			k.managed.addClaim(n, c)
		}
	}
	return nil
}

// openQueues leaves the queues out of a claim that are obstructed or locked. closed: there are no others. each: one of them
// is tried again, or has refused rows to try again, so that each queue has to have a transaction of its own.
func (s *Store) openQueues(c backends.Claim, at *attempt) (open backends.Claim, each bool, closed error) {
	if !s.ObstacleSet().Some() && !s.slow.some.Load() && !s.LockedTables().Some() && len(at.locked) == 0 && len(s.queues()) == len(s.tables) {
		return c, false, nil
	}
	given := c.Queues
	c.Queues = nil
	for _, p := range given {
		switch {
		case at.locked[p.Queue]:
		case !at.alone && s.Slow(p.Queue):
			closed = cmp.Or(closed, s.slowClaim(p.Queue))
		case s.lockedOut(p.Queue) != nil:
			closed = cmp.Or(closed, s.lockedOut(p.Queue))
		case !s.isObstructed(p.Queue, backends.DoingClaim):
			each = each || s.wantsRetry(p.Queue)
			c.Queues = append(c.Queues, p)
		case s.queues()[p.Queue] != nil && s.probes.take(p.Queue):
			at.probe[p.Queue], each = true, true
			c.Queues = append(c.Queues, p)
		default:
			closed = cmp.Or(closed, s.obstruction(p.Queue, backends.DoingClaim))
		}
	}
	if len(c.Queues) > 0 {
		closed = nil
	}
	return c, each, closed
}

// lockedOut returns why claims of a queue can't succeed now, because another session has locked a table of the sidecar; nil: they can.
func (s *Store) lockedOut(queue string) error {
	need := claimNeeds
	switch s.kind(queue) {
	case managedQueue:
		need = core.ClaimNeeds
	case txQueue:
		need = 0
	}
	if u, ok := errors.AsType[*backends.UnavailableError](s.LockedTables().Of(need)); ok {
		return &backends.UnavailableError{Queue: queue, Table: u.Table, Err: u.Err}
	}
	return nil
}

// claimNeeds are the tables of the sidecar that claims and the search for rows to claim need: those of back-offs, of pauses, and of
// whether the sidecar is alive.
const claimNeeds = backends.OwnLeases | backends.OwnQueues | backends.OwnSidecars

// queueKind is how jobs of a queue are claimed.
type queueKind int

const (
	managedQueue queueKind = iota
	adoptedQueue
	txQueue // adopted, and each claim is an open transaction
)

func (s *Store) kind(queue string) queueKind {
	switch t, adopted := s.tables[queue]; {
	case !adopted:
		return managedQueue
	case t.ClaimInTx:
		return txQueue
	}
	return adoptedQueue
}

// kindOf is the kind of the first queue of a claim. mixed: others have another.
func (s *Store) kindOf(c backends.Claim) (first queueKind, mixed bool) {
	for i, p := range c.Queues {
		kind := s.kind(p.Queue)
		if i == 0 {
			first = kind
		}
		mixed = mixed || kind != first
	}
	return first, mixed
}

// splitJobs takes the new jobs of adopted queues out of a write.
func (k *commitment) splitJobs(n int, w backends.Write) (backends.Write, inserts) {
	ins := inserts{n: n, managedAck: -1}
	all := core.JobsOf(w)
	if !slices.ContainsFunc(all, func(j backends.NewJob) bool { return k.s.Adopted(j.Queue) }) {
		return w, ins
	}
	var rest []backends.NewJob
	k.positions[n] = []int{}
	for i, j := range all {
		if k.s.Adopted(j.Queue) {
			ins.positions, ins.jobs = append(ins.positions, i), append(ins.jobs, j)
		} else {
			k.positions[n], rest = append(k.positions[n], i), append(rest, j)
		}
	}
	if a, ok := w.(backends.Ack); ok {
		a.Enqueue = rest
		return a, ins
	}
	return backends.Enqueue{Jobs: rest}, ins
}

// splitLeases splits a write into the parts about adopted jobs and about others; nil: there is no
// such part.
func splitLeases(w backends.Write) (mine, others backends.Write, err error) {
	var adopted, managed []backends.Lease
	for _, l := range backends.LeasesOf(w) {
		if _, ok := lease.ParseHandle(l.Job); ok {
			adopted = append(adopted, l)
		} else {
			managed = append(managed, l)
		}
	}
	switch w := w.(type) {
	case backends.Enqueue:
		if len(w.Jobs) > 0 {
			others = w
		}
		return nil, others, nil
	case backends.Deliver: // adopted jobs are not prefetched
		if len(managed) == len(w.Deliveries) {
			return nil, w, nil
		}
		adopted = nil
	case backends.Ack, backends.Nack, backends.Release, backends.Extend:
	default:
		return nil, nil, fmt.Errorf("adopted: a write of the unknown kind %T", w)
	}
	if len(adopted) > 0 {
		mine = withLeases(w, adopted)
	}
	if len(managed) > 0 {
		others = withLeases(w, managed)
	}
	return mine, others, nil
}

// withLeases is the write about these of its leases.
func withLeases(w backends.Write, leases []backends.Lease) backends.Write {
	switch w := w.(type) {
	case backends.Ack:
		w.Leases = leases
		return w
	case backends.Nack:
		w.Leases = leases
		return w
	case backends.Release:
		w.Leases = leases
		return w
	case backends.Extend:
		w.Leases = leases
		return w
	case backends.Deliver:
		w.Deliveries = slices.DeleteFunc(slices.Clone(w.Deliveries), func(d backends.Delivery) bool { return !slices.Contains(leases, d.Lease) })
		return w
	}
	return w
}
