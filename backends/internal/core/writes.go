package core

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// NewJob is a job to store and the answer about it. A Writer calls one of its methods.
type NewJob struct {
	*backends.NewJob
	answer *backends.Stored
	res    *backends.WriteResult
	state  backends.State // the job's state, or that of the first job with the key; empty: there is no answer yet
	passed bool
	same   []*backends.Stored // answers for later jobs of the batch with the same key

	freed    bool // see Freed
	resolved bool // see Commit.resolve
}

type jobKey struct{ queue, key string }

// Stored records that the job has a row. ready: it can run now, except that a job of a group is blocked.
func (n *NewJob) Stored(id int64, ready bool) {
	*n.answer, n.state = backends.Stored{ID: ID(id)}, backends.StateScheduled
	switch {
	case ready && n.Group != "":
		n.state = backends.StateBlocked
	case ready:
		addQueue(n.res, n.Queue)
		n.state = backends.StateReady
	}
	n.answerSame()
}

// Duplicate records that another job has the key.
func (n *NewJob) Duplicate(id int64, state backends.State) {
	*n.answer, n.state = backends.Stored{ID: ID(id), Duplicate: true, State: state}, state
	n.answerSame()
}

// KeyState returns the key_state of the job's row.
func (n *NewJob) KeyState() string {
	if n.Key != "" && n.KeyUntilStart {
		return "start"
	}
	return ""
}

// KeyMillis returns for how many milliseconds at least the key returns the job.
func (n *NewJob) KeyMillis() int64 {
	if n.KeyUntilStart {
		return 0
	}
	return MS(n.KeyTTL)
}

// answerSame fills in the answers for later jobs with the key.
func (n *NewJob) answerSame() {
	for _, s := range n.same {
		*s = backends.Stored{ID: n.answer.ID, Duplicate: true, State: n.state}
	}
}

// PassedOver records that the job should have a row, but has none.
func (n *NewJob) PassedOver() { n.passed = true }

// check returns an error if the job has no answer.
func (n *NewJob) check() error {
	switch {
	case n.passed, n.answer.ID == "" && n.Key == "":
		return backends.Refused(ErrSilent)
	case n.answer.ID == "":
		return fmt.Errorf("%w: a key was forgotten", ErrAgain)
	}
	return nil
}

// insert queues the jobs of the writes that match, except those of acks whose lease is lost or whose row is locked.
func (c *Commit) insert(tx Tx, which func(w backends.Write) bool) {
	var all []*NewJob
	for i, w := range c.batch.Writes {
		res := &c.res.Writes[i]
		if !which(w) || len(res.Lost) > 0 || res.Err != nil {
			continue
		}
		jobs := JobsOf(w)
		res.Stored = make([]backends.Stored, len(jobs))
		for n := range jobs {
			j := &NewJob{NewJob: &jobs[n], answer: &res.Stored[n], res: res}
			if j.Key != "" {
				key := jobKey{j.Queue, j.Key}
				if first := c.keys[key]; first != nil && j.OnConflict != backends.ConflictKeep {
					c.conflicts = append(c.conflicts, conflict{j, first})
					continue
				} else if first != nil {
					if first.same = append(first.same, j.answer); first.state != "" {
						first.answerSame()
					}
					continue
				}
				if c.keys == nil {
					c.keys = map[jobKey]*NewJob{}
				}
				c.keys[key] = j
			}
			all = append(all, j)
		}
	}
	if len(all) > 0 {
		c.pending = tx.Insert(all) || c.pending
		c.jobs = append(c.jobs, all...)
		groups := distinctGroups(groupsOf(all))
		noteGroups(tx, groups) // before the acks: an engine can check with the COMMIT whether the last statement ended all of them
		c.groups = append(c.groups, groups...)
	}
}

// JobsOf returns the jobs that a write stores.
func JobsOf(w backends.Write) []backends.NewJob {
	switch w := w.(type) {
	case backends.Enqueue:
		return w.Jobs
	case backends.Ack:
		return w.Enqueue
	}
	return nil
}

// hasKeys reports whether a write stores jobs that have keys.
func hasKeys(w backends.Write) bool {
	return slices.ContainsFunc(JobsOf(w), func(j backends.NewJob) bool { return j.Key != "" })
}

// countKeys returns how many jobs with keys the writes store.
func countKeys(writes []backends.Write) (n int) {
	for _, w := range writes {
		for _, j := range JobsOf(w) {
			if j.Key != "" {
				n++
			}
		}
	}
	return n
}

// hasLeases reports whether a write changes claimed jobs.
func hasLeases(w backends.Write) bool { return len(backends.LeasesOf(w)) > 0 }

// queuesOf returns the queues of the claims, each once.
func queuesOf(claims []backends.Claim) (queues []string) {
	seen := map[string]bool{}
	for _, c := range claims {
		for _, p := range c.Queues {
			if !seen[p.Queue] {
				seen[p.Queue] = true
				queues = append(queues, p.Queue)
			}
		}
	}
	return queues
}

// addQueue records that a job of the queue became ready.
func addQueue(r *backends.WriteResult, queue string) {
	if !slices.Contains(r.MadeReady, queue) {
		r.MadeReady = append(r.MadeReady, queue)
	}
}

func compareIDs(a, b int64) int { return cmp.Compare(a, b) }

func sortByID(all []*settle) {
	slices.SortFunc(all, func(a, b *settle) int { return cmp.Compare(a.ID, b.ID) })
}

func leasesIn(all []*settle) []Lease {
	leases := make([]Lease, len(all))
	for i, x := range all {
		leases[i] = x.Lease
	}
	return leases
}

// giveBack is a job that became ready in its old position, and its queue's count of such returns.
type giveBack struct {
	queue    string
	urgency  int32
	position int64
	returns  int64
}

// gaveBack makes the next claims begin where jobs returned to their old positions.
func (s *Store) gaveBack(all []giveBack) {
	if len(all) > 0 {
		s.Cursors.Back(forCursors(all))
	}
}

func forCursors(all []giveBack) []cursor.GiveBack {
	backs := make([]cursor.GiveBack, 0, len(all))
	for _, b := range all {
		backs = append(backs, cursor.GiveBack{Queue: b.queue, Spot: cursor.Spot{Urgency: b.urgency, Position: b.position}, Returns: b.returns})
	}
	return backs
}
