package core

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batches"
)

// Commit implements backends.Backend.
func (s *Store) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	return s.CommitWith(ctx, b, backends.TxHooks{})
}

// commitWith commits the batch and the hooks in one transaction. With careful it has one claim, of one queue.
func (s *Store) commitWith(ctx context.Context, b backends.CommitContent, hooks backends.TxHooks, careful *Careful) (backends.Results, error) {
	k := s.NewCommit(b, hooks)
	k.careful = careful
	var refused error // with the notes of the groups
	run := func() error {
		for {
			k.noNotes = k.noNotes || !s.storesNotes()
			o := k.Options()
			var locked *backends.LockedError
			switch err := s.Write(ctx, o, k.Run); {
			case errors.Is(err, ErrDryRun):
				return err
			case errors.Is(err, errSetAside):
			case missedGates(err) != nil:
				k.missed = append(k.missed, missedGates(err)...)
			case errors.Is(err, ErrNotAll) && k.fast:
				k.fast = false
			case err != nil && !IsOutage(ctx, err) && k.admits: // after an outage the transaction can go on beside this
				k.apart = true // no job waits or fails because of the next one of its group
			case errors.As(err, &locked) && o.Settles && k.canAvoidLocked():
				k.avoidLocked = true
			case errors.As(err, &locked) && k.avoidLocked && k.fast && k.s.traits.AcksAll: // a key, which Writer.Ack needed
				k.fast = false
			case isLockedError(err) && s.tables.Some() && k.setNewJobsAside(err):
			case isOfTable(ctx, err) && len(k.groups) > 0 && !k.noNotes:
				k.noNotes, refused = true, err
			case refused != nil && err != nil: // the notes were not the reason
				return refused
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
		if l, ok := errors.AsType[*backends.LockedError](err); ok && len(b.Writes) == 0 {
			l.Gates = gatedQueues(b.Claims)
		}
		return backends.Results{}, err
	}
	res := k.Committed()
	res.Groups = k.groups
	s.noted(k.groups, k.noNotes, refused)
	for _, b := range k.batches {
		res.Batches = append(res.Batches, batches.ID(b))
	}
	return res, nil
}

// Commit is one batch on its way to the database. Run is called for each try of the transaction.
//
// The writes come first, in the steps of the function writes: what one statement can carry out is sent at once. For the other
// settles, a statement locks the rows, package backends decides what becomes of them, and a second statement writes that.
// Claims follow in rounds.
//
// If another program has a row locked, the first try ends with a LockedError. The next one first finds out which
// rows are locked, and carries out the batch without their writes.
type Commit struct {
	s     *Store
	given backends.CommitContent
	hooks backends.TxHooks

	batch backends.CommitContent // given, and the writes that the hook added
	res   backends.Results
	fast  bool // try acks with Writer.Ack, and deliveries with Writer.Deliver

	careful *Careful // nil: the claims leave no rows out
	missed  []string // queues that the claims leave out, see errMissedGates

	avoidLocked bool          // the writes whose rows or keys are locked get a LockedError
	aside       map[int]error // the writes whose keys, or tables, were locked at an earlier try

	settles []settle
	rows    map[int64]*Row
	jobs    []*NewJob // queued for insertion
	keys    map[jobKey]*NewJob

	conflicts []conflict // new jobs that replace others of the commit
	changed   int        // number of rows whose change isn't confirmed yet
	claims    Claims     // nil: not queued yet
	pending   bool       // see Writer.Insert
	backs     []giveBack
	groups    []Group // to admit jobs of after the commit
	noNotes   bool    // it stores no notes of the groups
	batches   []int64 // of which members ended

	apart     bool       // it admits no jobs itself, see admit
	admits    bool       // it tried to
	claimsSee bool       // its claims came after that
	admitted  []string   // the queue of each job that it admitted
	nextBacks []giveBack // those of them that have their old positions
}

// NewCommit prepares a batch.
func (s *Store) NewCommit(b backends.CommitContent, hooks backends.TxHooks) *Commit {
	k := &Commit{s: s, given: b, hooks: hooks, fast: !s.lean.next() || s.tables.Some()} // Writer.Ack needs the fewest tables
	k.avoidLocked = k.canAvoidLocked() && s.locked.next()
	return k
}

// canAvoidLocked reports whether the commit can avoid locked rows: not if it is to wait for them, and not beside
// writes to adopted tables, which their hooks set aside.
func (c *Commit) canAvoidLocked() bool {
	return !c.avoidLocked && !c.given.WaitForLocks && c.hooks.Before == nil
}

// ReadAllRows makes the commit lock and read the rows of all acks. It doesn't use Writer.Ack then.
func (c *Commit) ReadAllRows() { c.fast = false }

// Options returns the options of the transaction.
func (c *Commit) Options() TxOptions {
	gated := slices.ContainsFunc(c.given.Claims, hasGates)
	o := TxOptions{Unsynced: len(c.given.Writes) == 0 && !c.hooks.Writes && !gated, Gated: gated, AdoptedWrites: c.hooks.Writes, AdoptedClaims: c.hooks.Claims,
		Keyed: slices.ContainsFunc(c.given.Writes, hasKeys) || slices.ContainsFunc(c.given.Writes, hasBatches), Settles: !c.avoidLocked && slices.ContainsFunc(c.given.Writes, hasLeases),
		WaitForLocks: c.given.WaitForLocks && countKeys(c.given.Writes) <= 1, Brief: c.s.tables.Some(), NoNotes: c.noNotes}
	if len(c.given.Claims) > 0 || c.hooks.Claims {
		o.Sidecar, o.Queues = c.given.Sidecar, queuesOf(c.given.Claims)
	}
	return o
}

// Run carries out the batch in a transaction, without committing it.
func (c *Commit) Run(ctx context.Context, tx Tx) error {
	c.batch = c.given
	if len(c.missed) > 0 {
		c.batch.Claims = withoutMissed(c.given.Claims, c.missed)
	}
	c.res, c.settles, c.rows, c.jobs, c.keys = backends.Results{}, nil, map[int64]*Row{}, nil, nil
	c.conflicts = nil
	c.changed, c.claims, c.pending, c.backs, c.groups, c.batches = 0, nil, false, nil, nil, nil
	c.admits, c.claimsSee, c.admitted, c.nextBacks = false, false, nil, nil
	if c.hooks.Before != nil {
		c.batch.Writes = slices.Clone(c.given.Writes) // the hook can add others at each try
		if err := c.hooks.Before(ctx, tx, &c.batch); err != nil {
			return err
		}
	}
	c.res.Writes = make([]backends.WriteResult, len(c.batch.Writes))
	for n, why := range c.aside {
		c.res.Writes[n].Err = why
	}
	if err := c.enterBatches(ctx, tx); err != nil {
		return err
	}
	if err := c.writes(ctx, tx); err != nil {
		return err
	}
	if c.claims != nil {
		var err error
		if c.res.Claims, err = c.claims.Finish(ctx); err != nil {
			return err
		}
		c.reportMissed()
		c.noteClaimed(tx)
	}
	if err := c.resolve(ctx, tx, func(backends.Write) bool { return false }); err != nil { // keys that turned out to be free
		return err
	}
	if err := c.changeBatches(ctx, tx); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	if c.careful != nil && c.careful.dry {
		if err := tx.Flush(ctx); err != nil {
			return err
		}
		return ErrDryRun
	}
	if c.hooks.After != nil {
		return c.hooks.After(ctx, tx, &c.res)
	}
	return nil
}

// plan is what the transaction needs, as far as the batch shows it.
type plan struct {
	acks, delivers []*settle // one statement each carries them out, as far as it can
	rows           []int64   // the rows of the other settles: they are locked and read first
	claimsLast     bool      // the claims have to see jobs that the changes of rows or admissions make ready, or that acks store
}

// plan sorts the settles by what carries them out. fast: statements can end or record claims without reading their rows.
func (c *Commit) plan(fast bool) (p plan) {
	p.acks = make([]*settle, 0, len(c.settles))
	p.claimsLast = !fast && len(c.batch.Claims) > 0 && len(c.settles) > 0 && c.s.grouped.next()
	for i := range c.settles {
		x := &c.settles[i]
		if x.ID == 0 {
			continue
		}
		switch w := c.batch.Writes[x.write].(type) {
		case backends.Ack:
			if fast && len(w.Enqueue) == 0 {
				p.acks = append(p.acks, x)
				continue
			}
			p.claimsLast = p.claimsLast || len(w.Enqueue) > 0
		case backends.Deliver:
			if fast && c.s.traits.FastDeliver {
				p.delivers = append(p.delivers, x)
				continue
			}
		case backends.Nack, backends.Release:
			p.claimsLast = true
		}
		p.rows = append(p.rows, x.ID)
	}
	p.rows = inOrder(p.rows)
	return p
}

// writes carries out the writes and the first statements of the claims, in these steps. Each is one round trip, or none: the
// statements of a step whose answers nothing in the transaction needs go with those of the next one, and at last with the
// COMMIT.
//
//	avoid  find the rows that other programs have locked (only for a while after that happened)
//	1      new jobs; one statement each for acks and for deliveries; the rows of the other settles; the claims
//	2      the rows of those acks and deliveries that 1 left: results, keys, failures before
//	       decide what becomes of the rows, see apply
//	avoid  find their keys that other programs have locked (like the first step)
//	3      the changes of the rows, the jobs that acks store; the claims if they come last
//	groups after acks of jobs of few groups, if claims from their queues found too few jobs: lock the groups; read their
//	       slots; admit the next jobs (see admit). The claims come last then
//
// Then the claims go on in rounds, see Claims. The batches and their round trips before the COMMIT are:
//
//	                                              round trips        if Traits.Silent
//	new jobs                                      0                  1
//	acks that one statement ends                  0                  0
//	the same, if Writer.Ack isn't sure            1                  1
//	acks of which some need their rows            2                  3
//	the same, for some commits after that         1                  2
//	nacks, releases, extends, acks that store     1                  2
//	jobs
//	claims, also with new jobs or acks            1                  1
//	claims with acks of which some need rows      2                  3
//	the same, for some commits after that         1                  2
//	claims with nacks, releases or acks that      2                  2
//	store jobs
//	acks that admit jobs of groups                3 more             no groups
//	each further round of the claims              1                  1
//
// TestRoundTrips counts them. A batch that stores jobs with backends.OnConflict waits for the answers about all its new jobs, and then has some more for
// each of these whose key returns another job (see resolve). So does the end of a claim with a pending job (see settlePending). New jobs of an engine that stores them at the Flush (Writer.Insert) have another one before
// claims.
func (c *Commit) writes(ctx context.Context, tx Tx) error {
	if err := c.unsupported(tx); err != nil {
		return err
	}
	distinct := c.list()
	if c.avoidLocked {
		if err := c.setLockedAside(ctx, tx); err != nil {
			return err
		}
	}
	p := c.plan(c.fast && distinct)

	enqueues := func(w backends.Write) bool { _, is := w.(backends.Enqueue); return is }
	c.insert(tx, enqueues)
	if err := c.resolve(ctx, tx, enqueues); err != nil {
		return err
	}
	unsure := c.ack(tx, p.acks)
	c.deliver(tx, p.delivers)
	c.lock(tx, p.rows)
	if !p.claimsLast && !c.pending {
		if err := c.startClaims(ctx, tx); err != nil {
			return err
		}
	}
	unsure = unsure || len(p.delivers) > 0
	if unsure || len(p.rows) > 0 || len(c.batch.Claims) > 0 && (c.claims != nil || c.pending) {
		if err := c.flush(ctx, tx); err != nil {
			return err
		}
	}

	if unsure {
		if left := c.leftOf(p); len(left) > 0 {
			c.lock(tx, left)
			if err := c.flush(ctx, tx); err != nil {
				return err
			}
		}
	}
	c.apply()
	if err := c.setLockedTablesAside(); err != nil {
		return err
	}
	if c.avoidLocked {
		if err := c.setLockedKeysAside(ctx, tx); err != nil {
			return err
		}
	}

	acks := func(w backends.Write) bool { a, is := w.(backends.Ack); return is && len(a.Enqueue) > 0 }
	c.insert(tx, acks)
	if err := c.resolve(ctx, tx, acks); err != nil {
		return err
	}
	c.change(tx)
	if err := c.settlePending(ctx, tx); err != nil {
		return err
	}
	if err := c.admit(ctx, tx, distinctGroups(leaveGroups(tx, maps.Values(c.rows)))); err != nil {
		return err
	}
	if c.claims == nil && len(c.batch.Claims) > 0 {
		if c.pending {
			if err := c.flush(ctx, tx); err != nil {
				return err
			}
		}
		if err := c.startClaims(ctx, tx); err != nil {
			return err
		}
		return c.flush(ctx, tx)
	}
	if c.s.traits.Silent && (len(c.jobs) > 0 || c.changed > 0) { // check needs the answers
		return c.flush(ctx, tx)
	}
	return nil
}

func (c *Commit) flush(ctx context.Context, tx Tx) error {
	c.pending = false
	return tx.Flush(ctx)
}

// apply decides the outcome of the locked rows, write by write, and which leases are lost.
func (c *Commit) apply() {
	for i := range c.settles {
		x := &c.settles[i]
		if x.done {
			continue
		}
		r := c.rows[x.ID]
		if x.lost = r == nil || !r.proves(x.Lease); x.lost {
			continue
		}
		res := &c.res.Writes[x.write]
		switch w := c.batch.Writes[x.write].(type) {
		case backends.Ack:
			if r.Group != "" || !c.s.traits.AcksAll && (r.Kept || r.Key != "" || r.Failed) {
				c.s.lean.start()
			}
			r.ack(w.Result)
		case backends.Nack:
			c.end(res, r, r.AfterNack(w, c.batch.Jitter.Of(r.Queue)), backends.CauseNacked)
		case backends.Release:
			c.end(res, r, r.AfterRelease(w, c.batch.Jitter.Of(r.Queue)), w.Cause)
		case backends.Extend:
			if r.extend(w); w.Bind != 0 && r.Alone() {
				res.Alone = append(res.Alone, w.Leases[x.n])
			}
		case backends.Deliver:
			r.deliver(w.Deliveries[x.n])
		}
	}
	for i := range c.settles { // in their order
		if x := &c.settles[i]; x.lost {
			res := &c.res.Writes[x.write]
			res.Lost = append(res.Lost, backends.LeasesOf(c.batch.Writes[x.write])[x.n])
		}
	}
}

func (c *Commit) end(res *backends.WriteResult, r *Row, d backends.Disposition, cause backends.Cause) {
	r.end(d)
	res.Failed.Add(r.Queue, cause, d.State == backends.StateDead)
	if d.State == backends.StateReady {
		addQueue(res, r.Queue)
	}
}

// change queues the statement that writes the changes of the rows.
func (c *Commit) change(tx Tx) {
	c.changed, c.backs = queueChanges(tx, slices.Collect(maps.Values(c.rows)), c.backs, func(*Row) { c.changed-- })
}

// settlePending sees to the pending jobs of the changed rows.
func (c *Commit) settlePending(ctx context.Context, tx Tx) error {
	after, err := c.s.settlePending(ctx, tx, slices.Collect(maps.Values(c.rows)))
	if err != nil {
		return err
	}
	for i := range c.settles {
		x := &c.settles[i]
		stored, some := after.stored[x.ID]
		if !some || x.lost {
			continue
		}
		res := &c.res.Writes[x.write]
		if res.Pending = append(res.Pending, stored.StoredPending); stored.ready {
			addQueue(res, stored.Queue)
		}
	}
	c.groups = append(c.groups, after.groups...)
	return nil
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
func (c *Commit) check() error {
	if !c.s.traits.Silent {
		return nil
	}
	if c.changed > 0 {
		return backends.Refused(ErrSilent)
	}
	for _, j := range c.jobs {
		if err := j.check(); err != nil {
			return err
		}
	}
	return nil
}

// Committed updates the cursors after the commit, notifies the driver of queues with new ready jobs, and
// returns the results.
func (c *Commit) Committed() backends.Results {
	c.s.gaveBack(c.backs)
	c.s.gaveBack(c.nextBacks)
	c.reportAdmitted()
	for i := range c.res.Claims {
		c.s.dry.claimed(&c.given.Claims[i], &c.res.Claims[i])
	}
	if c.claims != nil {
		c.claims.Committed()
	}
	var queues []string
	for i := range c.res.Writes {
		res := &c.res.Writes[i]
		if res.Err == nil && slices.ContainsFunc(res.Stored, func(s backends.Stored) bool { return s.ID == "" }) {
			res.Err = backends.ErrUnknownOutcome // the answers got lost, and the driver found out that the commit happened
		}
		queues = append(queues, res.MadeReady...)
	}
	if c.hooks.Freed != nil {
		queues = append(queues, c.hooks.Freed()...)
	}
	if len(queues) > 0 {
		c.s.driver.MadeReady(queues)
	}
	return c.res
}
