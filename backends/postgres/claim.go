package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// probe is a proof for a cursor. A transaction that claims queries it.
type probe struct {
	cursor.Proof
	xmin  int64
	first []int64
}

// Prove implements core.Claimer.
func (t *tx) Prove(_ context.Context, queues []string) {
	for _, queue := range queues {
		p, ok := t.s.Cursors.ToProve(queue)
		if !ok {
			if t.s.Cursors.Blocked(queue, t.s.LocalTime()) {
				t.askForWriters()
			}
			continue
		}
		x := &probe{Proof: p}
		t.probes = append(t.probes, x)
		t.each(t.s.sql.probe, func(rows pgx.Rows) error { return rows.Scan(&x.xmin, &x.first) }, queue, p.Urgency, p.Low, p.High)
	}
}

// pieces are the arrays of the pieces that a statement scans.
type pieces struct {
	queue      []string
	policy     []int32 // from 1
	fromU, toU []int32
	fromP, toP []int64
}

func piecesOf(all []core.Piece, name func(i int) string) (x pieces) {
	for _, p := range all {
		x.queue, x.policy = append(x.queue, name(p.Queue)), append(x.policy, int32(p.Queue+1))
		x.fromU, x.fromP = append(x.fromU, p.From.Urgency), append(x.fromP, p.From.Position)
		x.toU, x.toP = append(x.toU, p.To.Urgency), append(x.toP, p.To.Position)
	}
	return x
}

// policies are the arrays of policies, one for each queue of the run.
type policies struct {
	limits           []int32
	timeout, backoff []int64
	backoffMax, keep []int64
	keepDead         []int64
}

func policiesOf(r *core.Run) (x policies) {
	for _, p := range r.Queues {
		x.limits, x.timeout = append(x.limits, int32(p.MaxAttempts)), append(x.timeout, core.MS(p.Timeout))
		x.backoff, x.backoffMax = append(x.backoff, core.MS(p.Backoff)), append(x.backoffMax, core.MS(p.BackoffMax))
		x.keep, x.keepDead = append(x.keep, core.MS(p.RetainDone)), append(x.keepDead, core.MS(p.RetainDead))
	}
	return x
}

// slots are the arrays of slots. A worker often has many slots, so workers lists each worker once.
type slots struct {
	host, number, lease []int64
	worker              []int32 // from 1
	workers             []string
	prefetch            []bool
	alike               bool // the slots differ only in token numbers and workers
}

func slotsOf(r *core.Run) (x slots) {
	n := len(r.Slots)
	x.host, x.number, x.lease = make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
	x.worker, x.prefetch, x.alike = make([]int32, 0, n), make([]bool, 0, n), true
	known := map[string]int32{}
	for _, s := range r.Slots {
		if s.Prefetch {
			s.Worker = "" // it has no worker yet
		}
		n, ok := known[s.Worker]
		if !ok {
			x.workers = append(x.workers, s.Worker)
			n = int32(len(x.workers))
			known[s.Worker] = n
		}
		x.host, x.number = append(x.host, int64(s.Token.Sidecar)), append(x.number, int64(s.Token.Number))
		x.lease, x.worker, x.prefetch = append(x.lease, max(core.MS(s.Lease), 0)), append(x.worker, n), append(x.prefetch, s.Prefetch)
		last := len(x.host) - 1
		x.alike = x.alike && x.host[last] == x.host[0] && x.lease[last] == x.lease[0] && x.prefetch[last] == x.prefetch[0]
	}
	return x
}

// Claim implements core.Claimer. A claim from one queue by slots that are alike uses the
// lean statement.
func (t *tx) Claim(r *core.Run) {
	p, q, s := piecesOf(r.Pieces, func(i int) string { return r.Queues[i].Queue }), policiesOf(r), slotsOf(r)
	if r.Lean = r.LeanOK && len(r.Queues) == 1 && !r.Queues[0].LIFO && s.alike; r.Lean {
		// in the order of the parameters of claim_lean in statements.go
		t.add(t.s.sql.claimLean, func(rows pgx.Rows) error { return giveLean(r, rows) }, len(s.host), r.MaxBytes, r.MaxPayload,
			p.queue[0], p.fromU, p.fromP, p.toU, p.toP,
			q.limits[0], q.timeout[0], q.backoff[0], q.backoffMax[0], q.keep[0], q.keepDead[0],
			s.host[0], s.number, s.lease[0], s.worker, s.workers, int64(r.Sidecar), s.prefetch[0])
		return
	}
	sql, careful := t.s.sql.claim, t.s.sql.claimExcept
	if r.Queues[0].LIFO {
		sql, careful = t.s.sql.claimLIFO, t.s.sql.claimLIFOExcept
	}
	// in the order of claim in statements.go
	args := []any{len(s.host), r.MaxBytes, r.MaxPayload, p.queue, p.policy, p.fromU, p.fromP, p.toU, p.toP,
		q.limits, q.timeout, q.backoff, q.backoffMax, q.keep, q.keepDead,
		s.host, s.number, s.lease, s.worker, s.workers, int64(r.Sidecar), r.AtLeastOne, s.prefetch}
	if r.Careful != nil {
		sql, args = careful, append(args, r.Careful.Except)
	}
	t.add(sql, func(rows pgx.Rows) error { return give(r, rows) }, args...)
}

// give reads the rows of the claim statement.
func give(r *core.Run, rows pgx.Rows) error {
	got, wanted := make([]core.Claimed, 0, len(r.Slots)), int64(0)
	var j core.Claimed // like the others, it is allocated once, not for each row
	var policy int32
	var progress int16
	var id, size, timeout, within int64
	var headers string
	columns := []any{&j.Slot, &policy, &size, &j.Position, &id, &j.Priority, &j.Attempt, &j.MaxAttempts, &j.Fence, instant{&j.EnqueuedAt},
		&timeout, &headers, &j.Key, &j.LastError, &j.Losses, &j.Group, &progress, &within, &j.Payload}
	for rows.Next() {
		j = core.Claimed{}
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		switch {
		case j.Slot < 0:
			wanted = size
		case j.Slot == 0:
			r.LeftOver(int(policy-1), id, size)
		default:
			j.StartWithin = core.FromMS(within)
			complete(r, &j, int(policy-1), id, timeout, headers)
			j.HasProgress = progress != 0
			got = append(got, j)
		}
	}
	return r.Give(got, wanted)
}

// giveLean reads the rows of the lean statement.
func giveLean(r *core.Run, rows pgx.Rows) error {
	got, wanted := make([]core.Claimed, 0, len(r.Slots)), int64(0)
	var j core.Claimed // see give
	var progress int16
	var id, timeout, within int64
	var headers string
	columns := []any{&j.Slot, &wanted, &j.Position, &id, &j.Priority, &j.Attempt, &j.MaxAttempts, &j.Fence, instant{&j.EnqueuedAt},
		&timeout, &headers, &j.Key, &j.LastError, &j.Losses, &j.Group, &progress, &within, &j.Payload}
	for rows.Next() {
		j = core.Claimed{}
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		j.StartWithin = core.FromMS(within)
		complete(r, &j, 0, id, timeout, headers)
		j.HasProgress = progress != 0
		got = append(got, j)
	}
	return r.Give(got, wanted)
}

func complete(r *core.Run, j *core.Claimed, queue int, id, timeout int64, headers string) {
	policy := r.Queues[queue]
	j.Queue, j.Job.Queue, j.ID, j.EnqueuedAt = queue, policy.Queue, core.ID(id), j.EnqueuedAt.UTC()
	j.Timeout = cmp.Or(core.FromMS(timeout), policy.Timeout)
	j.Headers = core.ReadHeaders(headers)
}

// Bury implements core.Claimer.
func (t *tx) Bury(jobs []core.TooLarge) {
	var id, keepDead []int64
	var limits []int32
	var message []string
	for _, j := range jobs {
		id, keepDead = append(id, j.ID), append(keepDead, core.MS(j.Policy.RetainDead))
		limits, message = append(limits, int32(j.Policy.MaxAttempts)), append(message, j.Message)
	}
	t.each(t.s.sql.bury, t.noteGroup, id, limits, keepDead, message)
}

// noteGroup notes the group in a row.
func (t *tx) noteGroup(rows pgx.Rows) error {
	var g core.Group
	err := rows.Scan(&g.Queue, &g.Name)
	if err == nil {
		t.NoteGroups([]core.Group{g})
	}
	return err
}

// LockExpired implements core.Expirer.
func (t *tx) LockExpired(ctx context.Context, d core.Due, only []int64, limit int) (all []core.Expired, seen int, err error) {
	err = t.ask(ctx, t.s.sql.lockExpired, func(rows pgx.Rows) error {
		var e core.Expired
		err := rows.Scan(&e.ID, &e.Queue, &e.Remove)
		all = append(all, e)
		return err
	}, limit, since(d.ExpireAt), only)
	return all, len(all), err
}

// Expire implements core.Expirer.
func (t *tx) Expire(jobs []core.Expired) {
	slices.SortFunc(jobs, func(a, b core.Expired) int { return cmp.Compare(a.ID, b.ID) })
	var ids, keepDead, removed []int64
	for _, j := range jobs {
		keep := core.MS(j.RetainDead)
		if j.Remove {
			removed, keep = append(removed, j.ID), 1
		}
		ids, keepDead = append(ids, j.ID), append(keepDead, keep)
	}
	if len(removed) > 0 {
		t.each(t.s.sql.removeExpired, t.noteGroup, removed)
	}
	t.each(t.s.sql.expire, t.noteGroup, ids, keepDead, backends.ExpiredMessage)
}

// claimStatement returns the statement that claims up to n jobs from a queue.
func (s *Store) claimStatement(p backends.Policy, n int, lean bool) *pgx.QueuedQuery {
	t := &tx{s: s, batch: &pgx.Batch{}}
	r := &core.Run{
		Sidecar: 1, Queues: []backends.Policy{p}, Pieces: []core.Piece{{Segment: cursor.Whole}}, MaxBytes: 1 << 20, MaxPayload: 1 << 20,
		AtLeastOne: true, LeanOK: lean,
	}
	for i := range n {
		r.Slots = append(r.Slots, backends.Slot{Token: backends.Token{Sidecar: 1, Number: uint64(i + 1)}})
	}
	t.Claim(r)
	return t.batch.QueuedQueries[0]
}

// ClaimState implements core.Tx.
func (t *tx) ClaimState() core.ClaimState {
	x := &t.status
	returns, fair := make([]int64, len(x.returns)), make([]bool, len(x.returns))
	for i, n := range x.returns { // the fragment returns in sql/tx.sql describes the numbers
		limited := n < 0
		if limited {
			n = -1 - n
		}
		if returns[i], fair[i] = n/2, n%2 != 0; limited {
			returns[i] = -1 - returns[i]
		}
	}
	return core.ClaimState{Returns: returns, Fair: fair, Wrote: x.xid != "", LeftSome: x.left, Began: t.began, Ended: x.xmin}
}
