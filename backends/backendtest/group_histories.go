package backendtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testseed"
)

// groupHistoryTests run random histories of jobs of groups: enqueues of two sidecars, late commits, plain INSERTs, keys, delays,
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
	h.claimed, h.left, h.queued = map[string]backends.Job{}, map[string]int{}, map[string][]string{}
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
}

func groupOfPayload(j backends.Job) string {
	if string(j.Payload) == "odd" { // of a plain INSERT
		return "a"
	}
	return string(j.Payload[:1])
}

func (h *groupHistory) newMember(group string) backends.NewJob {
	h.number++
	j := member(fmt.Sprintf("%s%d", group, h.number))
	if h.random(4) == 0 {
		j.Key, j.KeyTTL = fmt.Sprint("k", h.number), time.Minute
	}
	if !h.ordered {
		j.Priority = int16(h.random(6) / 5)
		j.Delay = time.Duration(h.random(5)/4) * time.Second
	}
	h.added(group, string(j.Payload))
	return j
}

func (h *groupHistory) added(group, payload string) {
	h.left[group]++
	h.queued[group] = append(h.queued[group], payload)
}

func (h *groupHistory) anyGroup() string { return []string{"a", "b", "c"}[h.random(3)] }

// commitBy is commit through any handle.
func (h *groupHistory) commitBy(c backends.CommitContent) backends.Results {
	h.Helper()
	b := h.handles[h.random(2)]
	r, err := b.Commit(h.Context(), c)
	if err != nil {
		h.Fatal(err)
	}
	h.admit(b, r)
	return r
}

func (h *groupHistory) step() {
	h.Helper()
	switch h.random(12) {
	case 0, 1, 2:
		var jobs []backends.NewJob
		for range 1 + h.random(3) {
			jobs = append(jobs, h.newMember(h.anyGroup()))
		}
		if h.random(3) == 0 && h.BeforeCommit != nil && h.Producer != nil { // while this is not committed, another job of the last group is
			if late := member(string(jobs[0].Payload[:1]) + "late"); !h.ordered {
				h.added(late.Group, string(late.Payload))
				h.BeforeCommit(func() {
					r, err := h.handles[1].Commit(h.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{late}}}})
					if err != nil {
						h.Error(err)
					}
					h.admit(h.handles[1], r)
				})
			}
			h.commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}})
			return
		}
		h.commitBy(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}})
	case 3:
		if h.InsertRow != nil {
			if err := h.InsertRow("group_name", "'a'", false); err != nil {
				h.Fatal(err)
			}
			h.added("a", "odd")
		}
	case 4, 5, 6:
		h.claimSome()
	case 7, 8:
		h.settleSome()
	case 9:
		h.AdvanceClock(2 * time.Second)
		h.maintainAlive()
	case 10:
		h.changeLimits()
	case 11:
		if h.random(3) == 0 {
			h.loseSidecar()
		}
	}
}

// claimSome claims jobs, and checks that no group has more leases than its limit, or than it had if that was lowered.
func (h *groupHistory) claimSome() {
	h.Helper()
	before := h.leases()
	sidecar := h.sidecars[h.random(2)]
	p := policy("q")
	p.MaxAttempts, p.LIFO = 1000, h.random(4) == 0
	c := h.claimBatch(sidecar, 1+h.random(5), 0, p)
	for i := range c.Claims[0].Slots {
		c.Claims[0].Slots[i].Prefetch = h.random(4) == 0
	}
	for _, j := range h.commitBy(c).Claims[0].Jobs {
		h.claimed[j.ID] = j
	}
	for group, n := range h.leases() {
		if n > before[group] && int64(n) > h.limits.GroupSlots() {
			h.Fatalf("%d jobs of the group %s are claimed, and %d were before; the limits are %+v", n, group, before[group], h.limits)
		}
	}
}

func (h *groupHistory) leases() map[string]int {
	n := map[string]int{}
	for _, j := range h.claimed {
		n[groupOfPayload(j)]++
	}
	return n
}

// settleSome ends claims in one of the ways.
func (h *groupHistory) settleSome() {
	h.Helper()
	var jobs []backends.Job
	for _, j := range h.claimed {
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(x, y backends.Job) int { return slices.Compare([]byte(x.ID), []byte(y.ID)) })
	jobs = slices.DeleteFunc(jobs, func(backends.Job) bool { return h.random(2) == 0 })
	if len(jobs) == 0 {
		return
	}
	var w backends.Write
	switch leases := leasesOf(jobs...); h.random(6) {
	case 0:
		w = backends.Nack{Leases: leases, Error: "x"}
	case 1:
		w = backends.Nack{Leases: leases, HasDelay: true, Error: "x"}
	case 2:
		w = backends.Release{Leases: leases, Uncounted: true}
	default:
		w = backends.Ack{Leases: leases}
	}
	h.settle(w, jobs)
}

func (h *groupHistory) settle(w backends.Write, jobs []backends.Job) {
	h.Helper()
	if r := h.commitBy(backends.CommitContent{Writes: []backends.Write{w}}); len(r.Writes[0].Lost) > 0 {
		h.Fatalf("%T: the leases %v are lost", w, r.Writes[0].Lost)
	}
	for _, j := range jobs {
		delete(h.claimed, j.ID)
		if _, is := w.(backends.Ack); is {
			h.ended(j)
		}
	}
}

// ended checks the order in which jobs of a group end.
func (h *groupHistory) ended(j backends.Job) {
	h.Helper()
	group := groupOfPayload(j)
	i := slices.Index(h.queued[group], string(j.Payload))
	if i < 0 || h.ordered && i > 0 {
		h.Fatalf("job %s of the group %s ends before %v", j.Payload, group, h.queued[group])
	}
	h.queued[group] = slices.Delete(h.queued[group], i, i+1)
	h.left[group]--
}

// maintainAlive maintains while both sidecars live.
func (h *groupHistory) maintainAlive() {
	h.Helper()
	for _, sidecar := range h.sidecars {
		h.heartbeat(h, sidecar, backends.HeartbeatRenew)
	}
	h.maintain(backends.Maintenance{})
	if ready := h.stats().Ready; h.turns && h.limits.GroupReady > 0 && ready > 3*h.limits.GroupReady {
		h.Fatalf("%d jobs are ready; the limits are %+v", ready, h.limits)
	}
}

func (h *groupHistory) changeLimits() {
	h.Helper()
	if h.ordered {
		return
	}
	c := backends.LimitsChange{}
	if n := int64(h.random(4)); h.turns {
		c.GroupReady = &n
		h.limits.GroupReady = n
	} else {
		c.GroupLimit = &n
		h.limits.GroupLimit = n
	}
	if h.random(2) == 0 {
		f := []backends.GroupOnFailure{backends.GroupHolds, backends.GroupSkips}[h.random(2)]
		c.GroupOnFailure = &f
	}
	h.limit(c)
	h.maintain(backends.Maintenance{})
}

// loseSidecar kills a sidecar. Another one takes its part.
func (h *groupHistory) loseSidecar() {
	h.Helper()
	lost := h.sidecars[1]
	h.AdvanceClock(2 * sidecarTimeout)
	for _, p := range h.heartbeat(h, me, backends.HeartbeatRenew).Peers {
		if p.Sidecar == lost {
			h.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Sidecar: lost, Heartbeats: p.Heartbeats}}})
		}
	}
	for id, j := range h.claimed {
		if j.Token.Sidecar == lost {
			delete(h.claimed, id)
		}
	}
	h.sidecars[1]++
	h.join(h, h.sidecars[1])
}

// drain ends all jobs. Each group with jobs has one to claim after two rounds of maintenance.
func (h *groupHistory) drain() {
	h.Helper()
	for {
		var jobs []backends.Job
		for _, j := range h.claimed {
			jobs = append(jobs, j)
		}
		if len(jobs) > 0 {
			h.settle(backends.Ack{Leases: leasesOf(jobs...)}, jobs)
		}
		h.AdvanceClock(10 * time.Second) // all delays and back-offs are over
		h.maintainAlive()
		h.maintainAlive()
		p := policy("q")
		p.MaxAttempts = 1000
		got := map[string]bool{}
		for _, j := range h.commitBy(h.claimBatch(me, 50, 0, p)).Claims[0].Jobs {
			h.claimed[j.ID], got[groupOfPayload(j)] = j, true
		}
		all := 0
		for group, n := range h.left {
			if all += n; n > 0 && !got[group] {
				h.Fatalf("the group %s has %d jobs, and none is ready: %+v", group, n, h.stats())
			}
		}
		if all == 0 {
			break
		}
	}
	if s := h.stats(); s.Ready+s.Blocked+s.Claimed+s.Scheduled != 0 {
		h.Fatalf("at the end: %+v", s)
	}
}
