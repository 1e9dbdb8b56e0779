package core

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Commit implements backends.Backend.
func (s *Store) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	return s.CommitWith(ctx, b, backends.TxHooks{})
}

// commitWith commits the batch and the hooks in one transaction. With careful it has one claim, of one queue.
func (s *Store) commitWith(ctx context.Context, b backends.Batch, hooks backends.TxHooks, careful *Careful) (backends.Results, error) {
	k := s.NewCommit(b, hooks)
	k.careful = careful
	run := func() error {
		for {
			o := k.Options()
			var locked *backends.LockedError
			switch err := s.Write(ctx, o, k.Run); {
			case errors.Is(err, ErrDryRun):
				return err
			case errors.Is(err, errSetAside):
			case errors.Is(err, ErrNotAll) && k.fast:
				k.fast = false
			case errors.As(err, &locked) && o.Settles && k.canAvoidLocked():
				k.avoidLocked = true
			case errors.As(err, &locked) && k.avoidLocked && k.fast && k.s.traits.AcksAll: // a key, which Writer.Ack needed
				k.fast = false
			default:
				return err
			}
		}
	}
	patience := sharedPatience
	if b.WaitForLocks {
		patience = lockPatience
	}
	if err := patiently(ctx, patience, run); err != nil {
		return backends.Results{}, err
	}
	return k.Committed(), nil
}

// Commit is one batch on its way to the database. Run is called for each try of the transaction.
//
// The writes come first. Those that one statement can carry out are sent at once: new jobs, plain acks,
// deliveries. For the others, a statement locks the rows, package backends decides what becomes of them, and a
// second statement writes that. Claims follow in rounds.
//
// If another program has a row locked, the first try ends with a LockedError. The next one first finds out which
// rows are locked, and carries out the batch without their writes.
type Commit struct {
	s     *Store
	given backends.Batch
	hooks backends.TxHooks

	batch backends.Batch // given, and the writes that the hook added
	res   backends.Results
	fast  bool // try acks with Writer.Ack

	careful *Careful // nil: the claims leave no rows out

	avoidLocked bool         // the writes whose rows or keys are locked get a LockedError
	aside       map[int]bool // the writes whose keys were locked at an earlier try

	settles []settle
	rows    map[int64]*Row
	jobs    []*NewJob // queued for insertion
	keys    map[jobKey]*NewJob
	changed int    // number of rows whose change isn't confirmed yet
	claims  Claims // nil: not queued yet
	pending bool   // see Writer.Insert
	backs   []giveBack
}

// NewCommit prepares a batch.
func (s *Store) NewCommit(b backends.Batch, hooks backends.TxHooks) *Commit {
	k := &Commit{s: s, given: b, hooks: hooks, fast: !s.lean.next()}
	k.avoidLocked = k.canAvoidLocked() && s.locked.next()
	return k
}

// canAvoidLocked reports whether the commit can avoid locked rows: not if it is to wait for them, and not beside
// writes to adopted tables, which their hooks set aside.
func (k *Commit) canAvoidLocked() bool {
	return !k.avoidLocked && !k.given.WaitForLocks && k.hooks.Before == nil
}

// ReadAllRows makes the commit lock and read the rows of all acks. It doesn't use Writer.Ack then.
func (k *Commit) ReadAllRows() { k.fast = false }

// Options returns the options of the transaction.
func (k *Commit) Options() TxOptions {
	o := TxOptions{Unsynced: len(k.given.Writes) == 0 && !k.hooks.Writes, AdoptedWrites: k.hooks.Writes, AdoptedClaims: k.hooks.Claims,
		Keyed: slices.ContainsFunc(k.given.Writes, hasKeys), Settles: !k.avoidLocked && slices.ContainsFunc(k.given.Writes, hasLeases),
		WaitForLocks: k.given.WaitForLocks && countKeys(k.given.Writes) <= 1}
	if len(k.given.Claims) > 0 || k.hooks.Claims {
		o.Sidecar, o.Queues = k.given.Host, queuesOf(k.given.Claims)
	}
	return o
}

// Run carries out the batch in a transaction, without committing it.
func (k *Commit) Run(ctx context.Context, tx Tx) error {
	k.batch = k.given
	k.res, k.settles, k.rows, k.jobs, k.keys = backends.Results{}, nil, map[int64]*Row{}, nil, nil
	k.changed, k.claims, k.pending, k.backs = 0, nil, false, nil
	if k.hooks.Before != nil {
		k.batch.Writes = slices.Clone(k.given.Writes) // the hook can add others at each try
		if err := k.hooks.Before(ctx, tx, &k.batch); err != nil {
			return err
		}
	}
	k.res.Writes = make([]backends.WriteResult, len(k.batch.Writes))
	for n := range k.aside {
		k.res.Writes[n].Err = mustRunAlone()
	}
	if err := k.writes(ctx, tx); err != nil {
		return err
	}
	if k.claims != nil {
		var err error
		if k.res.Claims, err = k.claims.Finish(ctx); err != nil {
			return err
		}
	}
	if err := k.check(); err != nil {
		return err
	}
	if k.careful != nil && k.careful.dry {
		if err := tx.Flush(ctx); err != nil {
			return err
		}
		return ErrDryRun
	}
	if k.hooks.After != nil {
		return k.hooks.After(ctx, tx, &k.res)
	}
	return nil
}

// writes carries out the writes and queues the first statements of the claims.
func (k *Commit) writes(ctx context.Context, tx Tx) error {
	fast := k.fast
	k.list(&fast)
	if k.avoidLocked {
		if err := k.setLockedAside(ctx, tx); err != nil {
			return err
		}
	}
	k.insert(tx, func(w backends.Write) bool { _, is := w.(backends.Enqueue); return is })
	answers := k.queueFast(tx, fast)
	locks := k.queueLocks(tx, func(x *settle) bool { return !k.isFast(x, fast) })
	if !k.pending && !k.mayFree(locks) {
		k.startClaims(ctx, tx)
	}
	if answers || locks || k.claims != nil || k.pending && len(k.batch.Claims) > 0 {
		if err := tx.Flush(ctx); err != nil {
			return err
		}
		k.pending = false
	}
	if answers && k.queueLocks(tx, func(x *settle) bool { return k.isFast(x, fast) && !x.done && !k.isLost(x) }) {
		if err := tx.Flush(ctx); err != nil {
			return err
		}
	}
	k.apply()
	if k.avoidLocked {
		if err := k.setLockedKeysAside(ctx, tx); err != nil {
			return err
		}
	}
	k.insert(tx, func(w backends.Write) bool { a, is := w.(backends.Ack); return is && len(a.Enqueue) > 0 })
	k.change(tx)
	if k.claims != nil || len(k.batch.Claims) == 0 {
		return k.flushIf(ctx, tx, k.s.traits.Silent && (len(k.jobs) > 0 || k.changed > 0))
	}
	if err := k.flushIf(ctx, tx, k.pending); err != nil {
		return err
	}
	k.startClaims(ctx, tx)
	return tx.Flush(ctx)
}

func (k *Commit) flushIf(ctx context.Context, tx Tx, needed bool) error {
	if !needed {
		return nil
	}
	return tx.Flush(ctx)
}

// apply decides the outcome of the locked rows, write by write, and which leases are lost.
func (k *Commit) apply() {
	for i := range k.settles {
		x := &k.settles[i]
		if x.done {
			continue
		}
		r := k.rows[x.ID]
		if x.lost = r == nil || !r.proves(x.Lease); x.lost {
			continue
		}
		res := &k.res.Writes[x.write]
		switch w := k.batch.Writes[x.write].(type) {
		case backends.Ack:
			if !k.s.traits.AcksAll && (r.Kept || r.Key != "" || r.Failed) {
				k.s.lean.start()
			}
			r.ack(w.Result)
		case backends.Nack:
			k.end(res, r, r.AfterNack(w, k.batch.Jitter.Of(r.Queue)), backends.CauseNacked)
		case backends.Release:
			k.end(res, r, r.AfterRelease(w, k.batch.Jitter.Of(r.Queue)), w.Cause)
		case backends.Extend:
			if r.extend(w); w.Bind != 0 && r.Alone() {
				res.Alone = append(res.Alone, w.Leases[x.n])
			}
		case backends.Deliver:
			r.deliver(w.Deliveries[x.n])
		}
	}
	for i := range k.settles { // in their order
		if x := &k.settles[i]; x.lost {
			res := &k.res.Writes[x.write]
			res.Lost = append(res.Lost, backends.LeasesOf(k.batch.Writes[x.write])[x.n])
		}
	}
}

func (k *Commit) end(res *backends.WriteResult, r *Row, d backends.Disposition, cause backends.Cause) {
	r.end(d)
	res.Failed.Add(r.Queue, cause, d.State == backends.StateDead)
	if d.State == backends.StateReady {
		addQueue(res, r.Queue)
	}
}

// change queues the statement that writes the changes of the rows.
func (k *Commit) change(tx Tx) {
	k.changed, k.backs = queueChanges(tx, slices.Collect(maps.Values(k.rows)), k.backs, func(*Row) { k.changed-- })
}

// queueChanges queues the changes of rows. It returns their number, and backs with the jobs appended that
// return to their old positions.
func queueChanges(tx Tx, rows []*Row, backs []giveBack, changed func(*Row)) (int, []giveBack) {
	all := slices.DeleteFunc(rows, func(r *Row) bool { return r.Change.Kind == Untouched })
	if len(all) == 0 {
		return 0, backs
	}
	slices.SortFunc(all, func(a, b *Row) int { return compareIDs(a.ID, b.ID) })
	back := len(backs)
	for _, r := range all {
		if r.Change.Kind == Ended && r.Change.State == backends.StateReady && r.Change.SamePosition {
			backs = append(backs, giveBack{queue: r.Queue, urgency: -int32(r.Priority), position: r.Position})
		}
	}
	mine := backs[back:]
	tx.Change(all, changed, func(queue string, returns int64) {
		for i := range mine {
			if mine[i].queue == queue {
				mine[i].returns = returns
			}
		}
	})
	return len(all), backs
}

// ErrSilent means that a change did not happen although the server reported no error.
var ErrSilent = errors.New("a trigger on qsidecar_jobs, or a policy, passed a row over without an error")

// check returns an error if a change is missing that the server reported no error for.
func (k *Commit) check() error {
	if !k.s.traits.Silent {
		return nil
	}
	if k.changed > 0 {
		return backends.Refused(ErrSilent)
	}
	for _, j := range k.jobs {
		if err := j.check(); err != nil {
			return err
		}
	}
	return nil
}

// Committed updates the cursors after the commit, notifies the driver of queues with new ready jobs, and
// returns the results.
func (k *Commit) Committed() backends.Results {
	k.s.gaveBack(k.backs)
	if k.claims != nil {
		k.claims.Committed()
	}
	var queues []string
	for i := range k.res.Writes {
		res := &k.res.Writes[i]
		if res.Err == nil && slices.ContainsFunc(res.Stored, func(s backends.Stored) bool { return s.ID == "" }) {
			res.Err = backends.ErrUnknownOutcome // the answers got lost, and the driver found out that the commit happened
		}
		queues = append(queues, res.MadeReady...)
	}
	if k.hooks.Freed != nil {
		queues = append(queues, k.hooks.Freed()...)
	}
	if len(queues) > 0 {
		k.s.driver.MadeReady(queues)
	}
	return k.res
}
