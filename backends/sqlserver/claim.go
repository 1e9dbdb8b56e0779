package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Claim implements core.Claimer.
func (t *tx) Claim(r *core.Run) {
	p, careful := t.s.sql.claim, t.s.sql.claimExcept
	if r.Queues[0].LIFO {
		p, careful = t.s.sql.claimNewest, t.s.sql.claimNewestExcept
	}
	args := []any{int64(len(r.Slots)), r.MaxBytes, r.MaxPayload, int64(r.Sidecar), int64(bit(r.AtLeastOne)),
		document(segmentsOf(r.Pieces, func(i int) string { return r.Queues[i].Queue })), document(policiesOf(r)), document(slotsOf(r))}
	if r.Careful != nil {
		p, args = careful, append([]any{document(idRows(r.Careful.Except))}, args...)
	}
	var got []core.Claimed
	t.add(p, []reader{
		each(func(rows *sql.Rows) error {
			j, err := scanClaimed(r, rows)
			got = append(got, j)
			return err
		}),
		func(rows *sql.Rows) error {
			wanted, err := readLeftOver(r, rows)
			if err != nil {
				return err
			}
			if int64(len(got)) != wanted {
				return shortClaim(wanted, len(got), t.s.server.babelfish)
			}
			return r.Give(got, wanted)
		},
	}, args...)
}

// scanClaimed reads a row that the statement claimed.
func scanClaimed(r *core.Run, rows *sql.Rows) (j core.Claimed, err error) {
	var policy int
	var id, timeout, within int64
	var headers string
	var progress int16
	if err := rows.Scan(&j.Slot, &policy, &j.Position, &id, &j.Priority, &j.Attempt, &j.MaxAttempts, &j.Fence, &j.EnqueuedAt,
		&timeout, &headers, &j.Key, &j.LastError, &j.Losses, &j.Group, &progress, &within, &j.Payload); err != nil {
		return j, err
	}
	of, err := item(r.Queues, policy-1)
	if err != nil {
		return j, err
	}
	j.Queue, j.Job.Queue, j.ID, j.EnqueuedAt = policy-1, of.Queue, core.ID(id), j.EnqueuedAt.UTC()
	j.Timeout = cmp.Or(core.FromMS(timeout), of.Timeout)
	j.StartWithin = core.FromMS(within)
	j.Group = givenGroup(j.Group)
	j.Headers, j.HasProgress = core.ReadHeaders(headers), progress != 0
	return j, nil
}

// readLeftOver reads the rows that the statement locked and did not claim, and how many it meant to claim.
func readLeftOver(r *core.Run, rows *sql.Rows) (wanted int64, err error) {
	err = each(func(rows *sql.Rows) error {
		var policy int
		var id, size int64
		if err := rows.Scan(&policy, &id, &size); err != nil {
			return err
		}
		if policy == 0 {
			wanted = id
			return nil
		}
		_, err := item(r.Queues, policy-1)
		if err == nil {
			r.LeftOver(policy-1, id, size)
		}
		return err
	})(rows)
	return wanted, err
}

// segmentsOf returns the pieces of the index that a statement scans. name returns the name of a piece's queue.
func segmentsOf(pieces []core.Piece, name func(i int) string) (rows []segmentRow) {
	for _, p := range pieces {
		rows = segments(rows, name(p.Queue), p.Queue+1, p.Segment)
	}
	return rows
}

// segments adds a segment to rows in the form that the server reads. The rest of a priority after a position is one
// row, and whole priorities are another, because only the first can be found by the position.
func segments(rows []segmentRow, queue string, policy int, s cursor.Segment) []segmentRow {
	add := func(highest, lowest int32, low, high int64) {
		rows = append(rows, segmentRow{len(rows) + 1, queue, policy, int16(highest), int16(lowest), low, high})
	}
	piece := func(urgency int32, low, high int64) {
		if urgency >= mostUrgent && urgency <= leastUrgent && low < high {
			add(-urgency, -urgency, low, high)
		}
	}
	from, to := s.From, s.To
	if from.Urgency == to.Urgency {
		piece(from.Urgency, from.Position, to.Position)
		return rows
	}
	piece(from.Urgency, from.Position, math.MaxInt64) // the rest of its priority
	first, last := max(from.Urgency+1, mostUrgent), min(to.Urgency, leastUrgent)
	part := last == to.Urgency && to.Position < math.MaxInt64
	if part {
		last--
	}
	if first == last {
		piece(first, 0, math.MaxInt64)
	} else if first < last {
		add(-first, -last, 0, math.MaxInt64)
	}
	if part {
		piece(to.Urgency, 0, to.Position)
	}
	return rows
}

// Urgency is -priority.
const (
	mostUrgent  = -math.MaxInt16
	leastUrgent = math.MaxInt16 + 1
)

func policiesOf(r *core.Run) (rows []policyRow) {
	for i, p := range r.Queues {
		rows = append(rows, policyRow{i + 1, p.MaxAttempts, some(ms(p.Timeout)), ms(p.Backoff), ms(p.BackoffMax), some(ms(p.RetainDone)), some(ms(p.RetainDead))})
	}
	return rows
}

func slotsOf(r *core.Run) (rows []slotRow) {
	for i, s := range r.Slots {
		if s.Prefetch {
			s.Worker = "" // the job has no worker yet
		}
		rows = append(rows, slotRow{i + 1, int64(s.Token.Sidecar), int64(s.Token.Number), some(ms(s.Lease)), text(s.Worker), bit(s.Prefetch)})
	}
	return rows
}

// Bury implements core.Claimer.
func (t *tx) Bury(jobs []core.TooLarge) {
	rows := make([]buryRow, len(jobs))
	for i, j := range jobs {
		rows[i] = buryRow{j.ID, j.Policy.MaxAttempts, some(ms(j.Policy.RetainDead)), j.Message}
	}
	t.add(t.s.sql.bury, []reader{t.notesThem()}, document(rows))
}

// Expire implements core.Expirer.
func (t *tx) Expire(jobs []core.Expired) {
	var removed []onlyRow
	rows := make([]expireRow, len(jobs))
	for i, j := range jobs {
		if rows[i] = (expireRow{j.ID, some(ms(j.RetainDead))}); j.Remove {
			rows[i].KeepDead = some(1)
			removed = append(removed, onlyRow{j.ID})
		}
	}
	chunks(removed, func(_ int, rows []onlyRow) {
		t.add(t.s.sql.removeExpired, []reader{nil, t.notesThem()}, document(rows))
	})
	chunks(rows, func(_ int, rows []expireRow) {
		t.add(t.s.sql.expire, []reader{t.notesThem()}, document(rows), mssql.NVarCharMax(backends.ExpiredMessage))
	})
}

// A login without special rights cannot see which transactions are still open. So the transactions that drew a
// position before a certain time count as ended if that was a while ago and no lock exists in that range any more:
// the same statement draws a number and stores its row, and from then on the row's lock shows it. A statement that
// takes longer between the two (a huge INSERT … SELECT, which can fill an index last) is the reason why claims also
// scan below their lows (cursor.Set.Share).
const settled = 10 * time.Second

// Prove implements core.Claimer. It does nothing, because begin has proven everything that can be proven.
func (t *tx) Prove(context.Context, []string) {}

// prove moves the lows of the queues' cursors. A later transaction retries a failed proof.
func (s *Store) prove(ctx context.Context, queues []string) {
	for _, queue := range queues {
		proof, ok := s.Cursors.ToProve(queue)
		if !ok {
			continue
		}
		ended := s.age()
		first, err := s.probe(ctx, proof)
		if err != nil {
			s.log.Debug("claim position not advanced", "event", "claim_position_not_advanced", "address", s.place, "queue", queue, "error", err)
			continue
		}
		s.Cursors.Advance(proof, ended, first)
	}
}

// age returns how long this Store has been open, in nanoseconds, by a clock that is never set.
func (s *Store) age() int64 { return int64(time.Since(s.opened)) }

// probe returns the first ready position of each piece of a proof; 0: there is none.
func (s *Store) probe(ctx context.Context, p cursor.Proof) ([]int64, error) {
	first := make([]int64, len(p.Urgency))
	rows := make([]pieceRow, len(p.Urgency))
	for i, u := range p.Urgency {
		rows[i] = pieceRow{i, int16(-u), p.Low[i], p.High[i]}
	}
	err := s.sql.carryOut(ctx, s.db, []call{{s.sql.probe, []any{p.Queue, document(rows)}, []reader{each(func(rows *sql.Rows) error {
		var n int
		var position int64
		if err := rows.Scan(&n, &position); err != nil {
			return err
		}
		_, err := item(first, n)
		if err == nil {
			first[n] = position
		}
		return err
	})}}})
	return first, err
}

// claimStatement returns the batch of a claim of one job, with variables for its parameters.
func (s *Store) claimStatement(queue string) string {
	r := &core.Run{Queues: []backends.Policy{{Queue: queue, MaxAttempts: 1}}, Pieces: []core.Piece{{Segment: cursor.Whole}}}
	values := map[string]string{
		"claim_max": "1", "claim_bytes": fmt.Sprint(int64(math.MaxInt64)), "claim_payload": fmt.Sprint(int64(math.MaxInt64)), "claim_host": "0", "claim_first": "1",
		"claim_segments": quoteText(string(document(segmentsOf(r.Pieces, func(int) string { return queue })))),
		"claim_policies": quoteText(string(document(policiesOf(r)))), "claim_slots": "N'[]'",
	}
	var b strings.Builder
	for _, p := range s.sql.claim.params {
		fmt.Fprintf(&b, "DECLARE @%s %s = %s;\n", p.name, p.kind, values[p.name])
	}
	text, _ := s.sql.batch([]call{{piece: s.sql.claim}})
	return b.String() + text
}

// ClaimState implements core.Tx.
func (t *tx) ClaimState() core.ClaimState {
	age := t.s.age()
	return core.ClaimState{Returns: t.returns, Fair: t.fair, Ended: age, Begun: age + int64(settled)}
}
