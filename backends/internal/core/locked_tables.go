package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Another session can lock a whole table of the sidecar, for example by an ALTER. If maintenance or a commit takes long, or fails because of a
// lock, maintenance finds out whether such a lock is the reason. Then it ends the calls that can wait for the lock. Until the lock is gone, what needs the table is unavailable at
// once, and the rest goes on without it:
//
//	table                        without it
//	jobs                         nothing of managed queues
//	queues, sidecars             no claims; without queues no releases of jobs to their old positions
//	keys, failures               no writes that need their rows (with Traits.WholeChanges: no ends of claims but those of Writer.Ack)
//	cancelled, schedules         no cancels, no schedules
//	stripes, admissions,         no admissions: commits store no notes (see forgottenNotes)
//	admitted
//	gates, capped                no claims of queues with limits
//	pending                      no enqueues that can replace others, no ends of claims with a pending job
//
// A commit can't always foresee which tables it needs. While a table is locked, none waits for long.

const (
	// tablePatience is how long maintenance takes before it searches for locked tables.
	tablePatience = time.Second
	// tableSearchEvery is how often it does that again.
	tableSearchEvery = 5 * time.Second
	// tableTimeout bounds the search in one table.
	tableTimeout = 2 * time.Second
)

// tableReader is a Driver that can find out whether a table is locked.
type tableReader interface {
	Query(ctx context.Context, statements ...*backends.Statement) error
	Dialect() backends.Dialect
}

// LockedTables implements backends.Adopter.
func (s *Store) LockedTables() *backends.LockedTables { return &s.tables }

// SetTablePatience changes tablePatience. Tests use it.
func (s *Store) SetTablePatience(d time.Duration) { s.tablePatience = d }

// FindLockedTables implements backends.Adopter.
func (s *Store) FindLockedTables(ctx context.Context) {
	reader, ok := s.driver.(tableReader)
	if !ok || !s.driver.Info().Concurrent {
		return
	}
	s.tableNames.Do(func() {
		d := reader.Dialect()
		s.tableSQL = map[string]string{}
		for table := range backends.OwnTableNames {
			s.tableSQL[table] = "SELECT " + d.ToText("count(*)") + " AS qsidecar_1 FROM " + d.SidecarTable(table) + " WHERE 1 = 0"
		}
	})
	var mu sync.Mutex
	found := map[string]error{}
	search := func(tables ...string) (locked bool) {
		ctx, cancel := context.WithTimeout(ctx, tableTimeout)
		defer cancel()
		for _, table := range tables {
			err := reader.Query(ctx, &backends.Statement{Text: s.tableSQL[table], Row: func([][]byte) error { return nil }})
			l, isLocked := errors.AsType[*backends.LockedError](err)
			if isLocked || err != nil && ctx.Err() != nil && s.outages.isLocked(table) { // as before
				locked = true
				mu.Lock()
				found[table] = fmt.Errorf("another session has locked the whole table %s: %w", table, cause(l, err))
				mu.Unlock()
			}
		}
		return locked
	}
	var all sync.WaitGroup
	for some := range slices.Chunk(slices.Sorted(maps.Keys(s.tableSQL)), (len(s.tableSQL)+1)/2) { // two connections
		all.Go(func() { search(some...) })
	}
	all.Wait()
	if ctx.Err() != nil {
		return
	}
	s.outages.setLocked(s, found)
}

// cause is the server's answer in a LockedError, or err.
func cause(l *backends.LockedError, err error) error {
	if l != nil {
		return l.Err
	}
	return err
}

// watchTables searches for locked tables if maintenance takes long, and at once if some were locked, or if a call takes long or failed because
// of a lock. stop ends the search.
func (s *Store) watchTables(ctx context.Context) (stop func()) {
	ended := make(chan struct{})
	var watch sync.WaitGroup
	some, rights := s.tables.Suspected(s.tablePatience) || s.outages.someLocked(), s.outages.rightsDue(s.obstacles.Time())
	watch.Go(func() {
		if rights {
			s.findRights(ctx, false)
		}
		if some {
			s.FindLockedTables(ctx)
		}
		timer := time.NewTimer(s.tablePatience)
		defer timer.Stop()
		for {
			select {
			case <-ended:
				return
			case <-timer.C:
				s.FindLockedTables(ctx)
				timer.Reset(tableSearchEvery)
			}
		}
	})
	return func() {
		close(ended)
		watch.Wait()
	}
}

// within runs f, which needs tables, unless one of them is locked. If one turns out to be, the error names it.
func (s *Store) within(ctx context.Context, need backends.OwnTables, f func(ctx context.Context) error) error {
	inner, leave := s.tables.Enter(ctx, need)
	defer leave()
	if why := s.tables.Of(need); why != nil {
		return why
	}
	err := f(inner)
	if why := s.endedByLock(ctx, inner, err); why != nil {
		return why
	}
	if backends.LacksRight(err) {
		s.findRights(ctx, false)
		return cmp.Or(s.outages.missing(need), err)
	}
	if isLockedError(err) {
		if why := s.tables.Of(need); why != nil {
			return why
		}
	}
	return err
}

// endedByLock returns why a call failed whose context `inner` ended because of a locked table; nil: that was not the reason.
func (s *Store) endedByLock(ctx, inner context.Context, err error) error {
	if why := context.Cause(inner); err != nil && ctx.Err() == nil && backends.LockedTable(why) != "" && !errors.Is(err, backends.ErrUnknownOutcome) {
		return why
	}
	return nil
}

// outcomeTime bounds the search for the outcome of a commit that ended because of a locked table.
const outcomeTime = 5 * time.Second

// OutcomeContext returns the context of the search for the outcome of a commit. If ctx ended because of a locked table, its caller goes on,
// so that the search has time of its own.
func OutcomeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if backends.LockedTable(context.Cause(ctx)) == "" {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), outcomeTime)
}

// leftOut are the parts of a commit that need locked tables.
type leftOut struct {
	writes map[int]error // nil: none
	claims []error       // nil: none; otherwise of each claim, and nil for those that go on
	rights bool          // some of the writes lack a right: they have errors of their own
	given  backends.CommitContent
}

// leaveLockedOut removes the parts of a commit that need locked tables. The error is that of all of its parts.
func (s *Store) leaveLockedOut(b backends.CommitContent, hooks backends.TxHooks) (open backends.CommitContent, out leftOut, _ error) {
	out.given = b
	if !s.tables.Some() {
		return b, out, nil
	}
	need := backends.OwnCommits
	if hooks.Claims {
		need |= backends.OwnSidecars | backends.OwnLeases
	}
	if why := s.tables.Of(need); why != nil {
		return b, out, why
	}
	open = b
	open.Writes, open.Claims = nil, nil
	var first error
	for n, w := range b.Writes {
		why := s.tables.Of(neededBy(w))
		if why == nil {
			open.Writes = append(open.Writes, w)
			continue
		}
		if b.WaitForLocks {
			return b, out, why
		}
		if hooks.Before != nil { // their caller sets the write aside as a whole
			return b, out, &backends.LockedError{Err: why}
		}
		if out.writes == nil {
			out.writes = map[int]error{}
		}
		if backends.LacksRight(why) && !MustHappen(w) { // its client decides when to try again
			out.writes[n], out.rights = why, true
			continue
		}
		out.writes[n] = &backends.LockedError{Err: why}
		first = why
	}
	for n, c := range b.Claims {
		c, why := s.openClaim(c)
		if why != nil {
			if out.claims == nil {
				out.claims = make([]error, len(b.Claims))
			}
			out.claims[n] = why
			first = why
			continue
		}
		open.Claims = append(open.Claims, c)
	}
	if len(open.Writes)+len(open.Claims) == 0 && hooks.Before == nil && hooks.After == nil && first != nil && !out.rights {
		u, _ := errors.AsType[*backends.UnavailableError](first)
		return b, out, &backends.UnavailableError{Table: u.Table, Err: u.Err} // not of one queue
	}
	return open, out, nil
}

// openClaim leaves the queues out of a claim that it can't claim from now. The error is that of a claim of no others.
func (s *Store) openClaim(c backends.Claim) (backends.Claim, error) {
	if len(c.Queues) == 0 {
		return c, nil
	}
	of := func(need backends.OwnTables, queue string) error {
		u, ok := errors.AsType[*backends.UnavailableError](s.tables.Of(need))
		if !ok {
			return nil
		}
		return &backends.UnavailableError{Queue: queue, Table: u.Table, Err: u.Err}
	}
	if why := of(ClaimNeeds, c.Queues[0].Queue); why != nil {
		return c, why
	}
	given := c.Queues
	if s.tables.Of(backends.OwnGates) != nil {
		c.Queues = slices.DeleteFunc(slices.Clone(given), func(p backends.Policy) bool { return p.Gated })
	}
	if len(c.Queues) == 0 {
		return c, of(backends.OwnGates, given[0].Queue)
	}
	return c, nil
}

// neededBy returns the tables that a write certainly needs, or can need at a time when it can't be set aside.
func neededBy(w backends.Write) backends.OwnTables {
	need := RightsFor(w)
	if hasKeys(w) {
		need |= backends.OwnKeys
	}
	if replaces(w) { // only if the other job is claimed, but the commit can't wait for the answer
		need |= backends.OwnPending
	}
	return need
}

// fill puts the results of the open parts where they belong in those of the whole commit.
func (l *leftOut) fill(res backends.Results) backends.Results {
	if l.writes == nil && l.claims == nil {
		return res
	}
	all := backends.Results{Writes: make([]backends.WriteResult, len(l.given.Writes)), Claims: make([]backends.ClaimResult, len(l.given.Claims)), Groups: res.Groups}
	n := 0
	for i := range all.Writes {
		if why := l.writes[i]; why != nil {
			all.Writes[i].Err = why
		} else {
			all.Writes[i] = res.Writes[n]
			n++
		}
	}
	n = 0
	for i := range all.Claims {
		if l.claims != nil && l.claims[i] != nil {
			all.Claims[i].Err = l.claims[i]
		} else {
			all.Claims[i] = res.Claims[n]
			n++
		}
	}
	return all
}

// setLockedTablesAside notes the writes whose rows need locked tables. If there are some, the commit has to be tried again: a write
// happens as a whole.
func (c *Commit) setLockedTablesAside() error {
	if !c.s.tables.Some() {
		return nil
	}
	found := map[int]error{}
	for i := range c.settles {
		x := &c.settles[i]
		r := c.rows[x.ID]
		if x.done || x.lost || r == nil {
			continue
		}
		if why := c.s.tables.Of(r.needs(c.s.traits.WholeChanges)); why != nil {
			found[x.write] = &backends.LockedError{Err: why}
		}
	}
	if len(found) == 0 {
		return nil
	}
	if c.given.WaitForLocks || c.hooks.Before != nil {
		for _, why := range found {
			locked, _ := errors.AsType[*backends.LockedError](why)
			if c.given.WaitForLocks {
				return locked.Err
			}
			return why
		}
	}
	if c.aside == nil {
		c.aside = map[int]error{}
	}
	maps.Copy(c.aside, found)
	return errSetAside
}

// setNewJobsAside leaves out the writes that store jobs. On an engine that registers queues they can be the reason of an error. It returns
// false if there are none left.
func (c *Commit) setNewJobsAside(err error) (some bool) {
	if c.given.WaitForLocks || c.hooks.Before != nil || c.careful != nil {
		return false
	}
	for n, w := range c.given.Writes {
		if len(JobsOf(w)) > 0 && c.aside[n] == nil {
			if c.aside == nil {
				c.aside = map[int]error{}
			}
			c.aside[n], some = err, true
		}
	}
	return some
}

// needs returns the tables besides qsidecar_jobs that the change of a row needs. whole is Traits.WholeChanges.
func (r *Row) needs(whole bool) (need backends.OwnTables) {
	c := &r.Change
	if r.Pending && (c.Kind == Ended || c.Kind == Deleted) {
		need = backends.OwnPending
	}
	switch {
	case whole && c.Kind == Ended:
		return need | backends.OwnKeys | backends.OwnFailures | backends.OwnQueues
	case whole && c.Kind == Deleted:
		return need | backends.OwnKeys
	}
	if r.endsKey() {
		need |= backends.OwnKeys
	}
	if c.Kind == Ended && c.Cause != "" || c.Kind == Deleted && r.Failed {
		need |= backends.OwnFailures
	}
	if c.Kind == Ended && c.State == backends.StateReady && c.SamePosition {
		need |= backends.OwnQueues
	}
	return need
}

// forgottenNotes are groups whose notes could not be stored, because the table of the notes is locked or out of order. The next
// admissions of maintenance see to them. If the sidecar ends before, the walk over all groups does.
type forgottenNotes struct {
	mu     sync.Mutex
	groups map[Group]struct{}
	until  time.Time // commits store no notes before
	err    error     // why
}

const (
	// mostForgotten is how many groups are remembered.
	mostForgotten = 10_000
	// notesRetry is for how long commits store no notes after the table refused one.
	notesRetry = 5 * time.Second
)

func (f *forgottenNotes) add(groups []Group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.groups == nil {
		f.groups = map[Group]struct{}{}
	}
	for _, g := range groups {
		if len(f.groups) < mostForgotten {
			f.groups[g] = struct{}{}
		}
	}
}

func (f *forgottenNotes) some() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.groups) > 0
}

func (f *forgottenNotes) all() []Group {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.groups))
}

func (f *forgottenNotes) remove(groups []Group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range groups {
		delete(f.groups, g)
	}
}

// refuse makes the next commits store no notes.
func (f *forgottenNotes) refuse(err error, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until, f.err = now.Add(notesRetry), err
}

// refusedAt reports whether commits store no notes.
func (f *forgottenNotes) refusedAt(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Before(f.until)
}

// accept reports whether the table of the notes refused one before.
func (f *forgottenNotes) accept() (again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	again, f.err = f.err != nil, nil
	return again
}

// failed reports whether the table of the notes refused one, and accepted none since.
func (f *forgottenNotes) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err != nil
}

// notesTable is the table of the notes.
const notesTable = "qsidecar_admissions"

// storesNotes reports whether commits store notes of groups now.
func (s *Store) storesNotes() bool {
	return s.tables.Of(backends.OwnGroups) == nil && !s.notes.refusedAt(s.LocalTime())
}

// noted records what became of the notes of a commit, which succeeded. refused: it failed with them.
func (s *Store) noted(groups []Group, without bool, refused error) {
	switch {
	case refused != nil:
		s.notes.refuse(refused, s.LocalTime())
		s.obstacles.Note(backends.Obstacle{Table: notesTable, Doing: backends.DoingUse, Err: refused})
	case !without && len(groups) > 0 && s.notes.accept():
		s.obstacles.Keep(func(o *backends.Obstacle) bool { return o.Doing != backends.DoingUse || o.Table != notesTable })
	}
	if without {
		s.notes.add(groups)
	}
}
