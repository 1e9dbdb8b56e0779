package core

import (
	"context"
	"errors"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
)

// Groups of jobs: at most Limits.GroupLimit jobs of a group can be claimed at a time.
//
// A producer sets the group of a job. A row that is ready and has a group is blocked: it isn't in the index from which claims
// take jobs. An admission moves its group to another column, and then it is an ordinary ready job. So the rows with an admitted
// group are those that have a slot, whether they are ready, claimed or in a back-off. A row that is done or dead gets its group back into
// the first column, and so is blocked again if it is retried.
//
// Only admissions give slots, one at a time for each group: an admission first locks and writes a row that the group shares with
// others of the queue (a stripe). The next statements count the slots that are taken: one statement would count with the
// snapshot from before the wait. Rows are counted, never a counter. All else only frees slots, and needs no lock.
//
// Each transaction that frees a slot or stores a blocked job also stores a note in qsidecar_admissions. Plain INSERTs, promotions
// and commands leave a mark in the row instead. An admission deletes both before it counts. It runs after the
// commits that stored the notes, and beside the next ones, in a transaction of its own that waits only briefly for a lock. Maintenance sees to the remaining notes and
// marks within a second. It also walks over all groups with blocked jobs, a few at a time, and so finds what a plain DELETE freed.

// Group names a group of jobs.
type Group = backends.Group

func compareGroups(a, b Group) int {
	if a.Queue != b.Queue {
		return strings.Compare(a.Queue, b.Queue)
	}
	return strings.Compare(a.Name, b.Name)
}

// Stripes is how many rows a queue has for the locks of its groups.
const Stripes = 64

// stripeOf returns the number of the group's stripe, the same in each program.
func stripeOf(g Group) int32 {
	h := fnv.New32a()
	h.Write([]byte(g.Name))
	return int32(h.Sum32() % Stripes)
}

// StripesOf returns the stripes of groups, in the order in which every transaction locks them, each once.
func StripesOf(groups []Group) (queues []string, stripes []int32) {
	type stripe struct {
		queue  string
		number int32
	}
	all := make([]stripe, 0, len(groups))
	for _, g := range groups {
		all = append(all, stripe{g.Queue, stripeOf(g)})
	}
	slices.SortFunc(all, func(a, b stripe) int {
		if a.queue != b.queue {
			return strings.Compare(a.queue, b.queue)
		}
		return int(a.number - b.number)
	})
	for _, s := range slices.Compact(all) {
		queues, stripes = append(queues, s.queue), append(stripes, s.number)
	}
	return queues, stripes
}

// Grouper is a Tx of an engine whose jobs can have groups. Groups in a list are distinct and in order.
type Grouper interface {
	// NoteGroups stores a note for each group. It waits for no other transaction.
	NoteGroups(groups []Group)

	// NoteAllGroups is NoteGroups for all groups of a queue that have blocked or admitted jobs.
	NoteAllGroups(queue string)

	// LeaveGroups takes the slots from those rows with the ids that are done or dead now, and from scheduled ones of queues whose
	// Limits.GroupOnFailure is GroupSkips. It is called after Change.
	LeaveGroups(ids []int64)

	// Admit locks and writes the stripes of the groups. Then it deletes notes of the groups, marks at most limit jobs that no sidecar
	// had noticed, blocks admitted jobs again, and admits others, at most limit of each group:
	//
	//   - Jobs that are claimed or scheduled keep their slots.
	//   - The other slots belong to the ready and blocked jobs in this order: priority, those that are admitted, position.
	//   - An admitted job keeps its position. The queue's count of returns grows, as for Change.SamePosition.
	//   - A locked job keeps what it has. No later job of its group gets a slot instead of it.
	//
	// It calls admitted for each admitted job. again are the groups that have more to admit.
	Admit(ctx context.Context, groups []Group, limit int, admitted func(queue string, urgency int32, position, returns int64)) (again []Group, err error)
}

// GroupFinder is a Reader of an engine whose jobs can have groups.
type GroupFinder interface {
	// FindGroups returns groups of at most limit notes, those of at most limit blocked jobs that no sidecar has noticed, and at most
	// walk groups with blocked jobs that come after one. last is the last of these, or zero if the walk has ended.
	FindGroups(ctx context.Context, after Group, walk, limit int) (groups []Group, last Group, err error)

	// GroupSlots returns jobs that have a slot of the group, at most limit.
	GroupSlots(ctx context.Context, g Group, limit int) ([]backends.JobState, error)
}

// hasState reports whether jobs of the engine can be in a state.
func hasState(r Reader, state backends.State) bool {
	_, groups := r.(GroupFinder)
	return groups || state != backends.StateBlocked
}

const (
	admitGroups = 100  // groups of one admission
	admitJobs   = 1000 // jobs that one admission changes in each group
	foundNotes  = 500  // notes that maintenance reads at a time
	walkGroups  = 20   // groups that it walks over at a time
	admitWaits  = 8    // waits for locks of other admissions after which it stops: a hung host can hold many of them
)

// groupWalk is how far the walk over the groups has come.
type groupWalk struct {
	mu sync.Mutex
	at Group
}

// distinctGroups sorts groups, each once.
func distinctGroups(groups []Group) []Group {
	slices.SortFunc(groups, compareGroups)
	return slices.Compact(groups)
}

// noGroups returns the error for jobs of groups if the engine has no groups.
func (c *Commit) noGroups(tx Tx) error {
	if _, ok := tx.(Grouper); ok {
		return nil
	}
	for _, w := range c.batch.Writes {
		for _, j := range JobsOf(w) {
			if j.Group != "" {
				return &backends.UnsupportedError{Queue: j.Queue, What: "group", NoGroups: true}
			}
		}
	}
	return nil
}

// groupsOf returns the groups of new jobs that can be blocked.
func groupsOf(jobs []*NewJob) (groups []Group) {
	for _, j := range jobs {
		if j.Group != "" && j.Delay <= 0 {
			groups = append(groups, Group{Queue: j.Queue, Name: j.Group})
		}
	}
	return groups
}

// leaveGroups queues the statement that takes slots from changed rows, and returns the groups to note.
func leaveGroups(tx Tx, rows iter.Seq[*Row]) (groups []Group) {
	var ids []int64
	for r := range rows {
		switch c := &r.Change; {
		case r.Group == "" || c.Kind != Deleted && c.Kind != Ended:
			continue
		case c.Kind == Ended && c.State != backends.StateReady: // a ready one is blocked again if the limit is lower now
			ids = append(ids, r.ID)
		}
		groups = append(groups, Group{Queue: r.Queue, Name: r.Group})
	}
	if len(ids) > 0 {
		tx.(Grouper).LeaveGroups(inOrder(ids))
	}
	return groups
}

// noteGroups queues the statement that notes groups.
func noteGroups(tx Tx, groups []Group) {
	if len(groups) > 0 {
		tx.(Grouper).NoteGroups(groups)
	}
}

// Admit implements backends.Admitter. Commits noted the groups.
func (s *Store) Admit(ctx context.Context, groups []Group) (queues []string) {
	for some := range slices.Chunk(distinctGroups(groups), admitGroups) {
		made, err := s.admit(ctx, some)
		if err != nil {
			s.log.Debug("jobs of groups are admitted later", "event", "admission_delayed", "address", s.address, "error", err)
			break
		}
		queues = append(queues, made...)
	}
	return distinctNames(queues)
}

// GroupSlots implements backends.Admitter.
func (s *Store) GroupSlots(ctx context.Context, g Group, limit int) (all []backends.JobState, err error) {
	err = s.read(ctx, func(ctx context.Context, r Reader) (err error) {
		if finder, ok := r.(GroupFinder); ok {
			all, err = finder.GroupSlots(ctx, g, limit)
		}
		return err
	})
	return all, err
}

func distinctNames(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// admit carries out one admission. The commit need not be on disk: if a crash undoes it, the notes are there again.
func (s *Store) admit(ctx context.Context, groups []Group) (queues []string, err error) {
	var backs []giveBack
	err = s.Write(ctx, TxOptions{Unsynced: true, Gated: true}, func(ctx context.Context, tx Tx) error {
		backs = nil
		keeper, ok := tx.(Grouper)
		if !ok {
			return nil
		}
		again, err := keeper.Admit(ctx, groups, admitJobs, func(queue string, urgency int32, position, returns int64) {
			backs = append(backs, giveBack{queue: queue, urgency: urgency, position: position, returns: returns})
		})
		if err == nil && len(again) > 0 {
			keeper.NoteGroups(distinctGroups(again))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.gaveBack(backs)
	for _, b := range backs {
		queues = append(queues, b.queue)
	}
	if queues = distinctNames(queues); len(queues) > 0 {
		s.driver.MadeReady(queues)
	}
	return queues, nil
}

// admitDue does the admissions that maintenance finds.
func (s *Store) admitDue(ctx context.Context, r *backends.MaintenanceResult) error {
	s.walk.mu.Lock()
	after := s.walk.at
	s.walk.mu.Unlock()
	var groups []Group
	var last Group
	if err := s.read(ctx, func(ctx context.Context, reader Reader) (err error) {
		finder, ok := reader.(GroupFinder)
		if ok {
			groups, last, err = finder.FindGroups(ctx, after, walkGroups, foundNotes)
		}
		return err
	}); err != nil {
		return err
	}
	s.walk.mu.Lock()
	s.walk.at = last
	s.walk.mu.Unlock()
	groups = distinctGroups(groups)
	var errs []error
	waits := 0
	var try func(some []Group) (stop bool)
	try = func(some []Group) bool {
		queues, err := s.admit(ctx, some)
		if isLockedError(err) {
			if waits++; waits == admitWaits { // the notes of the others stay
				return true
			}
		}
		switch {
		case err == nil:
			for _, q := range queues {
				if !slices.Contains(r.MadeReady, q) {
					r.MadeReady = append(r.MadeReady, q)
				}
			}
			r.More = r.More || len(groups) >= foundNotes && len(queues) > 0
			return false
		case IsOutage(ctx, err) || len(some) == 1:
			errs = append(errs, err)
			return IsOutage(ctx, err)
		}
		// The database refuses a row of one of the groups, or another admission has locked one of them.
		return try(some[:len(some)/2]) || try(some[len(some)/2:])
	}
	for some := range slices.Chunk(groups, admitGroups) {
		if try(some) {
			break
		}
	}
	return errors.Join(slices.DeleteFunc(errs, isLockedError)...)
}

func isLockedError(err error) bool {
	_, locked := errors.AsType[*backends.LockedError](err)
	return locked
}
