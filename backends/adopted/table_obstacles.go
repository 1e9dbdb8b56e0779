package adopted

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// A table that its owner changes must not harm other queues. If a transaction fails because of one table, its parts run
// apart, the queue becomes an obstacle of the ObstacleSet, and later transactions leave it out. Maintenance checks the
// table again. If that succeeds, the next claim of the queue is tried, in a transaction of its own.
//
// Writes about such a queue leave the group commit with a LockedError. The caller tries each alone, outside of the group
// commits, and gets the obstacle as the error until another try is due.

// probes are the obstructed queues from which the next claim is tried.
type probes struct {
	mu  sync.Mutex
	all map[string]time.Time // since when
}

func (p *probes) add(queue string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[string]time.Time{}
	}
	p.all[queue] = now
}

// take reports whether the caller has to try the queue.
func (p *probes) take(queue string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, yes := p.all[queue]
	delete(p.all, queue)
	return yes
}

// since returns when the queue was added.
func (p *probes) since(queue string) (at time.Time, waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, waits = p.all[queue]
	return at, waits
}

// tableName is the table of a queue, as its owner names it.
func (s *Store) tableName(queue string) string {
	t, adopted := s.tables[queue]
	if q := s.former[queue]; !adopted && q != nil {
		return q.SQLName
	}
	if t.Schema == "" {
		return t.Name
	}
	return t.Schema + "." + t.Name
}

// obstruct notes that the table of a queue is out of order, and returns the error for its callers. If the table doesn't fit
// its mapping any more, that is the error: it names the column.
func (s *Store) obstruct(ctx context.Context, queue, doing string, err error) error {
	if !s.Adopted(queue) {
		return s.unavailable(queue, err) // a reload removed the queue
	}
	if s.ObstacleSet().Find(queue, "", doing) == nil && !isLocked(err) {
		ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
		defer cancel()
		var wrong *misfitError
		if why := s.recheckTable(ctx, queue); errors.As(why, &wrong) {
			err = wrong
		} else if why == nil {
			s.probes.add(queue, s.now()) // the description of the table was old
			if q := s.queues()[queue]; doing == backends.DoingEnqueue && !q.TakesJobs() {
				err = q.NoJobs() // it names the right or the column
			}
		}
	}
	return s.note(queue, doing, err)
}

func (s *Store) note(queue, doing string, err error) error {
	s.ObstacleSet().Note(backends.Obstacle{Queue: queue, Table: s.tableName(queue), Doing: doing, Err: err})
	return s.obstruction(queue, doing)
}

// obstruction is the error of a queue that is out of order.
func (s *Store) obstruction(queue, doing string) error {
	for _, doing := range []string{doing, backends.DoingClaim} {
		if o := s.ObstacleSet().Find(queue, "", doing); o != nil {
			return s.unavailable(queue, o.Err)
		}
	}
	return s.unavailable(queue, &misfitError{s.misfits[queue]})
}

func (s *Store) unavailable(queue string, why error) error {
	if locked, ok := errors.AsType[*backends.LockedError](why); ok {
		why = fmt.Errorf("another session has locked the whole table: %w", locked.Err)
	}
	return &backends.UnavailableError{Queue: queue, Err: fmt.Errorf("its table %s can't be used now: %w", s.tableName(queue), why)}
}

// named is an error of a request about one adopted queue, with the names of the queue and its table.
func (s *Store) named(queue string, err error) error {
	if !isOfTable(err) {
		return err
	}
	if unavailable, ok := errors.AsType[*backends.UnavailableError](err); ok && unavailable.Queue != "" {
		return err
	}
	return s.unavailable(queue, err)
}

// isOfTable reports whether an error shows that a table, or a lock on it, is in the way: the server's answer was neither
// that a value is refused nor that the whole database is unavailable.
func isOfTable(err error) bool {
	var unsupported *backends.UnsupportedError
	return err != nil && !backends.Retryable(err) && !backends.IsRefused(err) && !errors.Is(err, backends.ErrEvicted) && !errors.Is(err, backends.ErrUnknownOutcome) &&
		!errors.Is(err, backends.ErrNoSuchJob) && !errors.Is(err, backends.ErrTxLost) && !errors.As(err, &unsupported)
}

// isObstructed reports whether something must not be done with a queue now, because its table is out of order.
func (s *Store) isObstructed(queue, doing string) bool {
	return s.Adopted(queue) && (s.queues()[queue] == nil || s.ObstacleSet().Find(queue, "", doing) != nil)
}

// works records that a queue's table is in order.
func (s *Store) works(queue, doing string) {
	set := s.ObstacleSet()
	if set.Find(queue, "", doing) == nil {
		return
	}
	set.Clear(queue, "", doing)
	set.RetryNow(queue, backends.DoingSettle)
	set.RetryNow(queue, backends.DoingEnqueue)
}

// isTableLocked reports whether a query of the queue's table, which waits for no row, waits for a lock of that table.
func (s *Store) isTableLocked(ctx context.Context, queue string) bool {
	q := s.queues()[queue]
	if q == nil || s.lockedOut(queue) != nil || !isLocked(s.Query(ctx, q.Exists(func() {}))) {
		return false
	}
	s.FindLockedTables(ctx) // the query also reads the sidecar's leases
	return s.lockedOut(queue) == nil
}

// noteLockedTables notes those of the queues whose whole tables are locked.
func (s *Store) noteLockedTables(ctx context.Context, writes map[int]map[string]bool, cause error) (locked map[string]bool) {
	queues := map[string]bool{}
	for _, of := range writes {
		maps.Copy(queues, of)
	}
	locked = map[string]bool{}
	for _, queue := range slices.Sorted(maps.Keys(queues)) {
		if s.isTableLocked(ctx, queue) {
			locked[queue] = true
			for _, doing := range []string{backends.DoingClaim, backends.DoingSettle, backends.DoingEnqueue} {
				_ = s.note(queue, doing, cause)
			}
		}
	}
	return locked
}

// recheckTimeout bounds the check of a table that is out of order.
const recheckTimeout = 2 * time.Second

// unusedProbe is after how long an obstacle ends that no request tries to overcome, if the table fits.
const unusedProbe = 30 * time.Second

// recheck checks the tables that are out of order and due, all at the same time. The next claim of those that fit is
// tried. It returns their queues.
func (s *Store) recheck(ctx context.Context) (ready []string) {
	queues := s.queues()
	for queue, all := range s.misfits {
		if queues[queue] == nil && s.ObstacleSet().Find(queue, "", backends.DoingClaim) == nil {
			_ = s.note(queue, backends.DoingClaim, &misfitError{all})
		}
	}
	s.forgetSlow()
	if !s.ObstacleSet().Some() || s.LockedTables().Of(claimNeeds) != nil {
		return nil
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, o := range s.ObstacleSet().Obstacles() {
		if o.Job != "" || !s.Adopted(o.Queue) || s.ObstacleSet().Waits(o.Queue, "", o.Doing) {
			continue
		}
		switch o.Doing {
		case backends.DoingClaim:
			if since, waits := s.probes.since(o.Queue); waits {
				if s.now().Sub(since) > unusedProbe { // no worker claims from the queue
					s.works(o.Queue, o.Doing)
				}
				continue
			}
		case backends.DoingSettle, backends.DoingEnqueue: // the next write finds out
			if q := queues[o.Queue]; o.Doing == backends.DoingEnqueue && q != nil && !q.TakesJobs() {
				break // it would only read the description
			}
			if s.ObstacleSet().Time().Sub(o.NextTry) > unusedProbe && s.ObstacleSet().Find(o.Queue, "", backends.DoingClaim) == nil {
				s.works(o.Queue, o.Doing)
			}
			continue
		default:
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, recheckTimeout, errors.New("the table was not readable in time"))
			defer cancel()
			err := s.recheckTable(ctx, o.Queue)
			late := ctx.Err() != nil
			switch {
			case err == nil && o.Doing == backends.DoingEnqueue && !s.queues()[o.Queue].TakesJobs():
				_ = s.note(o.Queue, o.Doing, o.Err)
			case err == nil:
				s.probes.add(o.Queue, s.now())
				s.ObstacleSet().RetryNow(o.Queue, backends.DoingSettle)
				s.ObstacleSet().RetryNow(o.Queue, backends.DoingEnqueue)
				mu.Lock()
				defer mu.Unlock()
				ready = append(ready, o.Queue)
			case late || !backends.Retryable(err):
				_ = s.note(o.Queue, backends.DoingClaim, err)
			}
		})
	}
	wg.Wait()
	return ready
}

// recheckTable describes a table again. If the table fits its mapping, later statements use the new description.
func (s *Store) recheckTable(ctx context.Context, queue string) error {
	if q := s.queues()[queue]; q != nil {
		if err := s.Query(ctx, q.Exists(func() {})); isLocked(err) || backends.Retryable(err) {
			return err
		}
	}
	p := &mapping.Problems{Queue: queue}
	q, err := s.adopt(ctx, p, s.tables[queue])
	if err != nil {
		return err
	}
	if len(p.All) > 0 {
		return &misfitError{p.All}
	}
	if old := s.queues()[queue]; old != nil {
		q.Replace(old)
	}
	s.setQueue(queue, q)
	return nil
}

// misfitError has the misfits of a table, in one line.
type misfitError struct{ all []*mapping.Misfit }

func (e *misfitError) Error() string {
	texts := make([]string, len(e.all))
	for i, m := range e.all {
		texts[i] = m.Error()
	}
	return strings.Join(texts, "; ")
}

// asideError is a write's error while its queue is out of order. In a group commit it is a LockedError: the caller tries
// the write alone.
func (s *Store) asideError(b backends.CommitContent, queue, doing string) error {
	switch {
	case b.WaitForLocks:
		return s.obstruction(queue, doing)
	case s.Slow(queue), !s.isObstructed(queue, doing):
		return errTriedAlone
	}
	return &backends.LockedError{Err: s.obstruction(queue, doing)}
}

// mustNotTry reports whether a write has to leave the batch, because the table of a queue is out of order. Alone it is
// tried when the next try is due.
func (s *Store) mustNotTry(b backends.CommitContent, queue, doing string) bool {
	if !b.WaitForLocks && (s.Slow(queue) || doing == backends.DoingEnqueue && s.refusesJobs(queue) && s.described.old(queue, s.ObstacleSet().Time())) {
		return true
	}
	if !s.isObstructed(queue, doing) {
		return false
	}
	q := s.queues()[queue]
	return !b.WaitForLocks || q == nil || s.ObstacleSet().Waits(queue, "", doing) || doing == backends.DoingEnqueue && !q.TakesJobs() // until a recheck
}
