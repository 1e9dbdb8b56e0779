package adopted

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// sweeps is what a Store remembers from sweep to sweep.
type sweeps struct {
	mu   sync.Mutex
	last int64 // the lease that the last look for forgotten ones ended with
}

// Sweep implements backends.Backend: the engine's, and the same for adopted queues.
func (s *Store) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	all := w.Waiting
	w.Waiting = slices.DeleteFunc(slices.Clone(all), s.Adopted)
	r, err := s.Adopter.Maintain(ctx, w)
	if err != nil {
		return r, err
	}
	o, err := s.look(ctx, slices.DeleteFunc(slices.Clone(all), func(q string) bool { return !s.Adopted(q) }))
	if err != nil {
		return r, err
	}
	r.Ready = append(r.Ready, o.ready...)
	if o.next >= 0 && (r.Next < 0 || o.next < r.Next) {
		r.Next = o.next
	}
	if next := s.overdue(ctx, &r); next >= 0 && (r.Next < 0 || next < r.Next) {
		r.Next = next
	}
	for _, q := range s.holds.roomFor() {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	if o.due {
		if err := s.reap(ctx, &r, w.Limit, s.dueLeases()); err != nil {
			return r, err
		}
	}
	if o.lost {
		if err := s.reap(ctx, &r, w.Limit, s.lostLeases()); err != nil {
			return r, err
		}
	}
	if err := s.unstick(ctx, &r, w.Limit); err != nil {
		return r, err
	}
	if w.Prune {
		if err = s.forget(ctx, &r, w.PruneLimit()); err == nil {
			err = s.prune(ctx, &r, w.PruneLimit())
		}
	}
	return r, err
}

// outlook is what a look saw.
type outlook struct {
	due, lost bool
	next      time.Duration // until a lease ends; < 0: none does
	ready     []string
}

// mine is the condition for leases of queues that this Store knows how to free.
func (s *Store) mine(n int) string {
	return s.g.AnyOf(n, backends.Column{Name: "queue", Type: "text", Kind: backends.TextColumn})
}

func (s *Store) lost() string {
	return "l.token_host IS NOT NULL AND l.owner IS NOT NULL AND l.lease_ms IS NULL AND NOT " + s.g.IsAlive("l.owner")
}

// look asks in one go for all that a sweep may find.
func (s *Store) look(ctx context.Context, waiting []string) (outlook, error) {
	o := outlook{next: -1}
	g := s.g
	from := " FROM " + g.SidecarTable(leasesTable) + " l WHERE " + s.mine(1)
	asks := []*backends.Statement{{
		Text: "SELECT " + outputs(g.ToText("min(l.due_at) - "+g.NowMillis())) + from + " AND l.due_at IS NOT NULL",
		Args: []any{s.known()},
		Row: func(cells [][]byte) error {
			if cells[0] == nil {
				return nil
			}
			var left int64
			err := number(cells[0], &left)
			o.next, o.due = max(batch.FromMS(left), 0), left <= 0
			return err
		},
	}, {
		Text: "SELECT " + outputs(g.ToText("count(*)")) + from + " AND " + s.lost(),
		Args: []any{s.known()},
		Row: func(cells [][]byte) error {
			o.lost = string(cells[0]) != "0"
			return nil
		},
	}}
	for _, q := range waiting {
		t := s.tables[q]
		asks = append(asks, &backends.Statement{
			Text: "SELECT " + outputs(g.ToText("count(*)")) + " FROM (" + g.SelectFirst("1 AS one", t.name, t.claimable(cmp.Or(t.MaxAttempts, noLimit)), "", "1") + ") x",
			Row: func(cells [][]byte) error {
				if string(cells[0]) != "0" {
					o.ready = append(o.ready, q)
				}
				return nil
			},
		})
	}
	return o, s.Query(ctx, asks...)
}

// reaping is a query for leases to be taken back, and why.
type reaping struct {
	where, order string
	index        string // of the leases, that a HintDialect names; empty: none has that order
	cause        func(*lease) backends.Cause
}

// query locks up to n (argument 1) of the leases, passing over those that others have locked.
func (r reaping) query(s *Store) string {
	columns, from, where := leaseColumns(s.g), s.g.SidecarTable(leasesTable)+" l", s.mine(2)+" AND "+r.where
	if h, ok := s.g.(backends.HintDialect); ok && r.index != "" {
		return h.SelectClaim(columns, from, where, r.order, 1, r.index, true)
	}
	return s.g.SelectLocked(columns, from, where, r.order, 1, true)
}

func (s *Store) dueLeases() reaping {
	return reaping{"l.due_at IS NOT NULL AND l.due_at <= " + s.g.NowMillis(), "l.due_at", "qsidecar_leases_due", func(l *lease) backends.Cause {
		if l.deadline > 0 && l.deadline <= l.dueAt {
			return backends.CauseTimedOut
		}
		return backends.CauseLeaseEnded
	}}
}

func (s *Store) lostLeases() reaping {
	return reaping{s.lost(), "l.id", "", func(*lease) backends.Cause { return backends.CauseSidecarLost }}
}

// reap takes a bite of leases back. It locks them in no one's way: who settles one
// just now has it.
func (s *Store) reap(ctx context.Context, r *backends.MaintenanceResult, limit int, what reaping) error {
	x := &settling{s: s}
	_, err := s.CommitWith(ctx, backends.Batch{}, backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) error {
		*x = settling{s: s, leases: map[int64]*lease{}, single: true}
		if err := sql.Do(ctx, x.query(what.query(s), int64(limit), s.known())); err != nil {
			return err
		}
		if err := x.leaveLocked(ctx, sql); err != nil {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(x.leases)) {
			l := x.leases[id]
			if _, err := x.end(s.tableOf(l.queue), l, l.standing().AfterReap(what.cause(l)), what.cause(l), nil); err != nil {
				return err
			}
		}
		return x.flush(ctx, sql)
	}, Freed: func() []string { return x.freed() }})
	if err != nil {
		return err
	}
	for _, e := range x.ends {
		if e.statement.Matched > 0 {
			r.Reaped[e.cause]++
			r.Failed.Add(e.l.queue, e.why, e.dead)
		}
	}
	for _, q := range x.freed() {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	r.More = r.More || len(x.ends) >= limit
	return nil
}

// freed are the queues of the jobs that were made ready.
func (x *settling) freed() (queues []string) {
	for _, e := range x.ends {
		if e.frees && e.statement.Matched > 0 && !slices.Contains(queues, e.l.queue) {
			queues = append(queues, e.l.queue)
		}
	}
	return queues
}

// leaveLocked leaves out the jobs whose rows somebody else has locked: one of them
// must not keep the others from being taken back.
func (x *settling) leaveLocked(ctx context.Context, sql backends.SQL) error {
	items := map[string][]string{}
	for _, l := range x.leases {
		items[l.queue] = append(items[l.queue], l.item)
	}
	there, got := map[string]map[string]bool{}, map[string]map[string]bool{}
	var asks []*backends.Statement
	for q, all := range items {
		t := x.s.tableOf(q)
		there[q], got[q] = map[string]bool{}, map[string]bool{}
		note := func(to map[string]bool) func(cells [][]byte) error {
			return func(cells [][]byte) error { to[t.item(cells)] = true; return nil }
		}
		id := outputs(t.keyTexts()...)
		asks = append(asks, t.amongst(all, func(w *writing, where string) *backends.Statement {
			return &backends.Statement{Text: t.g.SelectLocked(id, t.name, where, "", 0, true), Args: w.args, Row: note(got[q])}
		})...)
		asks = append(asks, t.amongst(all, func(w *writing, where string) *backends.Statement {
			return &backends.Statement{Text: t.g.SelectUnlocked(id, t.name, where), Args: w.args, Row: note(there[q])}
		})...)
	}
	if err := sql.Do(ctx, asks...); err != nil {
		return err
	}
	for id, l := range x.leases {
		if there[l.queue][l.item] && !got[l.queue][l.item] {
			delete(x.leases, id)
		}
	}
	return nil
}

// unstick makes rows ready again that their own consumers claimed too long ago. It
// knows no lease of theirs: with a lease a row is ours.
func (s *Store) unstick(ctx context.Context, r *backends.MaintenanceResult, limit int) error {
	for _, q := range s.queues() {
		t := s.tables[q]
		if t.StuckAfter <= 0 {
			continue
		}
		freed := 0
		_, err := s.CommitWith(ctx, backends.Batch{}, backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) (err error) {
			freed, err = t.unstick(ctx, sql, limit)
			return err
		}, Freed: func() []string {
			if freed == 0 {
				return nil
			}
			return []string{q}
		}})
		if err != nil {
			return err
		}
		if freed > 0 && !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
		r.More = r.More || freed >= min(limit, t.most())
	}
	return nil
}

func (t *table) unstick(ctx context.Context, sql backends.SQL, limit int) (freed int, err error) {
	since := t.one[ClaimedAt]
	all := append(t.in(backends.StateClaimed), t.passed(since, 2),
		t.forgotten("l.token_host IS NOT NULL"))
	var items []string
	if err := sql.Do(ctx, &backends.Statement{
		Text: t.g.SelectLocked(outputs(t.keyTexts()...), t.name, strings.Join(all, " AND "), t.g.Name(since.Name), 1, true),
		Args: []any{int64(min(limit, t.most())), -t.StuckAfter.Milliseconds()},
		Row:  func(cells [][]byte) error { items = append(items, t.item(cells)); return nil },
	}); err != nil || len(items) == 0 {
		return 0, err
	}
	w := &writing{t: t}
	w.state(backends.StateReady)
	w.unclaimed()
	st := w.update(w.among(items))
	return len(items), sql.Do(ctx, st)
}

// forget removes what is remembered of jobs whose rows are gone, or that their own
// consumers finished.
func (s *Store) forget(ctx context.Context, r *backends.MaintenanceResult, limit int) error {
	s.sweeps.mu.Lock()
	defer s.sweeps.mu.Unlock()
	x := &settling{s: s, leases: map[int64]*lease{}}
	if err := s.Query(ctx, x.query(s.g.SelectFirst(leaseColumns(s.g), s.g.SidecarTable(leasesTable)+" l",
		s.mine(1)+" AND l.token_host IS NULL AND l.id > "+s.g.IntArg(2), "l.id", s.g.IntArg(3)), s.queues(), s.sweeps.last, int64(limit))); err != nil {
		return err
	}
	ids := slices.Sorted(maps.Keys(x.leases))
	if len(ids) < limit {
		s.sweeps.last = 0
	} else {
		s.sweeps.last = ids[len(ids)-1]
	}
	there := map[string]map[string]bool{}
	var asks []*backends.Statement
	for _, q := range s.queues() {
		var items []string
		for _, id := range ids {
			if l := x.leases[id]; l.queue == q {
				items = append(items, l.item)
			}
		}
		if len(items) > 0 {
			there[q] = map[string]bool{}
			asks = append(asks, s.tables[q].unfinished(items, there[q])...)
		}
	}
	if len(asks) == 0 {
		return nil
	}
	var locked *backends.LockedError
	if err := s.Query(ctx, asks...); errors.As(err, &locked) {
		return nil // another time
	} else if err != nil {
		return err
	}
	var removes []*backends.Statement
	for _, id := range ids {
		if l := x.leases[id]; !there[l.queue][l.item] {
			st := l.remove(s.g)
			st.Text += " AND token_host IS NULL AND changed_at = " + s.g.IntArg(2)
			st.Args = append(st.Args, l.changed)
			removes = append(removes, st)
		}
	}
	if len(removes) == 0 {
		return nil
	}
	began, gone := time.Now(), 0
	_, err := s.CommitWith(ctx, backends.Batch{}, backends.TxHooks{Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) error {
		return sql.Do(ctx, removes...)
	}})
	for _, st := range removes {
		gone += int(st.Matched)
	}
	r.AddPruned(gone, len(ids), limit, time.Since(began)) // where there are some to be forgotten there may be more
	return err
}

// unfinished finds which of the rows are there and not done.
func (t *table) unfinished(items []string, there map[string]bool) []*backends.Statement {
	all := t.inQueue()
	if done := t.shows(backends.StateDone); done != nil {
		all = append(all, "CASE WHEN "+done[0]+" THEN 1 ELSE 0 END = 0")
	}
	return t.amongst(items, func(w *writing, where string) *backends.Statement {
		return &backends.Statement{
			Text: "SELECT " + outputs(t.keyTexts()...) + " FROM " + t.name + " WHERE " + strings.Join(append(slices.Clone(all), where), " AND "), Args: w.args,
			Row: func(cells [][]byte) error { there[t.item(cells)] = true; return nil },
		}
	})
}
