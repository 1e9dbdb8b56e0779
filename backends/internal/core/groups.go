package core

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Groups of jobs: at most Limits.GroupLimit jobs of a group can be claimed at a time. If a queue has Limits.GroupReady instead, any number
// can be claimed, and at most so many are ready: then the jobs of a group with a large backlog take turns with those of other groups.
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
// Each transaction that frees a slot, stores a blocked job, or claims a job of a queue with Limits.GroupReady also stores a note in qsidecar_admissions,
// unless that table is out of order (see forgottenNotes). Plain INSERTs, promotions
// and commands leave a mark in the row instead. An admission deletes both before it counts. It runs after the
// commits that stored the notes, and beside the next ones, in a transaction of its own that waits only briefly for a lock. A commit that
// ends jobs of a few groups admits the next ones itself, if it gets the stripes without a wait: so a group that runs one job at a time
// needs one transaction for each. Maintenance sees to the remaining notes and marks within a second. It also walks over all groups with blocked jobs or slots, a few at a time, and so finds what a plain DELETE
// freed, and jobs that became ready after their back-off although the limit is lower now.
//
// A transaction that hangs can keep a stripe locked. Then only maintenance waits for it, after it saw to the other groups. Admissions after commits
// try the stripe without a wait.

// Group names a group of jobs.
type Group = backends.Group

// CompareGroups is the order of groups.
func CompareGroups(a, b Group) int {
	if a.Queue != b.Queue {
		return strings.Compare(a.Queue, b.Queue)
	}
	return strings.Compare(a.Name, b.Name)
}

// Stripes is how many rows a queue has for the locks of its groups.
const Stripes = 64

// stripe is a lock of admissions.
type stripe struct {
	queue  string
	number int32
}

// stripeOf returns the stripe of a group, the same in each program.
func stripeOf(g Group) stripe {
	h := fnv.New32a()
	h.Write([]byte(g.Name))
	return stripe{g.Queue, int32(h.Sum32() % Stripes)}
}

func compareStripes(a, b stripe) int {
	return cmp.Or(strings.Compare(a.queue, b.queue), cmp.Compare(a.number, b.number))
}

// stripesOf returns the stripes of groups, in the order in which every transaction locks them, each once.
func stripesOf(groups []Group) []stripe {
	all := make([]stripe, 0, len(groups))
	for _, g := range groups {
		all = append(all, stripeOf(g))
	}
	slices.SortFunc(all, compareStripes)
	return slices.Compact(all)
}

// StripesOf returns the stripes of groups, in the order in which every transaction locks them, each once.
func StripesOf(groups []Group) (queues []string, stripes []int32) {
	for _, s := range stripesOf(groups) {
		queues, stripes = append(queues, s.queue), append(stripes, s.number)
	}
	return queues, stripes
}

// StripeSet are stripes that a transaction has locked.
type StripeSet map[stripe]bool

// Add adds a stripe.
func (s *StripeSet) Add(queue string, number int32) {
	if *s == nil {
		*s = StripeSet{}
	}
	(*s)[stripe{queue, number}] = true
}

// Groups returns those of the groups whose stripes are in the set.
func (s StripeSet) Groups(all []Group) (some []Group) {
	for _, g := range all {
		if s[stripeOf(g)] {
			some = append(some, g)
		}
	}
	return some
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

	// LockGroups locks and writes the stripes of the groups, and returns the groups whose stripes it has.
	LockGroups(ctx context.Context, groups []Group, how StripeLock) (locked []Group, err error)

	// Admit deletes notes of groups whose stripes are locked, marks at most limit jobs that no sidecar had noticed, blocks admitted jobs again, and admits others, at most limit of each group:
	//
	//   - Claimed jobs keep their slots. So do scheduled ones, as far as the limit allows.
	//   - The other slots belong to the ready and blocked jobs in this order: priority, those that are admitted, position.
	//   - With Limits.GroupReady, at most so many of these are ready. An admitted job gets a new position, the first ones of all groups before
	//     the second ones, and so on. returns is 0.
	//   - Otherwise an admitted job keeps its position. The queue's count of returns grows, as for Change.SamePosition.
	//   - A locked job keeps what it has. No later job of its group gets a slot instead of it.
	//
	// It calls admitted for each admitted job. changed is how many jobs it admitted or blocked; again are the groups that have more to change.
	Admit(ctx context.Context, groups []Group, limit int, admitted func(queue string, urgency int32, position, returns int64)) (changed int, again []Group, err error)
}

// StripeLock is how Grouper.LockGroups treats stripes that other transactions have locked, or that don't exist yet.
type StripeLock int

const (
	// LockSafe leaves them out. It leaves out all stripes if the engine can't, or if the COMMIT could fail because of another server.
	LockSafe StripeLock = iota

	// LockFree leaves them out too, or if the engine can't, fails with a *backends.LockedError at once.
	LockFree

	// LockWait waits for them.
	LockWait
)

// GroupFinder is a Reader of an engine whose jobs can have groups.
type GroupFinder interface {
	// FindGroups carries out a search in each source.
	FindGroups(ctx context.Context, searches GroupSearches) (found FoundGroups, err error)

	// GroupSlots returns jobs that have a slot of the group, at most limit.
	GroupSlots(ctx context.Context, g Group, limit int) ([]backends.JobState, error)
}

// GroupSource is where maintenance finds groups that can have something to change.
type GroupSource int

const (
	// NotedGroups have notes.
	NotedGroups GroupSource = iota

	// ArrivedGroups have blocked jobs that no sidecar has noticed.
	ArrivedGroups

	// AllGroups have blocked jobs, or jobs that have slots. Arrived groups can be left out.
	AllGroups

	groupSources
)

// GroupSearches has the search in each source.
type GroupSearches [groupSources]GroupSearch

// GroupSearch is for the first groups that come after one, at most Limit.
type GroupSearch struct {
	After Group
	Limit int
}

// FoundGroups has the groups that were found in each source: distinct, in order, and as many as the limit unless these are the last ones.
// So a group is one of them, however many notes or jobs it has.
type FoundGroups [groupSources][]Group

// hasState reports whether jobs of the engine can be in a state.
func hasState(r Reader, state backends.State) bool {
	_, groups := r.(GroupFinder)
	return groups || state != backends.StateBlocked
}

const (
	admitGroups = 100  // groups of one admission
	admitJobs   = 1000 // jobs that one admission changes in each group
	admitAtOnce = 4    // groups in which a commit that ends jobs admits others, and jobs in each: see Commit.admit
	admitWaits  = 8    // waits for locks of other transactions after which it stops: a hung host can hold many of them
)

// groupWalk is how far maintenance has come with the groups of each source. It begins again at the end. So groups that can't be
// admitted, because their stripes are locked or they have very many jobs, delay no others.
type groupWalk struct {
	mu sync.Mutex
	at [groupSources]Group // the last ones
}

// groupLimits are how many groups a search finds.
var groupLimits = [groupSources]int{NotedGroups: 500, ArrivedGroups: 500, AllGroups: 20}

// distinctGroups sorts groups, each once.
func distinctGroups(groups []Group) []Group {
	slices.SortFunc(groups, CompareGroups)
	return slices.Compact(groups)
}

// unsupported returns the error for new jobs that need a feature that the engine doesn't have: groups, expiries, retentions of their own.
func (c *Commit) unsupported(tx Tx) error {
	_, groups := tx.(Grouper)
	_, expires := tx.(Expirer)
	_, retains := tx.(Retainer)
	if groups && expires && retains && c.s.traits.Pending {
		return nil
	}
	for _, w := range c.batch.Writes {
		for _, j := range JobsOf(w) {
			switch {
			case j.Group != "" && !groups:
				return &backends.UnsupportedError{Queue: j.Queue, What: "group", NoGroups: true}
			case j.Expiry.Some() && !expires:
				return &backends.UnsupportedError{Queue: j.Queue, What: backends.NoExpiry, NoExpiry: true}
			case j.Retain > 0 && !retains:
				return &backends.UnsupportedError{Queue: j.Queue, What: backends.NoRetain, NoRetain: true}
			case (j.KeyUntilStart || j.OnConflict != backends.ConflictKeep) && !c.s.traits.Pending:
				return &backends.UnsupportedError{Queue: j.Queue, What: backends.NoReplace, NoReplace: true}
			}
		}
	}
	return nil
}

// without returns all but some, which are in the same order.
func without(all, some []Group) (others []Group) {
	for _, g := range all {
		if len(some) > 0 && some[0] == g {
			some = some[1:]
		} else {
			others = append(others, g)
		}
	}
	return others
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

// noteClaimed notes the groups in which another job can be ready because of a claim.
func (c *Commit) noteClaimed(tx Tx) {
	var groups []Group
	for i := range c.res.Claims {
		groups = append(groups, c.res.Claims[i].Groups...)
	}
	if len(groups) > 0 {
		groups = distinctGroups(groups)
		noteGroups(tx, groups)
		c.groups = distinctGroups(append(c.groups, groups...))
	}
}

// noteGroups queues the statement that notes groups.
func noteGroups(tx Tx, groups []Group) {
	if len(groups) > 0 {
		tx.(Grouper).NoteGroups(groups)
	}
}

// admit admits jobs of the groups whose jobs the commit ended, or notes the groups. It waits for no stripe, because the commit has writes
// of others. An admission also locks rows of qsidecar_queues, so other admissions of the queue wait until the commit ends. That pays
// only if workers wait for these jobs: if the last claim from the queue found too few. A commit that has locked such rows before,
// because jobs return to their old positions, could wait for one that waits for it.
func (c *Commit) admit(ctx context.Context, tx Tx, groups []Group) error {
	if len(groups) == 0 {
		return nil
	}
	c.s.grouped.start()
	if len(groups) > admitAtOnce || len(c.backs) > 0 || c.apart || c.avoidLocked || c.noNotes || c.s.tables.Some() || !c.s.dry.all(groups) {
		c.note(tx, groups)
		return nil
	}
	keeper := tx.(Grouper)
	locked, err := keeper.LockGroups(ctx, groups, LockSafe)
	if err != nil {
		return err
	}
	c.note(tx, without(groups, locked))
	if len(locked) == 0 {
		return nil
	}
	c.admits, c.claimsSee = true, c.claims == nil
	_, again, err := keeper.Admit(ctx, locked, admitAtOnce, func(queue string, urgency int32, position, returns int64) {
		if c.admitted = append(c.admitted, queue); returns != 0 {
			c.nextBacks = append(c.nextBacks, giveBack{queue: queue, urgency: urgency, position: position, returns: returns})
		}
	})
	c.note(tx, distinctGroups(again))
	return err
}

// reportAdmitted adds the queues in which the commit admitted more jobs than its claims took to the results of writes that ended jobs there.
func (c *Commit) reportAdmitted() {
	if len(c.admitted) == 0 {
		return
	}
	ready := map[string]int{}
	for _, queue := range c.admitted {
		ready[queue]++
	}
	if c.claimsSee { // otherwise they took jobs that were ready before
		for i := range c.res.Claims {
			for _, j := range c.res.Claims[i].Jobs {
				ready[j.Queue]--
			}
		}
	}
	for i := range c.settles {
		x := &c.settles[i]
		if r := c.rows[x.ID]; r != nil && !x.lost && ready[r.Queue] > 0 {
			addQueue(&c.res.Writes[x.write], r.Queue)
		}
	}
}

// maxDryQueues is of how many queues that is known.
const maxDryQueues = 10_000

// dryQueues are queues from which the last claim got fewer jobs than it asked for.
type dryQueues struct {
	mu  sync.Mutex
	has map[string]bool
}

// claimed records the result of a claim.
func (d *dryQueues) claimed(claim *backends.Claim, res *backends.ClaimResult) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.has == nil || len(d.has) > maxDryQueues {
		d.has = map[string]bool{}
	}
	if res.Err == nil && !res.More && len(res.Jobs) < len(claim.Slots) {
		for _, p := range claim.Queues {
			d.has[p.Queue] = true
		}
		return
	}
	for i := range res.Jobs {
		delete(d.has, res.Jobs[i].Queue)
	}
}

func (d *dryQueues) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.has = nil
}

// all reports whether the queues of all groups are dry.
func (d *dryQueues) all(groups []Group) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !slices.ContainsFunc(groups, func(g Group) bool { return !d.has[g.Queue] })
}

// note notes groups, which are admitted after the commit.
func (c *Commit) note(tx Tx, groups []Group) {
	noteGroups(tx, groups)
	c.groups = distinctGroups(append(c.groups, groups...))
}

// Admit implements backends.Admitter. Commits noted the groups. It waits for no stripe that another transaction kept locked a short time
// ago: possibly it is free again, because that was a slow commit, perhaps of this sidecar.
func (s *Store) Admit(ctx context.Context, groups []Group) (queues []string) {
	free, held := s.heldStripes.split(distinctGroups(groups), s.LocalTime())
	queues, err := s.admitAll(ctx, slices.Collect(slices.Chunk(free, admitGroups)), slices.Collect(slices.Chunk(held, admitGroups)))
	if err != nil {
		s.log.Debug("jobs of groups are admitted later", "event", "admission_delayed", "address", s.address, "error", err)
	}
	return queues
}

// admitAll carries out an admission for each part of waiting, which waits for locked stripes, and then for each part of trying, which does not. If another
// transaction keeps a stripe locked, or the database refuses a row, the other groups of the part are tried apart.
func (s *Store) admitAll(ctx context.Context, waiting, trying [][]Group) (queues []string, _ error) {
	var errs []error
	waits := 0
	var try func(some []Group, wait bool) (stop bool)
	try = func(some []Group, wait bool) bool {
		made, again, err := s.admit(ctx, some, wait)
		queues = append(queues, made...)
		locked := isLockedError(err)
		switch {
		case err == nil:
			s.heldStripes.free(without(some, again))
			s.notes.remove(without(some, again))
			return wait && len(again) > 0 && try(again, wait)
		case locked && len(stripesOf(some)) == 1:
			if wait {
				s.heldStripes.hold(some, s.LocalTime())
			}
			waits++
			return waits >= admitWaits // the notes of the others stay
		case IsOutage(ctx, err) || !locked && len(some) == 1:
			errs = append(errs, err)
			return IsOutage(ctx, err)
		}
		if locked {
			waits++
		}
		first, second := halves(some)
		return waits >= admitWaits || try(first, wait) || try(second, wait)
	}
	for i, part := range slices.Concat(waiting, trying) {
		if try(part, i < len(waiting)) {
			break
		}
	}
	return distinctNames(queues), errors.Join(errs...)
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

// halves splits groups of several stripes by their stripes, and those of one stripe by their names.
func halves(groups []Group) (first, second []Group) {
	stripes := stripesOf(groups)
	if len(stripes) == 1 {
		return groups[:len(groups)/2], groups[len(groups)/2:]
	}
	middle := stripes[len(stripes)/2]
	for _, g := range groups {
		if compareStripes(stripeOf(g), middle) < 0 {
			first = append(first, g)
		} else {
			second = append(second, g)
		}
	}
	return first, second
}

// byStripe returns the groups of each stripe.
func byStripe(groups []Group) (parts [][]Group) {
	for len(groups) > 0 {
		first := stripeOf(groups[0])
		others := func(g Group) bool { return stripeOf(g) != first }
		parts = append(parts, slices.DeleteFunc(slices.Clone(groups), others))
		groups = slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return !others(g) })
	}
	return parts
}

// heldStripes are the stripes that other transactions keep locked for long.
type heldStripes struct {
	mu    sync.Mutex
	until map[stripe]time.Time
}

// heldStripe is for how long only maintenance waits for a stripe. Maintenance does that each second while there is something to admit.
const heldStripe = 5 * time.Second

// hold notes that the stripe of the groups is locked.
func (h *heldStripes) hold(groups []Group, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == nil {
		h.until = map[stripe]time.Time{}
	}
	for s, until := range h.until {
		if now.After(until) {
			delete(h.until, s)
		}
	}
	for _, s := range stripesOf(groups) {
		h.until[s] = now.Add(heldStripe)
	}
}

// free notes that the stripes of the groups are not locked.
func (h *heldStripes) free(groups []Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.until) > 0 {
		for _, s := range stripesOf(groups) {
			delete(h.until, s)
		}
	}
}

// split returns the groups whose stripes are free, as far as it is known, and the others.
func (h *heldStripes) split(groups []Group, now time.Time) (free, held []Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.until) == 0 {
		return groups, nil
	}
	for _, g := range groups {
		if until, is := h.until[stripeOf(g)]; is && !now.After(until) {
			held = append(held, g)
		} else {
			free = append(free, g)
		}
	}
	return free, held
}

// admit carries out one admission of the groups whose stripes are free, or with wait, if there are none, of all. Without wait, it fails if the
// server can't skip locked rows and one is locked. again are the other groups, and those with more to change if it changed some jobs. The commit need not be
// on disk: if a crash undoes it, the notes are there again.
func (s *Store) admit(ctx context.Context, groups []Group, wait bool) (queues []string, again []Group, err error) {
	var backs []giveBack
	err = s.within(ctx, backends.OwnGroups|backends.OwnJobs|backends.OwnQueues, func(ctx context.Context) error {
		return s.Write(ctx, TxOptions{Unsynced: true, Gated: true}, func(ctx context.Context, tx Tx) error {
			queues, backs, again = nil, nil, nil
			keeper, ok := tx.(Grouper)
			if !ok {
				return nil
			}
			how := LockFree
			if wait {
				how = LockSafe
			}
			locked, err := keeper.LockGroups(ctx, groups, how)
			if err == nil && len(locked) == 0 && wait {
				locked, err = keeper.LockGroups(ctx, groups, LockWait)
			}
			if err != nil {
				return err
			}
			if len(locked) == 0 {
				again = groups
				return nil
			}
			changed, more, err := keeper.Admit(ctx, locked, admitJobs, func(queue string, urgency int32, position, returns int64) {
				if queues = append(queues, queue); returns != 0 {
					backs = append(backs, giveBack{queue: queue, urgency: urgency, position: position, returns: returns})
				}
			})
			if err == nil && len(more) > 0 {
				more = distinctGroups(more)
				keeper.NoteGroups(more)
				if changed > 0 { // otherwise other transactions have locked the jobs
					again = more
				}
			}
			again = distinctGroups(append(again, without(groups, locked)...))
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	s.gaveBack(backs)
	if queues = distinctNames(queues); len(queues) > 0 {
		s.driver.MadeReady(queues)
	}
	return queues, again, nil
}

// next returns the next searches.
func (g *groupWalk) next() (searches GroupSearches) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for source, limit := range groupLimits {
		searches[source] = GroupSearch{g.at[source], limit}
	}
	return searches
}

// found moves the walk on. It reports whether more noted or arrived groups can follow.
func (g *groupWalk) found(groups FoundGroups) (more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = [groupSources]Group{}
	for source, limit := range groupLimits {
		if some := groups[source]; len(some) == limit {
			g.at[source] = some[limit-1]
			more = more || GroupSource(source) != AllGroups
		}
	}
	return more
}

// forget begins the walk again.
func (g *groupWalk) forget() { g.found(FoundGroups{}) }

// admitDue does the admissions that maintenance finds.
func (s *Store) admitDue(ctx context.Context, r *backends.MaintenanceResult) error {
	var found FoundGroups
	if err := s.within(ctx, backends.OwnGroups|backends.OwnJobs, func(ctx context.Context) error {
		return s.read(ctx, func(ctx context.Context, reader Reader) (err error) {
			if finder, ok := reader.(GroupFinder); ok {
				found, err = finder.FindGroups(ctx, s.walk.next())
			}
			return err
		})
	}); err != nil {
		return err
	}
	more := s.walk.found(found)
	groups := distinctGroups(slices.Concat(append(found[:], s.notes.all())...))
	free, held := s.heldStripes.split(groups, s.LocalTime())
	queues, err := s.admitAll(ctx, append(slices.Collect(slices.Chunk(free, admitGroups)), byStripe(held)...), nil)
	r.More = r.More || more && (len(queues) > 0 || len(held) == 0)
	for _, q := range queues {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	return err
}
