package core

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/pending"
)

// Jobs whose keys return other jobs, and that replace these (backends.OnConflict), or whose keys are free since the other one has started
// (backends.NewJob.KeyUntilStart).
//
// An enqueue locks the row of its key, then the row of the job that the key returns. What ends a claim locks the job's row, then that
// of the key, but waits for no key (see Writer.Change). So none of them waits for the other in a circle, and the second one
// sees what the first one did: an enqueue that finds the job claimed stores a pending one and marks the job's row,
// and the end of a claim whose row has the mark sees to the pending one.
//
// With KeyUntilStart a claim writes nothing more: it stores the policy in the job's row, and a row that has one, and key_state
// 'start', doesn't own its key. An enqueue that finds such a row takes the key from it.

// conflict is a new job whose key an earlier one of the commit has.
type conflict struct{ job, first *NewJob }

// replaces reports whether a write stores jobs that can replace others.
func replaces(w backends.Write) bool {
	return slices.ContainsFunc(JobsOf(w), func(j backends.NewJob) bool { return j.OnConflict != backends.ConflictKeep })
}

// pendings returns the pending jobs of the database.
func (s *Store) pendings() (*pending.Table, error) {
	engine, ok := s.driver.(backends.Adopter)
	if !ok || !s.traits.Pending {
		return nil, &backends.UnsupportedError{What: backends.NoReplace, NoReplace: true}
	}
	return &pending.Table{Dialect: engine.Dialect()}, nil
}

// Freed records that the key belongs to a job that has started, and that doesn't need it any more.
func (n *NewJob) Freed(id int64) {
	n.freed = true
	n.Duplicate(id, backends.StateClaimed)
}

// resolve sees to new jobs whose keys return other jobs. It waits for the answers about new jobs only if one can replace another.
func (c *Commit) resolve(ctx context.Context, tx Tx, which func(w backends.Write) bool) error {
	if slices.ContainsFunc(c.batch.Writes, func(w backends.Write) bool { return which(w) && replaces(w) }) {
		if err := c.awaitAnswers(ctx, tx); err != nil {
			return err
		}
	}
	for _, j := range c.jobs {
		if j.answer.Duplicate && !j.resolved && (j.freed || j.OnConflict != backends.ConflictKeep) {
			if err := c.resolveOne(ctx, tx, j, j.answer.ID); err != nil {
				return err
			}
		}
	}
	conflicts := c.conflicts
	c.conflicts = nil
	for _, x := range conflicts {
		if x.first.answer.ID == "" {
			continue // the check finds it
		}
		c.jobs = append(c.jobs, x.job)
		if err := c.resolveOne(ctx, tx, x.job, x.first.answer.ID); err != nil {
			return err
		}
	}
	return nil
}

// awaitAnswers flushes until all new jobs have answers. An engine can queue the INSERT at the first Flush.
func (c *Commit) awaitAnswers(ctx context.Context, tx Tx) error {
	for range 2 {
		if !slices.ContainsFunc(c.jobs, func(j *NewJob) bool { return j.answer.ID == "" && !j.passed }) {
			break
		}
		if err := c.flush(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

// resolveOne decides what becomes of a new job whose key returns the job with the id.
func (c *Commit) resolveOne(ctx context.Context, tx Tx, j *NewJob, id string) error {
	j.resolved = true
	t, err := c.s.pendings()
	job, ok := Number(id)
	if err != nil || !ok {
		return err
	}
	if !j.freed {
		states, err := tx.States(ctx, j.Queue, []int64{job})
		if err != nil {
			return err
		}
		s := JobState{State: backends.StateDeleted}
		if len(states) > 0 {
			s = states[0]
		}
		switch s.State {
		case backends.StateReady, backends.StateBlocked, backends.StateScheduled:
			return c.replace(ctx, tx, t, j, s)
		case backends.StateClaimed:
			stored, err := t.Put(ctx, tx, job, j.NewJob)
			if err != nil {
				return err
			}
			if stored {
				j.outcome(job, s.State, backends.OutcomePending)
				if r := c.rows[job]; r != nil { // this commit ends the claim
					r.Pending = true
				}
				return nil
			}
		}
	}
	if err := t.FreeKey(ctx, tx, j.Queue, j.Key, job); err != nil {
		return err
	}
	*j.answer = backends.Stored{}
	_, err = insertNow(ctx, tx, []*NewJob{j})
	groups := distinctGroups(groupsOf([]*NewJob{j}))
	noteGroups(tx, groups)
	c.groups = append(c.groups, groups...)
	return err
}

// insertNow stores jobs whose keys are free, and waits for the answers.
func insertNow(ctx context.Context, tx Tx, jobs []*NewJob) (ready []string, err error) {
	tx.Insert(jobs)
	for range 2 {
		if err := tx.Flush(ctx); err != nil {
			return nil, err
		}
	}
	for _, j := range jobs {
		switch {
		case j.passed:
			return nil, backends.Refused(ErrSilent)
		case j.answer.ID == "" || j.answer.Duplicate:
			return nil, fmt.Errorf("%w: a free key was taken", ErrAgain)
		case j.state == backends.StateReady && !slices.Contains(ready, j.Queue):
			ready = append(ready, j.Queue)
		}
	}
	return ready, nil
}

func (n *NewJob) outcome(job int64, s backends.State, o backends.Outcome) {
	n.Duplicate(job, s)
	n.answer.Outcome = o
}

// replace writes the content of a new job into a waiting one, whose row is locked.
func (c *Commit) replace(ctx context.Context, tx Tx, t *pending.Table, j *NewJob, s JobState) error {
	if err := c.s.replaceContent(ctx, tx, t, s.ID, j.NewJob); err != nil {
		return err
	}
	change := backends.Command{Kind: backends.Change, Queue: j.Queue}
	var at time.Duration
	switch {
	case j.OnConflict == backends.ConflictDebounce:
		change.Delay, change.Within = &j.Delay, j.DebounceMax
	case j.Delay > 0:
		change.Delay = &j.Delay
	case !j.RunAt.IsZero():
		change.RunAt = j.RunAt
	case s.State == backends.StateScheduled:
		change.Delay = &at
	}
	if change.Delay != nil || !change.RunAt.IsZero() {
		if _, _, err := tx.ChangeWaiting(ctx, j.Queue, []int64{s.ID}, &change); err != nil {
			return err
		}
		states, err := tx.States(ctx, j.Queue, []int64{s.ID})
		if err != nil {
			return err
		}
		if len(states) > 0 {
			s.State = states[0].State
		}
	}
	if j.outcome(s.ID, s.State, backends.OutcomeReplaced); s.State == backends.StateReady {
		addQueue(j.res, j.Queue) // also one that was: claims have passed over its locked row
	}
	if s.Group != "" {
		c.groups = append(c.groups, Group{Queue: j.Queue, Name: s.Group})
	}
	return nil
}

func (s *Store) replaceContent(ctx context.Context, tx Tx, t *pending.Table, job int64, with *backends.NewJob) error {
	found, err := t.Replace(ctx, tx, job, with)
	if err == nil && !found {
		err = backends.Refused(ErrSilent)
	}
	return err
}

// afterClaims is what became of the pending jobs of claims that ended.
type afterClaims struct {
	stored map[int64]storedPending // by the job whose claim ended
	groups []Group
}

// storedPending is a pending job that became one of its own. ready: it can run now.
type storedPending struct {
	backends.StoredPending
	ready bool
}

// jobs returns the pending jobs that became jobs of their own.
func (a *afterClaims) jobs() (all []backends.StoredPending) {
	for _, s := range a.stored {
		all = append(all, s.StoredPending)
	}
	return all
}

// settlePending sees to the pending jobs of changed rows. The changes are queued.
func (s *Store) settlePending(ctx context.Context, tx Tx, rows []*Row) (after afterClaims, err error) {
	var ended []*Row
	var ids []int64
	for _, r := range rows {
		if r.Pending && (r.Change.Kind == Ended || r.Change.Kind == Deleted) {
			ended, ids = append(ended, r), append(ids, r.ID)
		}
	}
	if len(ended) == 0 {
		return after, nil
	}
	after.stored = map[int64]storedPending{}
	slices.SortFunc(ended, func(a, b *Row) int { return compareIDs(a.ID, b.ID) })
	slices.Sort(ids)
	t, err := s.pendings()
	if err != nil {
		return after, err
	}
	contents, err := t.Take(ctx, tx, ids)
	if err != nil {
		return after, err
	}
	now, err := tx.Clock(ctx)
	if err != nil {
		return after, err
	}
	for _, r := range ended {
		j, found := contents[r.ID]
		if !found {
			continue // something emptied the table
		}
		if j.Queue, j.Key = r.Queue, r.Key; r.Change.ends() {
			err = s.storePending(ctx, tx, t, r, &j, &after)
		} else {
			err = s.pendingIntoFirst(ctx, tx, t, r, &j, now, &after)
		}
		if err != nil {
			return after, err
		}
	}
	return after, nil
}

// storePending stores a pending job after the one whose key it has.
func (s *Store) storePending(ctx context.Context, tx Tx, t *pending.Table, first *Row, j *backends.NewJob, after *afterClaims) error {
	if err := t.FreeKey(ctx, tx, j.Queue, j.Key, first.ID); err != nil {
		return err
	}
	n := &NewJob{NewJob: j, answer: &backends.Stored{}, res: &backends.WriteResult{}}
	ready, err := insertNow(ctx, tx, []*NewJob{n})
	if err != nil {
		return err
	}
	stored := storedPending{backends.StoredPending{NewJob: *j, ID: n.answer.ID}, len(ready) > 0}
	stored.Payload = nil
	after.stored[first.ID] = stored
	groups := distinctGroups(groupsOf([]*NewJob{n}))
	noteGroups(tx, groups)
	after.groups = append(after.groups, groups...)
	return nil
}

// pendingIntoFirst writes a pending job into the one whose claim ended, which waits again: until the later one of their times.
func (s *Store) pendingIntoFirst(ctx context.Context, tx Tx, t *pending.Table, first *Row, j *backends.NewJob, now time.Time, after *afterClaims) error {
	if err := s.replaceContent(ctx, tx, t, first.ID, j); err != nil {
		return err
	}
	if j.RunAt.After(now.Add(first.Change.Delay)) {
		if _, _, err := tx.ChangeWaiting(ctx, j.Queue, []int64{first.ID}, &backends.Command{Kind: backends.Change, Queue: j.Queue, RunAt: j.RunAt}); err != nil {
			return err
		}
		if first.Group != "" {
			after.groups = append(after.groups, Group{Queue: j.Queue, Name: first.Group})
		}
	}
	return nil
}
