package backendtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testseed"
)

// groupHistoryTests run random histories of jobs of groups: enqueues of two sidecars, late commits of these and of plain INSERTs, keys, delays,
// priorities, claims in both orders and prefetches, failures, returned jobs, lost sidecars and changes of the limits.
var groupHistoryTests = map[string]func(*kit){
	"LimitAndOrder": func(k *kit) { // with the default limit
		runGroupHistories(k, groupHistory{ordered: true})
	},
	"ChangingLimits": func(k *kit) { runGroupHistories(k, groupHistory{}) },
	"Turns":          func(k *kit) { runGroupHistories(k, groupHistory{turns: true}) },
}

func runGroupHistories(k *kit, h groupHistory) {
	rounds := 2
	switch {
	case largeRuns:
		rounds = 100
	case testing.Short():
		rounds = 1
	}
	h.kit, h.random = k, testseed.Rand(k).IntN
	h.handles = []backends.Backend{k.Backend, k.OpenAnother()}
	h.sidecars = []backends.Identity{me, other}
	k.join(k, other)
	h.claimed, h.left, h.queued, h.late = map[string]backends.Job{}, map[string]int{}, map[string][]string{}, map[string]bool{}
	if k.Producer != nil {
		h.producer = k.Producer()
	}
	for range rounds {
		for range 40 {
			h.step()
		}
		h.drain()
	}
}

// groupHistory is a history with what must hold: limit and turns.
type groupHistory struct {
	*kit
	random   func(n int) int
	handles  []backends.Backend
	sidecars []backends.Identity

	ordered bool // the limit is 1, and the jobs of a group have one priority and no delay: they end in their order
	turns   bool // the queue has a limit of ready jobs

	limits  backends.Limits
	number  int                     // of the last job
	claimed map[string]backends.Job // with valid leases, by id
	left    map[string]int          // how many jobs of each group have not ended
	queued  map[string][]string     // their payloads in order, if ordered
	late    map[string]bool         // those that can end before the ones before them, because they were stored before these, and committed after

	producer Producer
	open     map[string]string // the group by the payload of jobs in the producer's open transaction
}

func groupOfPayload(j backends.Job) string {
	if string(j.Payload) == "odd" { // of a plain INSERT
		return "a"
	}
	return string(j.Payload[:1])
}

func (g *groupHistory) newMember(group string) backends.NewJob {
	g.number++
	j := member(fmt.Sprintf("%s%d", group, g.number))
	if g.random(4) == 0 {
		j.Key, j.KeyTTL = fmt.Sprint("k", g.number), time.Minute
	}
	if !g.ordered {
		j.Priority = int16(g.random(6) / 5)
		j.Delay = time.Duration(g.random(5)/4) * time.Second
	}
	g.added(group, string(j.Payload))
	return j
}

func (g *groupHistory) added(group, payload string) {
	g.left[group]++
	g.queued[group] = append(g.queued[group], payload)
}

func (g *groupHistory) anyGroup() string { return []string{"a", "b", "c"}[g.random(3)] }

// commitBy is commit through any handle.
func (g *groupHistory) commitBy(c backends.CommitContent) backends.Results {
	g.Helper()
	b := g.handles[g.random(2)]
	r, err := b.Commit(g.Context(), c)
	if err != nil {
		g.Fatalf("%+v beside an open transaction with the jobs %v: %v", c, g.open, err)
	}
	g.admit(b, r)
	return r
}

func (g *groupHistory) step() {
	g.Helper()
	switch g.random(14) {
	case 0, 1, 2:
		var jobs []backends.NewJob
		for range 1 + g.random(3) {
			jobs = append(jobs, g.newMember(g.anyGroup()))
		}
		if g.random(3) == 0 && g.BeforeCommit != nil && g.Producer != nil { // while this is not committed, another job of the last group is
			if late := member(string(jobs[0].Payload[:1]) + "late"); !g.ordered {
				g.added(late.Group, string(late.Payload))
				g.BeforeCommit(func() {
					r, err := g.handles[1].Commit(g.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{late}}}})
					if err != nil {
						g.Error(err)
					}
					g.admit(g.handles[1], r)
				})
			}
			g.commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}})
			return
		}
		g.commitBy(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}})
	case 3:
		if g.InsertRow != nil {
			if err := g.InsertRow("group_name", "'a'", false); err != nil {
				g.Fatal(err)
			}
			g.added("a", "odd")
		}
	case 4, 5, 6:
		g.claimSome()
	case 7, 8:
		g.settleSome()
	case 9:
		g.AdvanceClock(2 * time.Second)
		g.maintainAlive()
	case 10:
		g.changeLimits()
	case 11:
		if g.random(3) == 0 {
			g.loseSidecar()
		}
	case 12, 13:
		g.produce()
	}
}

// produce begins or ends a transaction of the producer.
func (g *groupHistory) produce() {
	if g.producer.Begin == nil {
		return
	}
	if len(g.open) > 0 {
		g.endOpen(g.random(4) > 0)
		return
	}
	g.open = map[string]string{}
	g.producer.Begin()
	for range 1 + g.random(3) {
		g.number++
		group := g.anyGroup()
		payload := fmt.Sprintf("%s%d", group, g.number)
		g.producer.Insert("q", group, []string{payload}, g.random(4) == 0)
		g.open[payload] = group
	}
}

// endOpen ends the transaction of the producer.
func (g *groupHistory) endOpen(commit bool) {
	if len(g.open) == 0 {
		return
	}
	g.producer.End(commit)
	for payload, group := range g.open {
		if commit {
			g.added(group, payload)
			g.late[payload] = true
		}
	}
	g.open = nil
}

// claimSome claims jobs, and checks that no group has more leases than its limit, or than it had if that was lowered.
func (g *groupHistory) claimSome() {
	g.Helper()
	before := g.leases()
	sidecar := g.sidecars[g.random(2)]
	p := policy("q")
	p.MaxAttempts, p.LIFO = 1000, g.random(4) == 0
	c := g.claimBatch(sidecar, 1+g.random(5), 0, p)
	for i := range c.Claims[0].Slots {
		c.Claims[0].Slots[i].Prefetch = g.random(4) == 0
	}
	for _, j := range g.commitBy(c).Claims[0].Jobs {
		g.claimed[j.ID] = j
	}
	for group, n := range g.leases() {
		if n > before[group] && int64(n) > g.limits.GroupSlots() {
			g.Fatalf("%d jobs of the group %s are claimed, and %d were before; the limits are %+v", n, group, before[group], g.limits)
		}
	}
}

func (g *groupHistory) leases() map[string]int {
	n := map[string]int{}
	for _, j := range g.claimed {
		n[groupOfPayload(j)]++
	}
	return n
}

// settleSome ends claims in one of the ways.
func (g *groupHistory) settleSome() {
	g.Helper()
	var jobs []backends.Job
	for _, j := range g.claimed {
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(x, y backends.Job) int { return slices.Compare([]byte(x.ID), []byte(y.ID)) })
	jobs = slices.DeleteFunc(jobs, func(backends.Job) bool { return g.random(2) == 0 })
	if len(jobs) == 0 {
		return
	}
	var w backends.Write
	switch leases := leasesOf(jobs...); g.random(6) {
	case 0:
		w = backends.Nack{Leases: leases, Error: "x"}
	case 1:
		w = backends.Nack{Leases: leases, HasDelay: true, Error: "x"}
	case 2:
		w = backends.Release{Leases: leases, Uncounted: true}
	default:
		w = backends.Ack{Leases: leases}
	}
	g.settle(w, jobs)
}

func (g *groupHistory) settle(w backends.Write, jobs []backends.Job) {
	g.Helper()
	if r := g.commitBy(backends.CommitContent{Writes: []backends.Write{w}}); len(r.Writes[0].Lost) > 0 {
		g.Fatalf("%T: the leases %v are lost", w, r.Writes[0].Lost)
	}
	for _, j := range jobs {
		delete(g.claimed, j.ID)
		if _, is := w.(backends.Ack); is {
			g.ended(j)
		}
	}
}

// ended checks the order in which jobs of a group end.
func (g *groupHistory) ended(j backends.Job) {
	g.Helper()
	group := groupOfPayload(j)
	i := slices.Index(g.queued[group], string(j.Payload))
	if i < 0 || g.ordered && i > 0 && !g.late[string(j.Payload)] {
		g.Fatalf("job %s of the group %s ends before %v", j.Payload, group, g.queued[group])
	}
	g.queued[group] = slices.Delete(g.queued[group], i, i+1)
	g.left[group]--
}

// maintainAlive maintains while both sidecars live.
func (g *groupHistory) maintainAlive() {
	g.Helper()
	for _, sidecar := range g.sidecars {
		g.heartbeat(g, sidecar, backends.HeartbeatRenew)
	}
	g.maintain(backends.Maintenance{})
	if ready := g.stats().Ready; g.turns && g.limits.GroupReady > 0 && ready > 3*g.limits.GroupReady {
		g.Fatalf("%d jobs are ready; the limits are %+v", ready, g.limits)
	}
}

func (g *groupHistory) changeLimits() {
	g.Helper()
	if g.ordered {
		return
	}
	c := backends.LimitsChange{}
	if n := int64(g.random(4)); g.turns {
		c.GroupReady = &n
		g.limits.GroupReady = n
	} else {
		c.GroupLimit = &n
		g.limits.GroupLimit = n
	}
	if g.random(2) == 0 {
		f := []backends.GroupOnFailure{backends.GroupHolds, backends.GroupSkips}[g.random(2)]
		c.GroupOnFailure = &f
	}
	g.limit(c)
	g.maintain(backends.Maintenance{})
}

// loseSidecar kills a sidecar. Another one takes its part.
func (g *groupHistory) loseSidecar() {
	g.Helper()
	lost := g.sidecars[1]
	g.AdvanceClock(2 * sidecarTimeout)
	for _, p := range g.heartbeat(g, me, backends.HeartbeatRenew).Peers {
		if p.Sidecar == lost {
			g.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Sidecar: lost, Heartbeats: p.Heartbeats}}})
		}
	}
	for id, j := range g.claimed {
		if j.Token.Sidecar == lost {
			delete(g.claimed, id)
		}
	}
	g.sidecars[1]++
	g.join(g, g.sidecars[1])
}

// drain ends all jobs. Each group with jobs has one to claim after two rounds of maintenance.
func (g *groupHistory) drain() {
	g.Helper()
	g.endOpen(true)
	for {
		var jobs []backends.Job
		for _, j := range g.claimed {
			jobs = append(jobs, j)
		}
		if len(jobs) > 0 {
			g.settle(backends.Ack{Leases: leasesOf(jobs...)}, jobs)
		}
		g.AdvanceClock(10 * time.Second) // all delays and back-offs are over
		g.maintainAlive()
		g.maintainAlive()
		p := policy("q")
		p.MaxAttempts = 1000
		got := map[string]bool{}
		for _, j := range g.commitBy(g.claimBatch(me, 50, 0, p)).Claims[0].Jobs {
			g.claimed[j.ID], got[groupOfPayload(j)] = j, true
		}
		all := 0
		for group, n := range g.left {
			if all += n; n > 0 && !got[group] {
				g.Fatalf("the group %s has %d jobs, and none is ready: %+v", group, n, g.stats())
			}
		}
		if all == 0 {
			break
		}
	}
	if s := g.stats(); s.Ready+s.Blocked+s.Claimed+s.Scheduled != 0 {
		g.Fatalf("at the end: %+v", s)
	}
}
