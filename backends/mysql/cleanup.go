package mysql

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// cleaner goes round the tables beside qsidecar_jobs, one batch at each visit. It removes what belonged to
// jobs that were deleted by hand, and rows of sidecars that stopped long ago.
type cleaner struct {
	calls atomic.Int64 // of Tidy, also those that do nothing

	mu        sync.Mutex
	job       int64  // the last row of qsidecar_failures that was visited
	queue     string // the last of qsidecar_keys
	key       []byte
	admitted  admittedRow // the last of qsidecar_admitted
	notes     atomic.Bool // qsidecar_admissions had rows
	scheduled string      // the last queue that restoreEmptied has read

	named int64 // the highest id that the visited rows of both name

	registered string          // the last row of qsidecar_queues
	idle       map[string]idle // rows of qsidecar_queues without scheduled jobs
}

// idle is a queue that had no scheduled job at each visit.
type idle struct {
	since   time.Time
	returns int64 // the same at each visit: no transaction has registered the queue
}

const (
	// idleQueue is how long a queue must be idle before its row is deleted. Each sidecar that schedules a
	// job in that time registers the queue (believedFor), and so changes the row.
	idleQueue = 24 * time.Hour
	maxIdle   = 100_000

	// counterDays is after how many days a row of qsidecar_commits is deleted that no commit
	// changed. The next commit inserts it again.
	counterDays = 30

	// tidyEvery is the number of maintenance runs that prune, and so of calls of Tidy, per visit.
	tidyEvery = 12
)

// Tidy implements core.Tidier. Only every tidyEvery-th call visits the tables. A visit reads without locks and
// locks only what it changes. Ids are never used again, so what it found to be gone stays gone.
func (a access) Tidy(ctx context.Context, limit int) error {
	c := &a.cleaner
	if err := a.restoreEmptied(ctx); err != nil {
		return err
	}
	if c.calls.Add(1)%tidyEvery != 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, clean := range []func(ctx context.Context, limit int) error{a.cleanFailures, a.cleanKeys, a.cleanCounters, a.cleanAdmitted} {
		if err := clean(ctx, limit); err != nil {
			return err
		}
	}
	if err := a.idsBeyond(ctx, c.named); err != nil {
		return err
	}
	return a.cleanQueues(ctx, limit, idleQueue)
}

// visit runs a query for at most limit rows (its last parameter), and reports whether there are no more. If it is retried, it calls f
// again with rows that f has seen.
func (s *Store) visit(ctx context.Context, limit int, f func(r *session.Result), sql string, args ...any) (end bool, err error) {
	n := 0
	err = s.read(ctx, func(_ context.Context, t *tx) error {
		t.Each(func(r *session.Result) { n++; f(r) }, sql, append(args, limit)...)
		return nil
	})
	return n < limit, err
}

// change runs f in a transaction.
func (s *Store) change(ctx context.Context, f func(t *tx)) error {
	return s.Write(ctx, core.TxOptions{}, func(_ context.Context, x core.Tx) error {
		t := x.(*tx)
		t.wrote = true
		f(t)
		return nil
	})
}

// cleanFailures deletes the failures of jobs that are gone.
func (s *Store) cleanFailures(ctx context.Context, limit int) error {
	c := &s.cleaner
	var orphans []int64
	end, err := s.visit(ctx, limit, func(r *session.Result) {
		if c.job = r.Int(0); r.Null(1) {
			orphans = append(orphans, c.job)
		}
		c.named = max(c.named, c.job)
	}, s.sql.failuresAfter, c.job)
	if end {
		c.job = 0
	}
	if err != nil || len(orphans) == 0 {
		return err
	}
	return s.change(ctx, func(t *tx) { t.Add(s.sql.deleteFailures, session.IDs(orphans)) })
}

// restoredAtOnce is how many queues with scheduled jobs a call of restoreEmptied reads.
const restoredAtOnce = 5

// restoreEmptied restores rows that another program deleted, as the clean-up of a test suite does. Maintenance finds the scheduled jobs
// only of queues in qsidecar_queues, so each call reads the next queues that have such jobs. The row of qsidecar_meta
// gets the name that the leases of this sidecar have.
func (s *Store) restoreEmptied(ctx context.Context) error {
	c := &s.cleaner
	c.mu.Lock()
	defer c.mu.Unlock()
	for range restoredAtOnce {
		described, queue, registered := int64(0), "", false
		if err := s.read(ctx, func(_ context.Context, t *tx) error {
			described, queue, registered = 0, "", false
			t.Int(&described, s.sql.described)
			t.Each(func(r *session.Result) { queue, registered = r.Text(0), !r.Null(1) }, s.sql.scheduledAfter, table.StateSegment(backends.StateScheduled, c.scheduled))
			return nil
		}); err != nil {
			return err
		}
		if described == 0 || queue != "" && !registered {
			s.log.Warn("emptied table restored", "event", "emptied_table_restored", "address", s.place, "queue", queue)
			s.queues.forget()
			if err := s.change(ctx, func(t *tx) {
				if described == 0 {
					t.Add(s.sql.describe, migrate.Latest, migrate.Program, s.database)
				}
				if queue != "" {
					t.Add(s.sql.register, queue)
				}
			}); err != nil {
				return err
			}
		}
		if c.scheduled = queue; queue == "" {
			return nil
		}
	}
	return nil
}

// cleanKeys records in keys how their jobs ended, where that is missing: someone deleted a job, or a claim made one dead.
func (s *Store) cleanKeys(ctx context.Context, limit int) error {
	c := &s.cleaner
	type key struct {
		queue, state string
		key          []byte
		job          int64
	}
	var keys []key
	end, err := s.visit(ctx, limit, func(r *session.Result) {
		c.queue, c.key = r.Text(0), r.Bytes(1)
		c.named = max(c.named, r.Int(2))
		if state := r.Text(4); r.Null(3) && (state == string(backends.StateDeleted) || state == string(backends.StateDead)) {
			keys = append(keys, key{c.queue, state, c.key, r.Int(2)})
		}
	}, s.sql.keysAfter, c.queue, c.queue, c.key)
	if end {
		c.queue, c.key = "", []byte{}
	}
	if err != nil || len(keys) == 0 {
		return err
	}
	err = s.change(ctx, func(t *tx) {
		all := make([]jobKey, len(keys))
		for i, k := range keys {
			all[i] = jobKey{k.queue, string(k.key)}
		}
		t.lockExistingKeys(all)
		for _, k := range keys {
			t.Add(s.sql.endKey, k.state, k.queue, k.key, k.job)
		}
	})
	if _, locked := errors.AsType[*backends.LockedError](err); locked {
		return nil // the next round finds them again
	}
	return err
}

// admittedRow names a row of qsidecar_admitted.
type admittedRow struct {
	core.Group
	job int64
}

// cleanAdmitted notes groups with rows of jobs that have no slots any more. An admission deletes such a row, and a plain DELETE of the
// group's last job causes none. The next maintenance admits jobs if there are notes: a scan for due work doesn't see them.
func (s *Store) cleanAdmitted(ctx context.Context, limit int) error {
	c := &s.cleaner
	var groups []core.Group
	at := c.admitted
	end, err := s.visit(ctx, limit, func(r *session.Result) {
		c.admitted = admittedRow{core.Group{Queue: r.Text(0), Name: r.Text(1)}, r.Int(2)}
		if r.Null(3) && !slices.Contains(groups, c.admitted.Group) {
			groups = append(groups, c.admitted.Group)
		}
	}, s.sql.admittedAfter, at.Queue, at.Queue, []byte(at.Name), []byte(at.Name), at.job)
	if end {
		c.admitted = admittedRow{}
	}
	if err == nil && len(groups) > 0 {
		err = s.change(ctx, func(t *tx) { t.NoteGroups(groups) })
	}
	if err != nil {
		return err
	}
	none, err := s.visit(ctx, 1, func(*session.Result) {}, s.sql.findNotes, "", "", []byte{})
	c.notes.Store(err == nil && !none)
	return err
}

// cleanCounters deletes rows of qsidecar_commits that no connection refreshes.
func (s *Store) cleanCounters(ctx context.Context, limit int) error {
	none, err := s.visit(ctx, 1, func(*session.Result) {}, s.sql.oldCommits)
	if err != nil || none {
		return err
	}
	return s.change(ctx, func(t *tx) { t.Add(s.sql.deleteOldCommits, limit) })
}

// cleanQueues deletes rows of qsidecar_queues whose queues have been idle for `long`. Maintenance scans the
// scheduled jobs of each queue in that table, and clients can create queue names without limit. The caller
// holds cleaner.mu.
func (s *Store) cleanQueues(ctx context.Context, limit int, long time.Duration) error {
	c, now := &s.cleaner, time.Now()
	if c.idle == nil {
		c.idle = map[string]idle{}
	}
	over := map[string]int64{}
	end, err := s.visit(ctx, limit, func(r *session.Result) {
		c.registered = r.Text(0)
		x, known := c.idle[c.registered]
		switch {
		case r.Int(2) != 0 || !r.Null(3):
			delete(c.idle, c.registered)
		case known && x.returns == r.Int(1) && now.Sub(x.since) >= long:
			over[c.registered] = x.returns
		case (!known || x.returns != r.Int(1)) && (known || len(c.idle) < maxIdle):
			c.idle[c.registered] = idle{now, r.Int(1)}
		}
	}, s.sql.registeredAfter, c.registered)
	if end {
		c.registered = ""
	}
	if err != nil || len(over) == 0 {
		return err
	}
	return s.change(ctx, func(t *tx) {
		for _, q := range slices.Sorted(maps.Keys(over)) {
			t.Add(s.sql.unregister, q, over[q])
			delete(c.idle, q)
		}
	})
}
