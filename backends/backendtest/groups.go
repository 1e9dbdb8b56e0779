package backendtest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func groupLimit(n int64) backends.LimitsChange { return backends.LimitsChange{GroupLimit: &n} }

func groupOnFailure(f backends.GroupOnFailure) backends.LimitsChange {
	return backends.LimitsChange{GroupOnFailure: &f}
}

// hasGroups reports whether jobs of the engine can have groups.
func (k *kit) hasGroups() bool {
	k.Helper()
	u, ok := errors.AsType[*backends.UnsupportedError](k.tryLimit(groupLimit(0)))
	return !ok || !u.NoGroups && !u.NoLimits
}

// member is a job of a group in queue "q". The payload begins with the group's name.
func member(payload string) backends.NewJob {
	return backends.NewJob{Queue: "q", Payload: []byte(payload), Group: payload[:1]}
}

// enqueueMembers stores jobs of groups.
func (k *kit) enqueueMembers(payloads ...string) []string {
	k.Helper()
	jobs := make([]backends.NewJob, len(payloads))
	for i, p := range payloads {
		jobs[i] = member(p)
	}
	return k.enqueue(jobs...)
}

// wantNext claims many jobs and checks their payloads, in any order.
func (k *kit) wantNext(want ...string) []backends.Job {
	k.Helper()
	jobs := k.claim(20)
	slices.SortFunc(jobs, func(a, b backends.Job) int { return cmp.Compare(string(a.Payload), string(b.Payload)) })
	k.wantJobs(jobs, want...)
	return jobs
}

// endNext claims the only ready job and ends its claim by a write.
func (k *kit) endNext(want string, w func(l []backends.Lease) backends.Write) {
	k.Helper()
	k.write(w(leasesOf(k.wantNext(want)...)))
}

// operateOnGroups carries out a command. Whether it made jobs ready depends on when the engine admits them.
func (k *kit) operateOnGroups(c backends.Command, count int64) {
	k.Helper()
	if n, _, err := k.inspector().Command(k.Context(), c); err != nil || n != count {
		k.Fatalf("%+v: changed %d, %v; want %d", c, n, err, count)
	}
}

// commandAtOnce is operateOnGroups of a command that names jobs. The engine admits jobs right after it. It checks which jobs were left.
func (k *kit) commandAtOnce(c backends.Command, count int64, left ...backends.JobState) {
	k.Helper()
	var got []backends.JobState
	c.Unchanged = func(jobs []backends.JobState) { got = append(got, jobs...) }
	if k.operateOnGroups(c, count); !slices.Equal(got, left) {
		k.Fatalf("command %d of %v left %+v, want %+v", c.Kind, c.IDs, got, left)
	}
}

func acked(l []backends.Lease) backends.Write { return backends.Ack{Leases: l} }

func nacked(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Error: "x"} }

var groupTests = map[string]func(*kit){
	"OneAtATimeInOrder": func(k *kit) {
		ids := k.enqueueMembers("a1", "a2", "b1", "a3", "b2")
		k.enqueuePayloads("none")
		for i, want := range []backends.State{backends.StateReady, backends.StateBlocked, backends.StateReady, backends.StateBlocked, backends.StateBlocked} {
			k.wantState(ids[i], want)
		}
		jobs := k.wantNext("a1", "b1", "none")
		k.wantNoneReady()
		k.write(backends.Ack{Leases: leasesOf(jobs[0])})
		k.endNext("a2", acked)
		k.write(backends.Ack{Leases: leasesOf(jobs[1:]...)})
		k.wantNext("a3", "b2")
	},
	"Slots": func(k *kit) {
		slots := func(group string, limit int) (got []backends.JobState) {
			k.Helper()
			a, ok := k.Backend.(backends.Admitter)
			if !ok {
				k.Fatalf("%T isn't an Admitter", k.Backend)
			}
			got, err := a.GroupSlots(k.Context(), backends.Group{Queue: "q", Name: group}, limit)
			if err != nil {
				k.Fatal(err)
			}
			return got
		}
		want := func(group string, want ...backends.JobState) {
			k.Helper()
			got, byID := slots(group, 10), func(x, y backends.JobState) int { return cmp.Compare(x.ID, y.ID) }
			slices.SortFunc(got, byID)
			slices.SortFunc(want, byID)
			if !slices.Equal(got, want) {
				k.Errorf("the slots of %s: %+v, want %+v", group, got, want)
			}
		}
		k.limit(groupLimit(2))
		ids := k.enqueueMembers("a1", "a2", "a3", "b1")
		want("a", backends.JobState{ID: ids[0], State: backends.StateReady}, backends.JobState{ID: ids[1], State: backends.StateReady})
		want("b", backends.JobState{ID: ids[3], State: backends.StateReady})
		want("c")
		if got := slots("a", 1); len(got) != 1 {
			k.Errorf("one slot at most: %+v", got)
		}
		jobs := k.wantNext("a1", "a2", "b1")
		k.write(backends.Ack{Leases: leasesOf(jobs[0])})
		k.write(backends.Nack{Leases: leasesOf(jobs[1]), Delay: time.Hour, Error: "x"})
		want("a", backends.JobState{ID: ids[1], State: backends.StateScheduled}, backends.JobState{ID: ids[2], State: backends.StateReady})
	},
	"OrderOfOneCommit": func(k *kit) {
		first, second, third := member("a1"), member("a2"), member("a3")
		second.Key, second.KeyTTL = "k", time.Hour
		k.enqueue(first, second, third)
		k.endNext("a1", acked)
		k.endNext("a2", acked)
		k.endNext("a3", acked)
	},
	"AcksBesideNewMembers": func(k *kit) { // in one commit, as of several sessions
		k.enqueueMembers("a1", "b1", "b2")
		k.enqueuePayloads("none")
		jobs := k.wantNext("a1", "b1", "none")
		r := k.commit(backends.CommitContent{Writes: []backends.Write{
			acked(leasesOf(jobs[0])), backends.Enqueue{Jobs: []backends.NewJob{member("a2")}}, acked(leasesOf(jobs[1:]...)),
		}})
		if s := k.stats(); s.Claimed != 0 || len(r.Writes[0].Lost)+len(r.Writes[2].Lost) > 0 {
			k.Fatalf("after the acks, the statistics are %+v", s)
		}
		k.wantNext("a2", "b2")
	},
	"LimitOfTheQueue": func(k *kit) {
		k.limit(groupLimit(2))
		k.enqueueMembers("a1", "a2", "a3", "a4", "a5")
		jobs := k.wantNext("a1", "a2")
		k.limit(groupLimit(3))
		k.maintain(backends.Maintenance{})
		jobs = append(jobs, k.wantNext("a3")...)
		k.limit(groupLimit(1))
		k.write(backends.Ack{Leases: leasesOf(jobs[:2]...)})
		k.wantNoneReady()
		k.write(backends.Ack{Leases: leasesOf(jobs[2])})
		k.wantNext("a4")
		if s := k.stats(); s.Limits.GroupLimit != 1 || s.Blocked != 1 {
			k.Errorf("the statistics are %+v", s)
		}
	},
	"LoweredLimitBlocksJobsAgain": func(k *kit) {
		k.limit(groupLimit(3))
		ids := k.enqueueMembers("a1", "a2", "a3", "a4")
		k.limit(groupLimit(1))
		k.maintain(backends.Maintenance{})
		for i, want := range []backends.State{backends.StateReady, backends.StateBlocked, backends.StateBlocked, backends.StateBlocked} {
			k.wantState(ids[i], want)
		}
		for _, want := range []string{"a1", "a2", "a3", "a4"} {
			k.endNext(want, acked)
		}
	},
	"GroupsOfOtherQueues": func(k *kit) {
		k.enqueueMembers("a1")
		k.enqueue(backends.NewJob{Queue: "p", Group: "a", Payload: []byte("p1")})
		jobs := k.commit(k.claimBatch(me, 9, 0, policy("q"), policy("p"))).Claims[0].Jobs
		k.wantJobs(jobs, "a1", "p1")
	},
	"FIFOInALIFOQueue": func(k *kit) {
		k.enqueueMembers("a1", "a2", "a3")
		p := policy("q")
		p.LIFO = true
		for _, want := range []string{"a1", "a2", "a3"} {
			jobs := k.commit(k.claimBatch(me, 5, 0, p)).Claims[0].Jobs
			k.wantJobs(jobs, want)
			k.write(backends.Ack{Leases: leasesOf(jobs...)})
		}
	},
	"AnUrgentJobTakesThePlaceOfAReadyOne": func(k *kit) {
		ids := k.enqueueMembers("a1", "a2")
		urgent := member("a9")
		urgent.Priority = 5
		k.enqueue(urgent)
		k.wantState(ids[0], backends.StateBlocked)
		jobs := k.wantNext("a9")
		urgent.Payload = []byte("a8")
		k.enqueue(urgent)
		k.wantNoneReady()
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		for _, want := range []string{"a8", "a1", "a2"} {
			k.endNext(want, acked)
		}
	},
	"ADelayedJobHoldsNothing": func(k *kit) {
		late, soon := member("a1"), member("a2")
		late.Delay, soon.Delay = 2*time.Hour, time.Hour
		k.enqueue(late, soon)
		k.enqueueMembers("a3")
		k.endNext("a3", acked)
		k.AdvanceClock(3 * time.Hour)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		k.maintain(backends.Maintenance{})
		k.endNext("a2", acked)
		k.endNext("a1", acked)
	},
	"AFailedJobKeepsItsSlot": func(k *kit) {
		ids := k.enqueueMembers("a1", "a2")
		k.endNext("a1", func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Error: "x"} })
		k.wantState(ids[0], backends.StateScheduled)
		k.maintain(backends.Maintenance{})
		k.wantNoneReady()
		k.AdvanceClock(2 * time.Second)
		k.maintain(backends.Maintenance{})
		k.endNext("a1", acked)
		k.wantNext("a2")
	},
	"AFailedJobGivesItsSlotUp": func(k *kit) {
		k.limit(groupOnFailure(backends.GroupSkips))
		k.enqueueMembers("a1", "a2", "a3")
		k.endNext("a1", func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Error: "x"} })
		jobs := k.wantNext("a2")
		k.AdvanceClock(2 * time.Second)
		k.maintain(backends.Maintenance{})
		k.wantNoneReady()
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		k.endNext("a3", acked)
		k.endNext("a1", acked)
		k.limit(groupOnFailure(backends.GroupHolds))
		if s := k.stats(); s.Limits != (backends.Limits{}) {
			k.Errorf("the limits are %+v, want none", s.Limits)
		}
	},
	"ADeadJobFreesItsSlotAndGoesToTheEnd": func(k *kit) {
		ids := k.enqueueMembers("a1", "a2")
		k.endNext("a1", func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Error: "x", Dead: true} })
		jobs := k.wantNext("a2")
		k.operateOnGroups(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids[:1]}, 1)
		k.maintain(backends.Maintenance{})
		k.wantState(ids[0], backends.StateBlocked)
		k.enqueueMembers("a3")
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		k.endNext("a1", acked)
		k.endNext("a3", acked)
	},
	"ReturnedJobsKeepTheirSlots": func(k *kit) {
		k.enqueueMembers("a1", "a2")
		for _, end := range []func(l []backends.Lease) backends.Write{
			func(l []backends.Lease) backends.Write { return backends.Release{Leases: l, Uncounted: true} },
			func(l []backends.Lease) backends.Write {
				return backends.Release{Leases: l, Cause: backends.CauseDisconnected}
			},
			func(l []backends.Lease) backends.Write {
				return backends.Nack{Leases: l, HasDelay: true, Error: "again"}
			},
			func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, HasDelay: true, Snooze: true} },
		} {
			k.endNext("a1", end)
			k.maintain(backends.Maintenance{})
		}
		jobs := k.wantNext("a1")
		k.operateOnGroups(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: []string{jobs[0].ID}}, 1)
		k.maintain(backends.Maintenance{})
		k.endNext("a1", acked)
		k.wantNext("a2")
	},
	"JobsOfADeadSidecarKeepTheirSlots": func(k *kit) {
		k.enqueueMembers("a1", "a2")
		k.join(k, other)
		k.wantJobs(k.commit(k.claimBatch(other, 5, 0, policy("q"))).Claims[0].Jobs, "a1")
		k.AdvanceClock(2 * sidecarTimeout)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		k.maintain(backends.Maintenance{})
		k.wantNoneReady()
		for _, p := range k.heartbeat(k, me, backends.HeartbeatRenew).Peers {
			if p.Sidecar == other {
				k.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Sidecar: other, Heartbeats: p.Heartbeats}}})
			}
		}
		k.maintain(backends.Maintenance{})
		k.endNext("a1", acked)
		k.wantNext("a2")
	},
	"ATimedLeaseThatEnds": func(k *kit) {
		k.enqueueMembers("a1", "a2")
		k.wantJobs(k.commit(k.claimBatch(me, 5, time.Minute, policy("q"))).Claims[0].Jobs, "a1")
		k.AdvanceClock(2 * time.Minute)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		k.maintain(backends.Maintenance{})
		k.endNext("a1", acked)
		k.wantNext("a2")
	},
	"KeptAndKeyedJobs": func(k *kit) {
		first := member("a1")
		first.Key, first.KeyTTL = "k", time.Hour
		stored := k.write(backends.Enqueue{Jobs: []backends.NewJob{first, first}}).Stored
		if !stored[1].Duplicate || stored[1].State != backends.StateBlocked {
			k.Errorf("the duplicate in one commit is %+v", stored[1])
		}
		k.enqueueMembers("a2")
		second := member("a3")
		second.Key, second.KeyTTL = "l", time.Hour
		k.enqueue(second)
		if d := k.write(backends.Enqueue{Jobs: []backends.NewJob{second}}).Stored[0]; !d.Duplicate || d.State != backends.StateBlocked {
			k.Errorf("the duplicate of a blocked job is %+v", d)
		}
		p := policy("q")
		p.RetainDone = time.Hour
		for _, want := range []string{"a1", "a2", "a3"} {
			jobs := k.commit(k.claimBatch(me, 5, 0, p)).Claims[0].Jobs
			k.wantJobs(jobs, want)
			k.write(backends.Ack{Leases: leasesOf(jobs...)})
			if v := k.view(jobs[0].ID); v.State != backends.StateDone || v.Group != "a" {
				k.Errorf("the job is %+v", v)
			}
		}
	},
	"DeletedJobsFreeTheirSlots": func(k *kit) {
		ids := k.enqueueMembers("a1", "a2", "a3", "a4")
		k.operateOnGroups(backends.Command{Kind: backends.Delete, Queue: "q", IDs: ids[:2]}, 2)
		k.maintain(backends.Maintenance{})
		k.wantState(ids[2], backends.StateReady)
		k.operateOnGroups(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, 1)
		k.maintain(backends.Maintenance{})
		k.wantNext("a4")
	},
	"ATooLargeJobFreesItsSlot": func(k *kit) {
		large := member("a1")
		large.Payload = append(large.Payload, make([]byte, 2<<20)...)
		k.enqueue(large)
		k.enqueueMembers("a2")
		k.wantNoneReady()
		k.maintain(backends.Maintenance{})
		k.wantNext("a2")
	},
	"ChangedJobsWaitAgain": func(k *kit) {
		ids := k.enqueueMembers("a1", "a2", "a3")
		priority := int16(7)
		k.operateOnGroups(backends.Command{Kind: backends.Change, Queue: "q", IDs: ids[2:], Priority: &priority}, 1)
		k.maintain(backends.Maintenance{})
		k.wantState(ids[0], backends.StateBlocked)
		k.endNext("a3", acked)
		delay := time.Hour
		k.operateOnGroups(backends.Command{Kind: backends.Change, Queue: "q", IDs: ids[:1], Delay: &delay}, 1)
		k.maintain(backends.Maintenance{})
		k.endNext("a2", acked)
		k.wantNoneReady()
		k.AdvanceClock(2 * time.Hour)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		k.maintain(backends.Maintenance{})
		k.wantNext("a1")
	},
	"CancelledJobsFreeTheirSlotsAtOnce": func(k *kit) {
		for _, remove := range []bool{false, true} {
			second := member("a2")
			second.Key, second.KeyTTL = fmt.Sprint("k", remove), time.Hour
			ids := k.enqueue(member("a1"), second, member("a3"), member("a4"), member("a5"))
			cancel := func(id string) {
				k.Helper()
				c := cancelOf(id)
				c.Remove = remove
				if k.commandAtOnce(c, 1); remove {
					k.wantState(id, backends.StateDeleted)
				} else if v := k.view(id); v == nil || v.State != backends.StateDead || v.Failures[len(v.Failures)-1].Cause != backends.CauseCancelled {
					k.Fatalf("job %s: %+v, want it cancelled", id, v)
				}
			}
			cancel(k.views(backends.Peek{Queue: "q", Key: second.Key, Max: 1})[0].ID) // blocked
			k.wantState(ids[0], backends.StateReady)
			cancel(ids[0]) // ready
			lost := k.wantNext("a3")
			cancel(ids[2]) // claimed
			k.endNext("a4", nacked)
			k.writeLosing(backends.Ack{Leases: leasesOf(lost...)}, 1)
			k.wantNoneReady()
			cancel(ids[3]) // in its back-off
			k.endNext("a5", acked)
		}
	},
	"RetriedCancelledJobsWaitForTheirGroup": func(k *kit) {
		ids := k.enqueueMembers("a1", "a2", "a3", "a4")
		k.wantNext("a1")
		k.commandAtOnce(cancelOf(ids[:3]...), 3)
		jobs := k.wantNext("a4")
		k.commandAtOnce(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids[:1]}, 1)
		k.wantState(ids[0], backends.StateBlocked)
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		k.commandAtOnce(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids[1:3]}, 2)
		for range 3 {
			k.write(backends.Ack{Leases: leasesOf(k.claimOne())})
		}
		k.wantNoneReady()
	},
	"CommandsNameBlockedJobs": func(k *kit) {
		ids := k.enqueueMembers("a1", "a2", "a3")
		ready, blocked := stateOf(ids[0], backends.StateReady), []backends.JobState{stateOf(ids[1], backends.StateBlocked), stateOf(ids[2], backends.StateBlocked)}
		k.commandAtOnce(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids}, 0, ready, blocked[0], blocked[1])
		k.commandAtOnce(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids[1:]}, 0, blocked...)
		priority := int16(1)
		k.commandAtOnce(backends.Command{Kind: backends.Change, Queue: "q", IDs: ids[1:2], Priority: &priority}, 1)
		k.wantState(ids[0], backends.StateBlocked)
		k.commandAtOnce(backends.Command{Kind: backends.Delete, Queue: "q", IDs: ids[2:]}, 1)
		k.endNext("a2", acked)
		k.endNext("a1", acked)
	},
	"CommandsForSeveralJobsOfAGroup": func(k *kit) {
		k.limit(groupLimit(2))
		ids := k.enqueueMembers("a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9")
		k.wantNext("a1", "a2")
		k.commandAtOnce(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids[:2]}, 2)
		jobs := k.wantNext("a1", "a2")
		k.commandAtOnce(cancelOf(ids[0], ids[2], ids[3]), 3) // one is claimed, two are blocked
		jobs = append(jobs[1:], k.wantNext("a5")...)
		priority := int16(5)
		k.commandAtOnce(backends.Command{Kind: backends.Change, Queue: "q", IDs: ids[6:8], Priority: &priority}, 2)
		k.commandAtOnce(backends.Command{Kind: backends.Delete, Queue: "q", IDs: ids[5:6]}, 1)
		k.wantNoneReady()
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		k.commandAtOnce(backends.Command{Kind: backends.Delete, Queue: "q", IDs: ids[6:8]}, 2) // both have slots
		k.endNext("a9", nacked)
		ids = k.enqueueMembers("b1", "b2", "b3", "b4")
		k.write(backends.Nack{Leases: leasesOf(k.wantNext("b1", "b2")...), Error: "x"})
		k.operateOnGroups(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateScheduled}, 3) // in their back-off
		k.maintain(backends.Maintenance{})
		k.write(backends.Nack{Leases: leasesOf(k.wantNext("b3", "b4")...), Error: "x", Dead: true})
		k.enqueueMembers("b5")
		k.wantNext("b5")
		k.commandAtOnce(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids[2:]}, 2)
		k.write(backends.Ack{Leases: leasesOf(k.claimOne())})
		k.write(backends.Ack{Leases: leasesOf(k.claimOne())})
		k.wantNoneReady()
	},
	"APlainINSERT": func(k *kit) {
		if k.InsertRow == nil {
			return
		}
		for range 3 {
			if err := k.InsertRow("group_name", "'a'", false); err != nil {
				k.Fatal(err)
			}
		}
		if s := k.stats(); s.Blocked != 3 {
			k.Errorf("the statistics are %+v, want three blocked jobs", s)
		}
		k.wantNoneReady()
		for range 3 {
			k.maintain(backends.Maintenance{})
			k.endNext("odd", acked)
		}
		for _, bad := range []string{"''", fmt.Sprintf("'%0256d'", 0)} {
			if err := k.InsertRow("group_name", bad, false); err == nil {
				k.Errorf("the group %s is stored", bad)
			}
		}
	},
	"AnotherSidecarAdmits": func(k *kit) {
		second := k.OpenAnother()
		k.join(second, other)
		k.enqueueMembers("a1", "a2", "a3")
		b := []backends.Backend{k.Backend, second}
		for i, want := range []string{"a1", "a2", "a3"} {
			r, err := b[(i+1)%2].Commit(k.Context(), k.claimBatch(me, 5, 0, policy("q")))
			if err != nil {
				k.Fatal(err)
			}
			k.wantJobs(r.Claims[0].Jobs, want)
			if r, err = b[i%2].Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{acked(leasesOf(r.Claims[0].Jobs...))}}); err != nil {
				k.Fatal(err)
			}
			k.admit(b[i%2], r)
		}
	},
	"AdmittedQueuesAreReported": func(k *kit) {
		commit := func(w backends.Write) (r backends.Results) {
			r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{w}})
			if err != nil {
				k.Fatal(err)
			}
			return r
		}
		r := commit(backends.Enqueue{Jobs: []backends.NewJob{member("a1"), member("a2")}})
		if made, ready := r.Writes[0].MadeReady, k.admit(k.Backend, r); len(made) != 0 || !slices.Equal(ready, []string{"q"}) {
			k.Errorf("after the enqueue: %v and %v", made, ready)
		}
		r = commit(acked(leasesOf(k.wantNext("a1")...)))
		if ready := slices.Concat(r.Writes[0].MadeReady, k.admit(k.Backend, r)); !slices.Equal(ready, []string{"q"}) {
			k.Errorf("after the ack: %v", ready)
		}
		r = commit(acked(leasesOf(k.wantNext("a2")...)))
		if ready := slices.Concat(r.Writes[0].MadeReady, k.admit(k.Backend, r)); len(ready) != 0 {
			k.Errorf("after the last ack: %v", ready)
		}
	},
	"OneCommitForEachJob": func(k *kit) {
		k.enqueueMembers("a1", "a2", "a3", "a4", "a5")
		jobs := k.claim(5)
		k.wantJobs(jobs, "a1")
		for i := 2; i <= 5; i++ { // an engine can learn from the first ones that acks admit jobs
			b := k.claimBatch(me, 5, 0, policy("q"))
			b.Writes = []backends.Write{backends.Ack{Leases: leasesOf(jobs...)}}
			r, err := k.Commit(k.Context(), b)
			if err != nil || len(r.Writes[0].Lost) > 0 {
				k.Fatalf("%+v, %v", r.Writes, err)
			}
			jobs = r.Claims[0].Jobs
			if k.AdmitsInCommits && i > 3 && (len(r.Groups) > 0 || len(r.Writes[0].MadeReady) > 0) {
				k.Errorf("after job %d: groups %v wait for admissions, %v are ready", i, r.Groups, r.Writes[0].MadeReady)
			}
			if k.admit(k.Backend, r); len(jobs) == 0 && (!k.AdmitsInCommits || i <= 3) {
				jobs = k.claim(5)
			}
			k.wantJobs(jobs, fmt.Sprint("a", i))
		}
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		k.wantGroups(0, 0)
	},
	"ClaimsBesideAnAdmissionHideNoReadyJob": func(k *kit) {
		k.enqueueMembers("a1", "a2")
		jobs := k.claim(5)
		k.wantJobs(jobs, "a1")
		k.enqueuePayloads("none")
		b := k.claimBatch(me, 1, 0, policy("q"))
		b.Writes = []backends.Write{backends.Ack{Leases: leasesOf(jobs...)}}
		r, err := k.Commit(k.Context(), b)
		if err != nil || len(r.Claims[0].Jobs) != 1 {
			k.Fatalf("%+v, %v", r, err)
		}
		if string(r.Claims[0].Jobs[0].Payload) == "none" { // not the admitted one
			if ready := slices.Concat(r.Writes[0].MadeReady, k.admit(k.Backend, r)); !slices.Contains(ready, "q") {
				k.Errorf("a job is ready, and %v are reported", ready)
			}
		}
	},
	"ARefusedNextJobDoesNotHurtTheAck": func(k *kit) {
		if k.RefuseChanges == nil {
			return
		}
		first, refused := badJob("a1", 0), badJob("a2", 1)
		first.Group, refused.Group = "a", "a"
		k.enqueue(first)
		jobs := k.commit(k.claimBatch(me, 5, 0, policy("bad"))).Claims[0].Jobs
		k.wantJobs(jobs, "a1")
		k.enqueue(refused)
		allow := k.RefuseChanges(Refusal{Queue: "bad", Priority: 1, Reason: refusal})
		if r := k.write(backends.Ack{Leases: leasesOf(jobs...)}); r.Err != nil || len(r.Lost) > 0 {
			k.Errorf("the ack got %+v", r)
		}
		allow()
		k.maintain(backends.Maintenance{})
		k.wantJobs(k.commit(k.claimBatch(me, 5, 0, policy("bad"))).Claims[0].Jobs, "a2")
	},
	"BlockedJobsAreShown": func(k *kit) {
		ids := k.enqueueMembers("b1", "b2", "a1", "a2", "a3")
		want := []string{ids[3], ids[4], ids[1]}
		for i := range want {
			var got []string
			after := ""
			if i > 0 {
				after = want[i-1]
			}
			for _, v := range k.views(backends.Peek{Queue: "q", State: backends.StateBlocked, Max: 9, After: after}) {
				if got = append(got, v.ID); v.State != backends.StateBlocked || v.Group == "" {
					k.Errorf("the job is %+v", v)
				}
			}
			if !slices.Equal(got, want[i:]) {
				k.Errorf("after %q: %v, want %v", after, got, want[i:])
			}
		}
		all, err := k.inspector().Stats(k.Context(), "")
		if err != nil || len(all) != 1 || all[0].Blocked != 3 || all[0].Ready != 2 {
			k.Errorf("the statistics of all queues are %+v, %v", all, err)
		}
		k.operateOnGroups(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateBlocked}, 3)
		k.wantNext("a1", "b1")
	},
	"AdmissionsDoNotCountBesideEachOther": func(k *kit) {
		if k.BeforeCommit == nil || k.Producer == nil { // or one transaction at a time writes
			return
		}
		second := k.OpenAnother()
		urgent := member("a9")
		urgent.Priority = 5
		k.BeforeCommit(func() { // the commit that stores the job
			k.BeforeCommit(func() { // the admission
				if _, err := second.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{urgent}}}}); err != nil {
					k.Error(err)
				}
			})
		})
		k.enqueueMembers("a1")
		k.maintain(backends.Maintenance{})
		k.endNext("a9", acked)
		k.endNext("a1", acked)
	},
	"NeverMoreThanTheLimit": func(k *kit) { k.runGroups(1) },
	"NeverMoreThanALargerLimit": func(k *kit) {
		k.limit(groupLimit(2))
		k.runGroups(2)
	},
}

// runGroups works jobs of groups with two sidecars' handles, and checks that no group has more leases than the limit, and with a
// limit of 1 that its jobs succeed in order.
func (k *kit) runGroups(limit int) {
	const groups, each, workers = 5, 24, 6
	handles := []backends.Backend{k.Backend, k.OpenAnother()}
	var left atomic.Int64
	left.Store(groups * each)
	var mu sync.Mutex
	held, next := map[string]int{}, map[string]int{}
	work := func(b backends.Backend, n int) error {
		r, err := b.Commit(k.Context(), k.claimBatch(me, 3, 0, policy("q")))
		if err != nil {
			return err
		}
		for i, j := range r.Claims[0].Jobs {
			group := string(j.Payload[:1])
			number, err := strconv.Atoi(string(j.Payload[1:]))
			if err != nil {
				return err
			}
			mu.Lock()
			if held[group]++; held[group] > limit {
				k.Errorf("%d jobs of the group %s are claimed", held[group], group)
			}
			if limit == 1 && number != next[group] {
				k.Errorf("job %d of the group %s comes before job %d", number, group, next[group])
			}
			w := acked(leasesOf(j))
			fails := (n+i)%5 == 0 && j.Attempt < 2
			if fails {
				w = backends.Nack{Leases: leasesOf(j), HasDelay: true, Error: "x"}
			} else {
				next[group] = number + 1
			}
			held[group]-- // before the write, because another worker can get the next job before this one hears of the commit
			mu.Unlock()
			for {
				_, err := b.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{w}})
				if _, locked := errors.AsType[*backends.LockedError](err); locked {
					continue
				}
				if err != nil {
					return err
				}
				break
			}
			if !fails {
				left.Add(-1)
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range each {
			var jobs []backends.NewJob
			for g := range groups {
				jobs = append(jobs, member(fmt.Sprintf("%c%d", 'a'+g, i)))
			}
			if _, err := handles[i%2].Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}}); err != nil {
				k.Error(err)
			}
		}
	})
	wg.Go(func() {
		for left.Load() > 0 && !k.Failed() {
			if _, err := handles[1].Maintain(k.Context(), backends.Maintenance{Limit: 100}); err != nil {
				k.Error(err)
			}
		}
	})
	for w := range workers {
		wg.Go(func() {
			for n := 0; left.Load() > 0 && !k.Failed(); n++ {
				if err := work(handles[w%2], n); err != nil {
					k.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if s := k.stats(); s.Blocked+s.Ready+s.Claimed != 0 {
		k.Errorf("at the end: %+v", s)
	}
}
