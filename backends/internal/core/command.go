package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// BatchRows is how many rows one transaction changes in a purge, or in a retry of all dead jobs. It is small so
// that other transactions don't wait long for the rows.
const BatchRows = 1000

// Command implements backends.Inspector. A purge, and a retry of more than BatchRows dead jobs, run in several
// transactions. If one of them fails, the earlier ones stay committed.
func (s *Store) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	switch {
	case c.Kind == backends.Purge:
		count, err = s.purge(ctx, c)
		return count, false, err
	case c.Kind == backends.Retry && c.All:
		count, err = s.retryAll(ctx, c)
		return count, count > 0, err
	}
	var backs []giveBack
	var states []JobState
	var dead map[int64]bool // jobs that a retry left, because other jobs have their keys
	var ended []backends.Token
	var after afterClaims
	err = s.command(ctx, neededByCommand(c.Kind), func(ctx context.Context, tx Tx) (err error) {
		backs, states, dead, ended, after, count, freed = nil, nil, nil, nil, afterClaims{}, 0, false
		if c.Kind == backends.Cancel || c.Unchanged != nil && len(c.IDs) > 0 {
			if states, err = tx.States(ctx, c.Queue, idsOf(c.IDs)); err != nil {
				return err
			}
		}
		switch c.Kind {
		case backends.Cancel:
			count, ended, after, err = s.cancel(ctx, tx, &c, states)
			freed = slices.ContainsFunc(slices.Collect(maps.Values(after.stored)), func(p storedPending) bool { return p.ready })
			return err
		case backends.Retry:
			r, err := tx.Retry(ctx, c.Queue, idsOf(c.IDs), nil, 0)
			if count, freed = r.N, r.N > 0; err != nil {
				return err
			}
			dead, err = stillDead(ctx, tx, &c, states, int(r.N))
			return err
		case backends.Change:
			count, freed, err = tx.ChangeWaiting(ctx, c.Queue, idsOf(c.IDs), &c)
			return err
		case backends.Delete:
			count, err = tx.Delete(ctx, c.Queue, idsOf(c.IDs))
			return err
		case backends.Reclaim:
			count, backs, after, err = s.reclaim(ctx, tx, c)
			freed = count > 0
			return err
		case backends.Pause, backends.Resume:
			freed, err = tx.Pause(ctx, c.Queue, c.Kind == backends.Pause)
			return err
		case backends.Limit:
			freed, err = setLimits(ctx, tx, &c)
			return err
		}
		return fmt.Errorf("%s: a command of the unknown kind %d", s.address, c.Kind)
	})
	if err != nil && (c.Kind == backends.Reclaim || c.Kind == backends.Cancel || backends.IsRefused(err)) && len(c.IDs) > 1 && !IsOutage(ctx, err) {
		return s.commandApart(ctx, c)
	}
	if err != nil {
		return 0, false, err
	}
	s.gaveBack(backs)
	if c.Unchanged != nil && len(c.IDs) > 0 {
		c.Unchanged(unchanged(&c, states, dead))
	}
	if c.Ended != nil && len(ended) > 0 {
		c.Ended(ended)
	}
	if c.Pending != nil && len(after.stored) > 0 {
		c.Pending(after.jobs())
	}
	admitted := s.Admit(ctx, distinctGroups(append(changedGroups(&c, states), after.groups...)))
	if freed {
		s.driver.MadeReady([]string{c.Queue})
	}
	return count, freed || len(admitted) > 0, nil
}

// changedGroups returns the groups of the jobs that a command changed.
func changedGroups(c *backends.Command, states []JobState) (groups []Group) {
	for _, j := range states {
		if j.Group != "" && c.Changes(j.State) {
			groups = append(groups, Group{Queue: c.Queue, Name: j.Group})
		}
	}
	return distinctGroups(groups)
}

// commandApart carries out a command for jobs of which the database refuses some. The error is that of the first refused one.
func (s *Store) commandApart(ctx context.Context, c backends.Command) (count int64, freed bool, first error) {
	ids := c.IDs
	for i := range ids {
		c.IDs = ids[i : i+1]
		n, made, err := s.Command(ctx, c)
		count, freed = count+n, freed || made
		if err != nil && first == nil {
			first = fmt.Errorf("job %s: %w", ids[i], err)
		}
		if err != nil && IsOutage(ctx, err) {
			break
		}
	}
	return count, freed, first
}

// command runs f, which needs tables, in a transaction. If a key of a job is locked, it tries again for a while.
func (s *Store) command(ctx context.Context, need backends.OwnTables, f func(ctx context.Context, tx Tx) error) error {
	return s.within(ctx, need, func(ctx context.Context) error {
		return patiently(ctx, lockPatience, func() error {
			return s.Write(ctx, TxOptions{Brief: s.tables.Some(), NoNotes: !s.storesNotes()}, f)
		})
	})
}

// neededByCommand returns the tables that a command certainly needs.
func neededByCommand(kind backends.CommandKind) backends.OwnTables {
	switch kind {
	case backends.Pause, backends.Resume, backends.Limit:
		return backends.OwnQueues
	}
	return backends.OwnJobs
}

// reclaim ends claims, whichever sidecar owns them.
func (s *Store) reclaim(ctx context.Context, tx Tx, c backends.Command) (count int64, backs []giveBack, after afterClaims, err error) {
	rows, err := tx.LockClaimed(ctx, c.Queue, idsOf(c.IDs))
	if err != nil {
		return 0, nil, after, err
	}
	for _, r := range rows {
		r.end(r.AfterRelease(backends.Release{Uncounted: true}, 0))
	}
	_, backs = queueChanges(tx, rows, nil, func(*Row) { count++ })
	if err := tx.Flush(ctx); err != nil {
		return 0, nil, after, err
	}
	after, err = s.settlePending(ctx, tx, rows)
	return count, backs, after, err
}

// cancel ends jobs, of which it has locked the rows, and those that are still claimed also for their owners.
func (s *Store) cancel(ctx context.Context, tx Tx, c *backends.Command, states []JobState) (count int64, ended []backends.Token, after afterClaims, err error) {
	var waiting, grouped, claimed, all []int64
	for _, j := range states {
		switch {
		case j.Cancelled && j.State == backends.StateDead:
		case !c.Changes(j.State):
			continue
		case j.State == backends.StateClaimed:
			claimed = append(claimed, j.ID)
		default:
			waiting = append(waiting, j.ID)
		}
		if j.Group != "" {
			grouped = append(grouped, j.ID)
		}
		all = append(all, j.ID)
	}
	if len(claimed) > 0 {
		rows, err := tx.LockClaimed(ctx, c.Queue, claimed)
		if err != nil {
			return 0, nil, after, err
		}
		var owned []*Row
		for _, r := range rows {
			if r.end(r.AfterCancel()); r.Owner != 0 { // otherwise no sidecar would read the note
				owned = append(owned, r)
			}
			ended = append(ended, r.Token)
		}
		if err := s.noteBatches(ctx, tx, rows); err != nil {
			return 0, nil, after, err
		}
		changed := 0
		queueChanges(tx, rows, nil, func(*Row) { changed++ })
		if len(owned) > 0 {
			tx.NoteCancelled(owned)
		}
		if err := tx.Flush(ctx); err != nil {
			return 0, nil, after, err
		}
		if s.traits.Silent && changed < len(rows) {
			return 0, nil, after, backends.Refused(ErrSilent)
		}
		if after, err = s.settlePending(ctx, tx, rows); err != nil {
			return 0, nil, after, err
		}
	}
	if len(waiting) > 0 {
		if err := tx.CancelWaiting(ctx, c.Queue, waiting, c.RetainDead); err != nil {
			return 0, nil, after, err
		}
	}
	if len(grouped) > 0 {
		tx.(Grouper).LeaveGroups(inOrder(grouped))
		noteGroups(tx, changedGroups(c, states))
	}
	if c.Remove && len(all) > 0 {
		if _, err := tx.Delete(ctx, c.Queue, all); err != nil {
			return 0, nil, after, err
		}
	}
	return int64(len(all)), ended, after, tx.Flush(ctx)
}

// stillDead returns the dead jobs that a retry of n jobs has left. states are those before it, if they were read.
func stillDead(ctx context.Context, tx Tx, c *backends.Command, states []JobState, n int) (map[int64]bool, error) {
	var ids []int64
	for _, j := range states {
		if j.State == backends.StateDead {
			ids = append(ids, j.ID)
		}
	}
	if len(ids) <= n {
		return nil, nil
	}
	now, err := tx.States(ctx, c.Queue, ids)
	left := make(map[int64]bool)
	for _, j := range now {
		left[j.ID] = j.State == backends.StateDead
	}
	return left, err
}

// unchanged returns the jobs that a command names and has not changed, in the order in which it names them. dead are those that
// a retry left.
func unchanged(c *backends.Command, states []JobState, dead map[int64]bool) (left []backends.JobState) {
	found := make(map[int64]JobState, len(states))
	for _, j := range states {
		found[j.ID] = j
	}
	seen := map[string]bool{}
	for _, text := range c.IDs {
		if seen[text] {
			continue
		}
		seen[text] = true
		j := backends.JobState{ID: text, State: backends.StateDeleted}
		id, ok := Number(text)
		if ok && found[id].ID != 0 {
			j.State, j.Cancelled = found[id].State, found[id].Cancelled && found[id].State == backends.StateDead
		}
		if dead[id] || !c.Changes(j.State) && !(c.Kind == backends.Cancel && j.Cancelled) {
			left = append(left, j)
		}
	}
	return left
}

// retryAll retries as many jobs as are dead when it begins.
func (s *Store) retryAll(ctx context.Context, c backends.Command) (count int64, err error) {
	var left, kept int64
	if err := s.readJobs(ctx, func(ctx context.Context, r Reader) (err error) {
		left, err = r.Count(ctx, c.Queue, backends.StateDead)
		return err
	}); err != nil {
		return 0, err
	}
	var last any
	for left > 0 {
		var r Step
		if err := s.command(ctx, neededByCommand(c.Kind), func(ctx context.Context, tx Tx) (err error) {
			r, err = tx.Retry(ctx, c.Queue, nil, last, min(left, BatchRows))
			return err
		}); backends.IsRefused(err) {
			n, err := s.retryApart(ctx, c, left)
			return count + n, err
		} else if err != nil {
			return count, err
		}
		count += r.N
		c.Progressed()
		if r.N > 0 {
			s.driver.MadeReady([]string{c.Queue})
		}
		kept += r.Seen - r.N
		if left -= r.Seen; r.Seen == 0 {
			break
		}
		last = r.Last
	}
	return count, s.reportKept(ctx, c, kept)
}

// reportKept reports n jobs that a retry of all left, because other jobs have their keys. They are the first dead ones in the order of their ends.
func (s *Store) reportKept(ctx context.Context, c backends.Command, n int64) error {
	if n == 0 || c.Unchanged == nil {
		return nil
	}
	var kept []backends.JobState
	err := s.readJobs(ctx, func(ctx context.Context, r Reader) error {
		kept = nil
		return r.Sizes(ctx, backends.Peek{Queue: c.Queue, State: backends.StateDead, Max: int(min(n, BatchRows))}, nil, nil, func(id, _ int64) {
			kept = append(kept, backends.JobState{ID: ID(id), State: backends.StateDead})
		})
	})
	if len(kept) > 0 {
		c.Unchanged(kept)
	}
	return err
}

// MostRefused is how many refused jobs end a command of all jobs.
const MostRefused = 100

// FirstRefused returns the error of a command of which the database refused n jobs. first is that of the first one; nil: none.
func FirstRefused(first error, n int) error {
	if n > 1 {
		return fmt.Errorf("%w (and %d more jobs are refused)", first, n-1)
	}
	return first
}

// apartCommand carries out a command of all jobs in a state, of which the database refuses some.
type apartCommand struct {
	s *Store
	c backends.Command

	// run changes the jobs with the ids in one transaction. It leaves those alone that have another state by now.
	run func(ctx context.Context, tx Tx, ids []int64) (Step, error)

	count   int64
	freed   bool // run makes jobs ready
	refused map[string]bool
	first   error // of the first refused job
}

// do carries it out for at most n jobs. The error names the first refused job.
func (a *apartCommand) do(ctx context.Context, state backends.State, n int64) error {
	a.refused = map[string]bool{}
	for n > 0 {
		var ids []string
		if err := a.s.readJobs(ctx, func(ctx context.Context, r Reader) error {
			ids = nil
			return r.Sizes(ctx, backends.Peek{Queue: a.c.Queue, State: state, Max: BatchRows + len(a.refused)}, nil, nil, func(id, _ int64) { ids = append(ids, ID(id)) })
		}); err != nil {
			return err
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { return a.refused[id] })
		ids = ids[:min(int64(len(ids)), n, BatchRows)]
		done := a.count + int64(len(a.refused))
		if err := a.halve(ctx, ids); err != nil {
			return err
		}
		if n -= int64(len(ids)); a.count+int64(len(a.refused)) == done { // there are none, or others have them
			break
		}
	}
	return FirstRefused(a.first, len(a.refused))
}

func (a *apartCommand) halve(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	var r Step
	err := a.s.command(ctx, backends.OwnJobs, func(ctx context.Context, tx Tx) (err error) {
		r, err = a.run(ctx, tx, idsOf(ids))
		return err
	})
	switch {
	case err == nil:
		if a.count += r.N; r.N > 0 && a.freed {
			a.s.driver.MadeReady([]string{a.c.Queue})
		}
		a.c.Progressed()
		return nil
	case !backends.IsRefused(err):
		return err
	case len(ids) == 1:
		if a.refused[ids[0]] = true; a.first == nil {
			a.first = fmt.Errorf("job %s: %w", ids[0], err)
		}
		if len(a.refused) == MostRefused {
			return FirstRefused(a.first, MostRefused)
		}
		return nil
	}
	if err := a.halve(ctx, ids[:len(ids)/2]); err != nil {
		return err
	}
	return a.halve(ctx, ids[len(ids)/2:])
}

// retryApart retries at most n of the dead jobs, of which the database refuses some.
func (s *Store) retryApart(ctx context.Context, c backends.Command, n int64) (count int64, _ error) {
	a := apartCommand{s: s, c: c, freed: true, run: func(ctx context.Context, tx Tx, ids []int64) (Step, error) {
		return tx.Retry(ctx, c.Queue, ids, nil, 0)
	}}
	err := a.do(ctx, backends.StateDead, n)
	return a.count, err
}

// purgeApart deletes at most n of the jobs in a state, of which the database refuses some.
func (s *Store) purgeApart(ctx context.Context, c backends.Command, n int64) (count int64, _ error) {
	a := apartCommand{s: s, c: c, run: func(ctx context.Context, tx Tx, ids []int64) (r Step, err error) {
		states, err := tx.States(ctx, c.Queue, ids)
		if err != nil {
			return r, err
		}
		ids = ids[:0]
		for _, j := range states {
			if j.State == c.State {
				ids = append(ids, j.ID)
			}
		}
		if len(ids) > 0 {
			r.N, err = tx.Delete(ctx, c.Queue, ids)
		}
		return r, err
	}}
	err := a.do(ctx, c.State, n)
	return a.count, err
}

// purge deletes as many jobs as exist when it begins. So it ends even if new jobs arrive.
func (s *Store) purge(ctx context.Context, c backends.Command) (count int64, err error) {
	switch c.State {
	case backends.StateClaimed:
		return 0, errors.New("claimed jobs cannot be purged: reclaim them first")
	case backends.StateReady, backends.StateBlocked, backends.StateScheduled, backends.StateDone, backends.StateDead:
	default:
		return 0, fmt.Errorf("no job is ever %q", c.State)
	}
	var left int64
	if err := s.readJobs(ctx, func(ctx context.Context, r Reader) (err error) {
		left = 0
		if !hasState(r, c.State) {
			return nil
		}
		left, err = r.Count(ctx, c.Queue, c.State)
		return err
	}); err != nil {
		return 0, err
	}
	var last any
	for left > 0 {
		var r Step
		if err := s.command(ctx, neededByCommand(c.Kind), func(ctx context.Context, tx Tx) (err error) {
			r, err = tx.Purge(ctx, c.Queue, c.State, last, min(left, BatchRows))
			return err
		}); backends.IsRefused(err) {
			n, err := s.purgeApart(ctx, c, left)
			return count + n, err
		} else if err != nil {
			return count, err
		}
		count += r.N
		c.Progressed()
		if left -= r.Seen; r.Seen == 0 {
			break
		}
		last = r.Last
	}
	return count, nil
}

// idsOf returns the valid ids among the texts, each once, in their order. It never returns nil.
func idsOf(texts []string) []int64 {
	all := []int64{}
	for _, text := range texts {
		if id, ok := Number(text); ok && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}
