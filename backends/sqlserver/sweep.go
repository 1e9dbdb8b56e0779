package sqlserver

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// outlook is what a look without writing found to do, and what it saw.
type outlook struct {
	promote, due  bool
	lost          []int64      // owners of claimed rows who are dead or unknown
	dead          bool         // there are rows of dead hosts
	expired, keys sql.NullTime // since when the first of them is over
	ready         []string
	next          time.Duration
	at            time.Time // of the look
}

// Sweep implements backends.Backend. Where nothing is due it is one batch.
func (s *Store) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	r := backends.MaintenanceResult{Reaped: map[backends.Cause]int{}, Next: -1}
	if len(w.Suspects) > 0 {
		if err := s.bite(ctx, &r, 0, func(t *tx, _ *bitten) { giveUp(t, w.Suspects) }); err != nil {
			return r, err
		}
	}
	o, err := s.lookAround(ctx, w)
	if err != nil {
		return r, err
	}
	limit := min(w.Limit, most)
	bites := []struct {
		due bool
		f   func(t *tx, b *bitten)
	}{
		{o.promote, func(t *tx, b *bitten) { b.promote(t, limit) }},
		{o.due, func(t *tx, b *bitten) { b.reap(t, s.sql.due, int64(limit)) }},
		{len(o.lost) > 0, func(t *tx, b *bitten) { b.reap(t, s.sql.lost, ownersOf(o.lost), int64(limit)) }},
		{o.dead, func(t *tx, _ *bitten) { t.add(s.sql.forget, nil) }},
	}
	bit := false
	for _, b := range bites {
		if b.due {
			bit = true
			if err := s.bite(ctx, &r, limit, b.f); err != nil {
				return r, err
			}
		}
	}
	for _, p := range []struct {
		since sql.NullTime
		what  *piece
	}{{o.expired, s.sql.pruneJobs}, {o.keys, s.sql.pruneKeys}} {
		if p.since.Valid {
			bit = true
			r.PruneOverdue = max(r.PruneOverdue, o.at.Sub(p.since.Time))
			if err := s.prune(ctx, &r, p.what, min(w.PruneLimit(), most)); err != nil {
				return r, err
			}
		}
	}
	if bit {
		w.Prune = false
		if o, err = s.lookAround(ctx, w); err != nil {
			return r, err
		}
	}
	r.Ready, r.Next = o.ready, o.next
	return r, nil
}

// bitten is what one bite did.
type bitten struct {
	rows, promoted int
	reaped         map[backends.Cause]int
	freed          []string
	fallen         backends.FailedCounts
	found          []found // to be reaped
}

// bite runs f as one transaction, and adds what it did to r once it is committed.
// What f found to be reaped is, in a second round.
func (s *Store) bite(ctx context.Context, r *backends.MaintenanceResult, limit int, f func(t *tx, b *bitten)) error {
	var b bitten
	if err := s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
		switch {
		case round == 0:
			b = bitten{reaped: map[backends.Cause]int{}}
			f(t, &b)
			return true, nil
		case round == 1 && len(b.found) > 0:
			t.meet(b.found, func(f found) backends.Disposition { return f.standing.AfterReap(f.cause) }, func(f found, fate backends.Disposition) {
				b.reaped[f.cause]++
				b.fallen.Add(f.queue, f.cause, fate.State == backends.StateDead)
				if fate.State == backends.StateReady {
					b.freed = append(b.freed, f.queue)
				}
			})
			return true, nil
		}
		return false, nil
	}); err != nil {
		return err
	}
	r.Promoted += b.promoted
	for c, n := range b.reaped {
		r.Reaped[c] += n
	}
	r.Failed.AddAll(b.fallen)
	for _, q := range b.freed {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	r.More = r.More || limit > 0 && b.rows >= limit
	return nil
}

func (b *bitten) promote(t *tx, limit int) {
	t.add(t.s.sql.promote, []reader{each(func(rows *sql.Rows) error {
		var queue string
		if err := rows.Scan(&queue); err != nil {
			return err
		}
		b.rows, b.promoted, b.freed = b.rows+1, b.promoted+1, append(b.freed, queue)
		return nil
	})}, int64(limit))
}

// reap has rows locked that due.sql or lost.sql finds. Only the latter says how many
// it found in all.
func (b *bitten) reap(t *tx, p *piece, args ...any) {
	read := []reader{each(func(rows *sql.Rows) error {
		f, err := scanFound(rows)
		b.found = append(b.found, f)
		b.rows++
		return err
	})}
	if p == t.s.sql.lost {
		read = append(read, one(&b.rows))
	}
	t.add(p, read, args...)
}

// prune deletes what is over.
func (s *Store) prune(ctx context.Context, r *backends.MaintenanceResult, p *piece, limit int) error {
	began := time.Now()
	var n int
	if err := s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
		if round == 0 {
			t.add(p, []reader{one(&n)}, int64(limit))
		}
		return round == 0, nil
	}); err != nil {
		return err
	}
	r.AddPruned(n, n, limit, time.Since(began))
	return nil
}

// giveUp marks the suspects dead that still look the same.
func giveUp(t *tx, suspects []backends.Suspect) {
	var rows []hostRow
	for _, s := range suspects {
		if r := (hostRow{int64(s.Host), int64(s.Heartbeats), ms(s.Timeout)}); !slices.ContainsFunc(rows, func(x hostRow) bool { return x.Host == r.Host }) {
			rows = append(rows, r)
		}
	}
	t.add(t.s.sql.giveUp, nil, document(rows))
}

func ownersOf(owners []int64) any {
	rows := make([]ownerRow, len(owners))
	for i, o := range owners {
		rows[i] = ownerRow{o}
	}
	return document(rows)
}

// slowLook is how long a look may take that compares the claims' owners with the
// hosts. It is short, unless what is gone of the index cannot be cleared away: then
// the comparison is made every ownersEvery only, and at once where a host is known
// to be dead.
const (
	slowLook    = 50 * time.Millisecond
	ownersEvery = 5 * time.Second
)

func (s *Store) lookAround(ctx context.Context, w backends.Maintenance) (o outlook, err error) {
	s.owners.mu.Lock()
	owners := !time.Now().Before(s.owners.next)
	s.owners.mu.Unlock()
	if o, err = s.lookOnce(ctx, w, owners); err == nil && o.dead && !owners {
		o, err = s.lookOnce(ctx, w, true)
	}
	return o, err
}

func (s *Store) lookOnce(ctx context.Context, w backends.Maintenance, owners bool) (o outlook, err error) {
	now := time.Now()
	x := claiming{cursors: &s.cursors, seen: map[string]*learned{}}
	for _, q := range w.Waiting {
		x.Queues = append(x.Queues, backends.Policy{Queue: q})
	}
	x.to = len(x.Queues)

	var run, due sql.NullTime
	var ready map[int]bool
	var returns map[int]int64
	read := []reader{
		one(&o.at, &run, &due, &o.dead, &o.expired, &o.keys),
		func(rows *sql.Rows) error {
			o.lost = nil
			return numbersInto(rows, func(n int64) { o.lost = append(o.lost, n) })
		},
		func(rows *sql.Rows) error {
			ready = map[int]bool{}
			return numbersInto(rows, func(n int64) { ready[int(n)-1] = true })
		},
		func(rows *sql.Rows) error {
			returns = map[int]int64{}
			return returnsInto(rows, returns)
		},
	}
	err = s.read(ctx, call{s.sql.around, []any{int64(bit(w.Prune)), int64(bit(owners)), document(x.segments(now)), listOf(w.Waiting)}, read})
	if err != nil {
		return o, err
	}
	took := time.Since(now)
	if owners && took > slowLook {
		s.owners.mu.Lock()
		s.owners.next = now.Add(ownersEvery)
		s.owners.mu.Unlock()
	}
	o.next = -1
	for _, t := range []sql.NullTime{run, due} {
		if t.Valid && (o.next < 0 || t.Time.Sub(o.at) < o.next) {
			o.next = max(t.Time.Sub(o.at), 0)
		}
	}
	o.promote, o.due = run.Valid && !run.Time.After(o.at), due.Valid && !due.Time.After(o.at)
	for i, q := range w.Waiting {
		// Where jobs were given back behind the cursor, a claim has to look.
		if ready[i] || s.cursors.Returned(q, returns[i]) {
			o.ready = append(o.ready, q)
		} else if x.seen[q].Whole {
			s.cursors.LookedAtWhole(q, now, took)
		}
	}
	return o, nil
}

// numbersInto reads a set of one number in each row.
func numbersInto(rows *sql.Rows, f func(n int64)) error {
	return each(func(rows *sql.Rows) error {
		var n int64
		err := rows.Scan(&n)
		f(n)
		return err
	})(rows)
}

// returnsInto reads how often jobs were given back, by a queue's place in the list.
func returnsInto(rows *sql.Rows, returns map[int]int64) error {
	return each(func(rows *sql.Rows) error {
		var n int
		var returned int64
		err := rows.Scan(&n, &returned)
		returns[n] = returned
		return err
	})(rows)
}

// named are the documents' rows of those ids that are any, each once.
func named(ids []string) (rows []idRow) {
	seen := map[int64]bool{}
	for _, text := range ids {
		if id, ok := batch.Number(text); ok && !seen[id] {
			seen[id] = true
			rows = append(rows, idRow{len(rows), id})
		}
	}
	return rows
}
