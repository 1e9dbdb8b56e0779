package core

import (
	"cmp"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Member is a job of a group that no worker has.
type Member struct {
	ID, Position int64
	Urgency      int32
	Blocked      bool
}

// CompareMembers is the order in which jobs of a group get slots.
func CompareMembers(a, b Member) int {
	order := cmp.Compare(a.Urgency, b.Urgency)
	if order == 0 && a.Blocked != b.Blocked {
		if order = -1; a.Blocked {
			order = 1
		}
	}
	return cmp.Or(order, cmp.Compare(a.Position, b.Position), cmp.Compare(a.ID, b.ID))
}

// Admission is what Grouper.Admit of an engine has read about a group, if it decides outside of its SQL. It reads without locks: until
// the commit other transactions can only free slots. Then it locks the rows of Candidates, except those that others have locked.
type Admission struct {
	Group
	Limits  backends.Limits
	Claimed int      // how many claimed jobs have slots
	Delayed []Member // the scheduled jobs that have slots
	Members []Member // the ready and the first blocked jobs
	Full    bool     // there can be more blocked jobs than Members
}

// Sort puts the jobs into their order.
func (a *Admission) Sort() {
	slices.SortFunc(a.Members, CompareMembers)
	slices.SortFunc(a.Delayed, CompareMembers)
}

// surplus returns the scheduled jobs beyond the limit, and how many of the members can have slots.
func (a *Admission) surplus() (late []Member, places int) {
	kept := int(min(int64(len(a.Delayed)), max(a.Limits.GroupSlots()-int64(a.Claimed), 0)))
	return a.Delayed[kept:], int(a.Limits.GroupPlaces(int64(a.Claimed + kept)))
}

// Candidates returns the jobs that Decide possibly changes.
func (a *Admission) Candidates() (ids []int64) {
	late, places := a.surplus()
	for _, m := range late {
		ids = append(ids, m.ID)
	}
	for place, m := range a.Members {
		if m.Blocked == (place < places) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// Decide returns the scheduled jobs that lose their slots, the ready jobs to block again and the blocked jobs to admit. has reports whether
// the transaction has locked a job of the group that is in a state. more: there is more to change, or a row was locked.
func (a *Admission) Decide(has func(id int64, state backends.State) bool) (leave, block []int64, admit []Member, more bool) {
	late, places := a.surplus()
	for _, m := range late {
		if has(m.ID, backends.StateScheduled) {
			leave = append(leave, m.ID)
		} else {
			more = true
		}
	}
	free := places
	for place, m := range a.Members {
		switch {
		case m.Blocked:
		case place < places:
			free--
		case has(m.ID, backends.StateReady):
			block = append(block, m.ID)
		default:
			free--
			more = true
		}
	}
	for place, m := range a.Members {
		if !m.Blocked || place >= places || free <= 0 {
			continue
		}
		free-- // also if its row is locked: a later job must not overtake it
		if has(m.ID, backends.StateBlocked) {
			admit = append(admit, m)
		} else {
			more = true
		}
	}
	return leave, block, admit, more || a.Full && free > 0
}

// Ranked are blocked jobs of several groups, by their ranks in their groups.
type Ranked [][]Member

// Add adds the jobs of a group.
func (r *Ranked) Add(admit []Member) {
	for rank, m := range admit {
		if rank == len(*r) {
			*r = append(*r, nil)
		}
		(*r)[rank] = append((*r)[rank], m)
	}
}

// Order returns the first ones of all groups, then the second ones, and so on.
func (r Ranked) Order() []Member { return slices.Concat(r...) }
