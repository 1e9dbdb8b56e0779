package backends

import (
	"fmt"
	"math"
	"time"
)

// Limits are what a queue allows over the whole fleet. They are in the database, so that all sidecars agree.
type Limits struct {
	MaxClaimed int64 // the cap: how many jobs can be claimed at a time; 0: no cap
	Rate       Rate  // how many jobs can start in a time
	Burst      int64 // how many jobs can start at once after a pause; 0: what the rate allows in a second, at least 1

	GroupLimit     int64          // how many jobs of a group can be claimed at a time; 0: 1, or any number with GroupReady
	GroupOnFailure GroupOnFailure // what a failed job does during its back-off
	GroupReady     int64          // how many jobs of a group can be ready at a time, besides the claimed ones; 0: any number
}

// GroupSlots returns how many jobs of a group can have slots at a time.
func (l Limits) GroupSlots() int64 {
	switch {
	case l.GroupLimit > 0:
		return l.GroupLimit
	case l.GroupReady > 0:
		return math.MaxInt32
	}
	return 1
}

// GroupPlaces returns how many jobs of a group can be ready, if so many others have slots.
func (l Limits) GroupPlaces(others int64) int64 {
	n := max(l.GroupSlots()-others, 0)
	if l.GroupReady > 0 {
		n = min(n, l.GroupReady)
	}
	return n
}

// FailedLeaveGroup reports whether failed jobs give up their slots during their back-off: also if there are slots for any number.
func (l Limits) FailedLeaveGroup() bool {
	return l.GroupOnFailure == GroupSkips || l.GroupReady > 0 && l.GroupLimit == 0
}

// GroupOnFailure is what a failed job of a group does during its back-off.
type GroupOnFailure string

// The two kinds.
const (
	GroupHolds GroupOnFailure = ""     // it keeps its slot of the group, so that with a limit of 1 no later job overtakes it
	GroupSkips GroupOnFailure = "skip" // it gives its slot up, and waits for the group again after the back-off
)

// LimitsChange is what a command changes in the limits of a queue.
type LimitsChange struct {
	MaxClaimed *int64 // nil: as before; 0: no cap
	Rate       *Rate  // nil: as before; zero: no rate, and no burst
	Burst      *int64 // nil: as before; 0: the default
	None       bool   // first remove all limits

	GroupLimit     *int64          // nil: as before; 0: the default
	GroupOnFailure *GroupOnFailure // nil: as before
	GroupReady     *int64          // nil: as before; 0: any number
}

// OfGroups reports whether the change concerns groups.
func (l LimitsChange) OfGroups() bool {
	return l.GroupLimit != nil || l.GroupOnFailure != nil || l.GroupReady != nil
}

// Apply returns the limits after the change, or ErrLimits. The caller has checked the numbers.
func (l LimitsChange) Apply(to Limits) (Limits, error) {
	if l.None {
		to = Limits{}
	}
	if l.MaxClaimed != nil {
		to.MaxClaimed = *l.MaxClaimed
	}
	if l.Rate != nil {
		if to.Rate = *l.Rate; to.Rate.Jobs == 0 {
			to.Burst = 0
		}
	}
	if l.Burst != nil {
		to.Burst = *l.Burst
	}
	if l.GroupLimit != nil {
		to.GroupLimit = *l.GroupLimit
	}
	if l.GroupOnFailure != nil {
		to.GroupOnFailure = *l.GroupOnFailure
	}
	if l.GroupReady != nil {
		to.GroupReady = *l.GroupReady
	}
	if to.Burst > 0 && to.Rate.Jobs == 0 {
		return to, fmt.Errorf("%w: burst belongs to a rate, and the queue has none: set rate too", ErrLimits)
	}
	return to, nil
}

// Stored reports whether a queue with these limits has anything to store.
func (l Limits) Stored() bool { return l != Limits{} }

// Some reports whether there is a limit that a claim has to pass.
func (l Limits) Some() bool { return l.MaxClaimed > 0 || l.Rate.Jobs > 0 }

// Rate is a number of jobs in a time: a second, a minute or an hour.
type Rate struct {
	Jobs int64 // 0: no rate
	Per  time.Duration
}

// String returns the rate as in the protocol; empty: none.
func (r Rate) String() string {
	if r.Jobs == 0 {
		return ""
	}
	unit := map[time.Duration]string{time.Second: "s", time.Minute: "m", time.Hour: "h"}[r.Per]
	return fmt.Sprintf("%d/%s", r.Jobs, unit)
}

// step is the time between two starts at the rate. It is rounded up, so that no window exceeds the rate.
func (r Rate) step() time.Duration {
	return (r.Per + time.Duration(r.Jobs) - 1) / time.Duration(r.Jobs)
}

// Starts returns how many jobs can start at once after a pause, by the rate.
func (l Limits) Starts() int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return max(1, int64(time.Second/l.Rate.step()))
}

// Gate is the state of a queue with limits, read after its row was locked. A claim passes it: see Limits.
//
// The rate is a generic cell rate algorithm (GCRA). NextAt is when all earlier starts are paid for. It moves by one step
// with each start, from the present time at the earliest. A job can start while NextAt is less than a burst away.
type Gate struct {
	Limits
	Queue   string
	Claimed int64         // the claimed jobs of the queue, if it has a cap
	Now     time.Duration // the database's clock, since 1970
	NextAt  time.Duration // the same kind of time
}

// clockSlack is by how much the clock of a transaction can be behind one that committed before. Transactions that wait for a
// gate are that old.
const clockSlack = 10 * time.Second

// Next returns NextAt. After the clock was set back, a NextAt in the far future becomes that of a burst that just started.
func (g *Gate) Next() time.Duration {
	if g.Rate.Jobs == 0 {
		return 0
	}
	full := g.Now + time.Duration(g.Limits.Starts())*g.Rate.step()
	if g.NextAt > full+clockSlack {
		return full
	}
	return g.NextAt
}

// Starts returns how many jobs can start now, at most as many as are asked for.
func (g *Gate) Starts(wanted int) int {
	n := int64(wanted)
	if g.MaxClaimed > 0 {
		n = min(n, g.MaxClaimed-g.Claimed)
	}
	if g.Rate.Jobs > 0 {
		step := g.Rate.step()
		n = min(n, int64((g.Now+time.Duration(g.Limits.Starts())*step-max(g.Next(), g.Now))/step))
	}
	return int(max(n, 0))
}

// Advance returns by how much the start of n jobs moves NextAt.
func (g *Gate) Advance(n int) time.Duration {
	if g.Rate.Jobs == 0 {
		return 0
	}
	return time.Duration(n) * g.Rate.step()
}

// Wait returns how long after the start of n more jobs the rate allows the next one.
func (g *Gate) Wait(n int) time.Duration {
	if g.Rate.Jobs == 0 {
		return 0
	}
	next := max(g.Next(), g.Now) + g.Advance(n)
	return max(0, next-g.Now-time.Duration(g.Limits.Starts()-1)*g.Rate.step())
}

// GateResult is what a claim found out about a queue with limits.
type GateResult struct {
	Queue string

	// Missed: the claim did not have Policy.Gated, so it claimed no job of the queue. ClaimResult.More is
	// set then: the same claim with Policy.Gated can get jobs.
	Missed bool

	Removed bool          // the queue has no limits any more
	Closed  bool          // the limits left slots of the claim empty
	Full    bool          // as many jobs are claimed now as the cap allows
	After   time.Duration // if Closed: when the rate allows the next job; 0: when a claimed job of the queue ends
}

// Result returns what a claim found out that had slots for `wanted` jobs and got `got`. `allowed` is how many the gate let it ask for.
func (g *Gate) Result(wanted, allowed, got int) GateResult {
	r := GateResult{Queue: g.Queue, Removed: !g.Some(), Closed: got == allowed && allowed < wanted}
	r.Full = g.MaxClaimed > 0 && g.Claimed+int64(got) >= g.MaxClaimed
	if r.Closed && !r.Full {
		r.After = g.Wait(got)
	}
	return r
}
