package backendtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func groupReady(n int64) backends.LimitsChange { return backends.LimitsChange{GroupReady: &n} }

// claimInTurn claims the jobs one by one.
func (k *kit) claimInTurn(want ...string) (jobs []backends.Job) {
	k.Helper()
	for _, p := range want {
		got := k.claim(1)
		k.wantJobs(got, p)
		jobs = append(jobs, got...)
	}
	return jobs
}

// groupReadyTests hold the limit of ready jobs of a group.
var groupReadyTests = map[string]func(*kit){
	"ALoneGroupUsesAllWorkers": func(k *kit) {
		k.limit(groupReady(2))
		k.enqueueMembers("a1", "a2", "a3", "a4", "a5", "a6", "a7")
		k.wantGroups(2, 5)
		for _, want := range [][]string{{"a1", "a2"}, {"a3", "a4"}, {"a5", "a6"}, {"a7"}, nil} { // no claim ends
			k.wantJobs(k.claim(20), want...)
		}
	},
	"GroupsTakeTurns": func(k *kit) {
		k.limit(groupReady(1))
		k.enqueueMembers("a1", "a2", "a3", "a4", "a5", "a6")
		k.enqueueMembers("b1", "b2", "c1")
		k.enqueuePayloads("none")
		jobs := k.claimInTurn("a1", "b1", "c1", "none", "a2", "b2", "a3", "a4")
		k.enqueueMembers("b3")
		k.claimInTurn("a5", "b3", "a6")
		k.wantNoneReady()
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		k.wantNoneReady()
	},
	"SeveralJobsOfEachGroup": func(k *kit) {
		k.limit(groupReady(2))
		k.enqueueMembers("a1", "a2", "a3", "a4", "b1", "b2", "b3", "c1")
		k.wantGroups(5, 3)
		first := k.claimInTurn("a1", "b1", "c1", "a2", "b2") // the first ones of all groups, then the second ones
		k.claimInTurn("a3", "b3", "a4")
		k.write(backends.Release{Leases: leasesOf(first[:2]...), Uncounted: true})
		k.maintain(backends.Maintenance{})
		k.claimInTurn("a1", "b1")
	},
	"FirstByPriority": func(k *kit) {
		k.limit(groupReady(1))
		k.enqueueMembers("a1", "a2", "b1")
		urgent := member("a9")
		urgent.Priority = 5
		k.enqueue(urgent)
		k.wantGroups(2, 2)
		k.claimInTurn("a9", "b1")
		k.wantNext("a2")
		k.wantNext("a1") // it lost its turn
	},
	"FailedJobsTakeTurnsAgain": func(k *kit) {
		k.limit(groupReady(1))
		k.enqueueMembers("a1", "a2", "a3", "a4")
		k.write(backends.Nack{Leases: leasesOf(k.claimInTurn("a1", "a2")...), Error: "x"})
		k.wantGroups(1, 1)
		k.AdvanceClock(10 * time.Second)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		k.maintain(backends.Maintenance{})
		k.wantGroups(1, 3)
		k.claimInTurn("a3", "a4")
		jobs := slices.Concat(k.claim(1), k.claim(1))
		slices.SortFunc(jobs, func(x, y backends.Job) int { return slices.Compare(x.Payload, y.Payload) })
		k.wantJobs(jobs, "a1", "a2")
	},
	"WithALimitOfClaimedJobs": func(k *kit) {
		k.limit(groupReady(1))
		k.limit(groupLimit(2))
		k.enqueueMembers("a1", "a2", "a3", "a4", "b1")
		jobs := k.claimInTurn("a1", "b1", "a2")
		k.wantNoneReady()
		k.write(backends.Nack{Leases: leasesOf(jobs[0]), Error: "x"}) // it keeps its slot
		k.wantNoneReady()
		k.write(backends.Ack{Leases: leasesOf(jobs[2])})
		k.claimInTurn("a3")
		k.wantNoneReady()
	},
	"ChangesOfTheLimit": func(k *kit) {
		k.limit(groupReady(3))
		k.enqueueMembers("a1", "a2", "a3", "a4", "a5")
		k.wantGroups(3, 2)
		k.limit(groupReady(1))
		k.maintain(backends.Maintenance{})
		k.wantGroups(1, 4)
		k.limit(groupReady(4))
		k.maintain(backends.Maintenance{})
		k.wantGroups(4, 1)
		if s := k.stats(); s.Limits != (backends.Limits{GroupReady: 4}) {
			k.Errorf("the limits are %+v", s.Limits)
		}
		k.limit(groupReady(0)) // then the default limit of claimed jobs counts again
		k.maintain(backends.Maintenance{})
		k.wantGroups(1, 4)
		k.claim(1)
		k.wantNoneReady()
		if s := k.stats(); s.Limits != (backends.Limits{}) {
			k.Errorf("the limits are %+v, want none", s.Limits)
		}
	},
	"AClaimBeforeWhoseAdmissionTheSidecarDied": func(k *kit) {
		k.limit(groupReady(1))
		const groups = 60 // more than two parts of the walk have
		var jobs []backends.NewJob
		for g := range groups {
			for range 2 {
				jobs = append(jobs, backends.NewJob{Queue: "q", Group: fmt.Sprintf("g%d", g), Payload: []byte("g")})
			}
		}
		k.enqueue(jobs...)
		r, err := k.Commit(k.Context(), k.claimBatch(me, groups, 0, policy("q")))
		if err != nil || len(r.Claims[0].Jobs) != groups || len(r.Groups) != groups {
			k.Fatalf("claimed %d jobs and groups %v, %v", len(r.Claims[0].Jobs), r.Groups, err)
		}
		k.maintain(backends.Maintenance{})
		k.wantGroups(groups, 0)
	},
	"InAQueueWithACap": func(k *kit) {
		k.limit(groupReady(1))
		k.limit(capOf(5))
		k.enqueueMembers("a1", "a2", "b1")
		claim := func(want ...string) {
			k.Helper()
			k.wantJobs(k.commit(k.claimBatch(me, 5, 0, gated("q"))).Claims[0].Jobs, want...)
		}
		claim("a1", "b1")
		claim("a2")
	},
	"BesideRefusedRows": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		one := int64(1)
		if _, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Limit, Queue: "bad", Limits: groupReady(one)}); err != nil {
			k.Fatal(err)
		}
		bad, good, next := badJob("bad", 1), badJob("a1", 0), badJob("a2", 0)
		good.Group, next.Group = "a", "a"
		k.enqueue(bad, good, next)
		allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
		for _, want := range []string{"a1", "a2"} {
			k.wantJobs(k.commit(k.claimBatch(me, 1, 0, policy("bad"))).Claims[0].Jobs, want)
		}
		allow()
	},
}
