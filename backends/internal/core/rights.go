package core

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// The login can lack a right on a table of the sidecar. The Store finds out when it is opened and at a reload (Recheck), when a call
// fails for that reason, and every few seconds as long as one is missing. What needs the right is unavailable at once then, and the
// rest goes on without it, as with a locked table. Claims of managed queues stop where the end of a claim could not be stored.

const (
	// rightsEvery is how often maintenance looks for rights that are missing.
	rightsEvery = 5 * time.Second
	// rightsPause is how long calls that fail start no other search after one of them found nothing.
	rightsPause = time.Second
	// rightsTimeout bounds one.
	rightsTimeout = 5 * time.Second
	// mostRightTries is how often a commit is tried whose rights turn out to be missing.
	mostRightTries = 3
)

// rightsReader is a Driver of a server that has rights.
type rightsReader interface {
	// MissingRights returns the rights on the sidecar's tables, and on what these use, that the login lacks.
	MissingRights(ctx context.Context) ([]backends.MissingRights, error)
}

// outages are the tables of the sidecar that can't be used, for either reason.
type outages struct {
	suspected atomic.Bool // a right is possibly missing

	search sync.Mutex // one search at a time
	mu     sync.Mutex
	locked map[string]error
	rights []backends.MissingRights
	last   time.Time // when the last search for rights ended
	quiet  time.Time // see rightsPause
}

func (o *outages) isLocked(table string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.locked[table] != nil
}

func (o *outages) someLocked() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.locked) > 0
}

func (o *outages) someRights() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.rights) > 0
}

// missing returns the error of a call that needs tables, one of which lacks a right; nil: none does, as far as it is known.
func (o *outages) missing(need backends.OwnTables) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.rights {
		if m := &o.rights[i]; backends.OwnTableNames[m.Object]&need != 0 || neededRights(m)&need != 0 {
			return &backends.UnavailableError{Table: m.Object, Err: m.Err()}
		}
	}
	return nil
}

// rightsDue reports whether maintenance has to search for missing rights.
func (o *outages) rightsDue(now time.Time) bool {
	if o.suspected.Load() {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.rights) > 0 && now.Sub(o.last) >= rightsEvery
}

func (o *outages) setLocked(s *Store, locked map[string]error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.locked = locked
	o.apply(s)
}

func (o *outages) setRights(s *Store, rights []backends.MissingRights) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rights = rights
	o.apply(s)
}

// apply marks the tables as unavailable, and as obstacles. o.mu is held.
func (o *outages) apply(s *Store) {
	all, why := map[string]backends.TableOutage{}, maps.Clone(o.locked)
	if why == nil {
		why = map[string]error{}
	}
	for table, err := range o.locked {
		all[table] = backends.TableOutage{Of: backends.OwnTableNames[table], Err: err}
	}
	for i := range o.rights {
		m := &o.rights[i]
		why[m.Object] = m.Err()
		if need := neededRights(m); need != 0 {
			all[m.Object] = backends.TableOutage{Of: need | all[m.Object].Of, Err: m.Err()}
		}
	}
	s.tables.Set(all)
	for table, err := range why {
		s.obstacles.Note(backends.Obstacle{Table: table, Doing: backends.DoingUse, Err: err})
	}
	s.obstacles.Keep(func(o *backends.Obstacle) bool {
		return o.Doing != backends.DoingUse || why[o.Table] != nil || o.Table == notesTable && s.notes.failed()
	})
}

// neededRights returns what has to wait for the rights. A claim has to wait where the end of its job could not be stored. What is not
// listed fails by itself, and holds up nothing else.
func neededRights(m *backends.MissingRights) backends.OwnTables {
	only := func(right string) bool { return len(m.Rights) == 1 && m.Rights[0] == right }
	table := backends.OwnTableNames[m.Object]
	switch {
	case m.Object == "qsidecar_jobs" && only("INSERT"):
		return backends.OwnNewJobs
	case m.Object == "qsidecar_jobs" && only("DELETE"):
		return backends.OwnClaims | backends.OwnSettles
	case m.Object == "qsidecar_keys" && only("INSERT"):
		return 0
	case table&(backends.OwnKeys|backends.OwnFailures) != 0:
		return table | backends.OwnClaims
	case m.Rights[0] == "USAGE", m.Object == "qsidecar_sequence": // the sequence of the positions, or the schema
		return backends.OwnJobs
	}
	return table
}

// RightsFor returns what a write about managed jobs certainly needs: OwnJobs, and what neededRights can return for a right on it.
func RightsFor(w backends.Write) backends.OwnTables {
	need := backends.OwnJobs
	if len(JobsOf(w)) > 0 {
		need |= backends.OwnNewJobs
	}
	if hasLeases(w) {
		need |= backends.OwnSettles
	}
	return need
}

// ClaimNeeds are the tables that each claim of managed queues needs.
const ClaimNeeds = backends.OwnJobs | backends.OwnQueues | backends.OwnSidecars | backends.OwnClaims

// MustHappen reports whether no client repeats the write.
func MustHappen(w backends.Write) bool {
	switch w.(type) {
	case backends.Release, backends.Deliver:
		return true
	}
	return false
}

// Recheck implements backends.Rechecker: it searches for missing rights, and for locked tables if some were locked.
func (s *Store) Recheck(ctx context.Context) {
	s.findRights(ctx, true)
	if s.outages.someLocked() {
		s.FindLockedTables(ctx)
	}
}

// findRights searches for missing rights. Unless it must, it doesn't do so for a while after it found none. some: rights are missing.
func (s *Store) findRights(ctx context.Context, must bool) (some bool) {
	reader, ok := s.driver.(rightsReader)
	if !ok {
		return false
	}
	o := &s.outages
	o.search.Lock()
	defer o.search.Unlock()
	o.mu.Lock()
	quiet := s.obstacles.Time().Before(o.quiet)
	o.mu.Unlock()
	if quiet && !must {
		return o.someRights()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, rightsTimeout, errors.New("the rights were not readable in time"))
	defer cancel()
	found, err := reader.MissingRights(ctx)
	if err == nil {
		o.suspected.Store(false)
		o.setRights(s, found)
	}
	o.mu.Lock()
	o.last = s.obstacles.Time()
	if !must && len(o.rights) == 0 {
		o.quiet = o.last.Add(rightsPause)
	}
	o.mu.Unlock()
	return o.someRights()
}
