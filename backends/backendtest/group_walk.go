package backendtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// wantGroups checks how many jobs of queue "q" are ready and blocked.
func (k *kit) wantGroups(ready, blocked int64) {
	k.Helper()
	if s := k.stats(); s.Ready != ready || s.Blocked != blocked {
		k.Fatalf("%d jobs are ready and %d blocked, want %d and %d", s.Ready, s.Blocked, ready, blocked)
	}
}

// loseNotes deletes what commits stored for admissions, as a crash of a program between its transactions never does.
func (k *kit) loseNotes() {
	k.Helper()
	for _, table := range k.SmallTables {
		if strings.HasSuffix(table, "admissions") {
			k.EmptyTable(table)
		}
	}
}

// insertMembers inserts a job into each of the groups, as another program does.
func (k *kit) insertMembers(groups ...string) {
	k.Helper()
	if err := k.InsertRow("group_name", "'"+strings.Join(groups, "'), ('q', 'odd', '")+"'", false); err != nil {
		k.Fatal(err)
	}
}

// sweep carries out maintenance as often as it has more to do at once.
func (k *kit) sweep() {
	k.Helper()
	for more := true; more; {
		more = k.maintain(backends.Maintenance{}).More
	}
}

// groupWalkTests hold what maintenance finds without notes, and what it does beside locks.
var groupWalkTests = map[string]func(*kit){
	"SurplusJobsOfGroupsWithoutBlockedJobs": func(k *kit) {
		k.limit(groupLimit(3))
		k.enqueueMembers("a1", "a2", "a3", "b1", "b2", "b3")
		k.wantGroups(6, 0)
		k.limit(groupLimit(1))
		k.loseNotes()
		k.maintain(backends.Maintenance{})
		k.wantGroups(2, 4)
		jobs := k.wantNext("a1", "b1")
		k.loseNotes()
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		k.wantNext("a2", "b2")
	},
	"TheWalkGoesOnBehindManyGroups": func(k *kit) {
		k.limit(groupLimit(2))
		var jobs []backends.NewJob
		const groups = 50 // more than one part of the walk has
		for g := range groups {
			for range 2 {
				jobs = append(jobs, backends.NewJob{Queue: "q", Group: fmt.Sprintf("g%d", g), Payload: []byte("g")})
			}
		}
		k.enqueue(jobs...)
		k.wantGroups(2*groups, 0)
		k.limit(groupLimit(1))
		k.loseNotes()
		for range 6 { // two rounds of the walk at most
			k.maintain(backends.Maintenance{})
		}
		k.wantGroups(groups, groups)
	},
	"SurplusJobsInTheirBackOff": func(k *kit) {
		k.limit(groupLimit(3))
		k.enqueueMembers("a1", "a2", "a3")
		k.write(backends.Nack{Leases: leasesOf(k.wantNext("a1", "a2", "a3")...), Error: "x"})
		k.limit(groupLimit(1))
		k.maintain(backends.Maintenance{})
		k.AdvanceClock(10 * time.Second)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		k.maintain(backends.Maintenance{})
		k.wantGroups(1, 2)
		for range 3 {
			k.write(backends.Ack{Leases: leasesOf(k.claimOne())})
		}
	},
	"SurplusClaimedJobsThatFail": func(k *kit) {
		k.limit(groupLimit(3))
		k.enqueueMembers("a1", "a2", "a3")
		jobs := k.wantNext("a1", "a2", "a3")
		k.limit(groupLimit(1))
		k.maintain(backends.Maintenance{})
		k.write(backends.Nack{Leases: leasesOf(jobs...), Error: "x"})
		k.AdvanceClock(10 * time.Second)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		k.maintain(backends.Maintenance{})
		k.wantGroups(1, 2)
	},
	"JobsOfADeadSidecarBeyondTheLimit": func(k *kit) {
		k.limit(groupLimit(3))
		k.enqueueMembers("a1", "a2", "a3")
		k.join(k, other)
		k.commit(k.claimBatch(other, 5, 0, policy("q")))
		k.limit(groupLimit(1))
		k.maintain(backends.Maintenance{})
		k.AdvanceClock(2 * sidecarTimeout)
		for _, p := range k.heartbeat(k, me, backends.HeartbeatRenew).Peers {
			if p.Sidecar == other {
				k.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Sidecar: other, Heartbeats: p.Heartbeats}}})
			}
		}
		k.wantGroups(1, 2)
	},
	"MoreSurplusJobsThanAnAdmissionChanges": func(k *kit) {
		const most = 2500
		k.limit(groupLimit(most))
		jobs := make([]backends.NewJob, most)
		for i := range jobs {
			jobs[i] = member("a")
		}
		k.enqueue(jobs...)
		k.maintain(backends.Maintenance{})
		k.wantGroups(most, 0)
		k.limit(groupLimit(1))
		k.maintain(backends.Maintenance{})
		k.wantGroups(1, most-1)
		k.limit(groupLimit(most))
		k.maintain(backends.Maintenance{})
		k.wantGroups(most, 0)
	},
	"PlainInsertsOfMoreGroupsThanASearchFinds": func(k *kit) {
		if k.InsertRow == nil {
			return
		}
		const groups = 600
		var names []string
		for i := range groups {
			names = append(names, fmt.Sprintf("b%03d", i))
		}
		k.insertMembers(names...)
		k.sweep()
		k.wantGroups(groups, 0)
		k.insertMembers(append(names, "c")...) // nothing is admitted in the groups that a search finds first
		k.sweep()
		k.wantGroups(groups+1, groups)
	},
	"ManyPlainInsertsOfAGroupDelayNoOther": func(k *kit) {
		if k.InsertRow == nil {
			return
		}
		const groups = 100
		var others []string
		for i := range groups {
			others = append(others, fmt.Sprintf("b%02d", i))
		}
		k.insertMembers(others...)
		for range 10 { // more than maintenance marks while it walks over the groups
			k.insertMembers(slices.Repeat([]string{"a"}, 900)...)
		}
		k.sweep()
		blocked := k.stats().Blocked
		k.insertMembers("c")
		k.sweep()
		k.sweep()
		k.wantGroups(1+groups+1, blocked)
	},
	"ManyNotesOfAHeldStripeDelayNoOther": func(k *kit) {
		if k.LockStripe == nil {
			return
		}
		k.enqueueMembers("a", "z")
		k.write(backends.Ack{Leases: leasesOf(k.wantNext("a", "z")...)})
		unlock := k.LockStripe("q", "a")
		var jobs []backends.NewJob
		for g := 0; len(jobs) < 600; g++ { // more than a search of maintenance finds
			name := fmt.Sprintf("b%d", g)
			if _, stripes := core.StripesOf([]backends.Group{{Queue: "q", Name: "a"}, {Queue: "q", Name: name}}); len(stripes) == 1 {
				jobs = append(jobs, backends.NewJob{Queue: "q", Group: name, Payload: []byte(name)})
			}
		}
		for _, w := range []backends.Enqueue{{Jobs: jobs}, {Jobs: []backends.NewJob{member("z1")}}} {
			if r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{w}}); err != nil || r.Writes[0].Err != nil {
				k.Fatalf("%v, %v", err, r.Writes)
			}
		}
		k.maintain(backends.Maintenance{})
		k.maintain(backends.Maintenance{})
		k.wantGroups(1, 600)
		unlock()
		k.maintain(backends.Maintenance{})
		k.maintain(backends.Maintenance{})
		k.wantGroups(601, 0)
	},
	"JobsWithoutGroupsNeedNoTableOfGroups": func(k *kit) {
		if k.RemoveTable == nil {
			return
		}
		for _, table := range []string{"admissions", "stripes"} {
			if !slices.ContainsFunc(k.SmallTables, func(t string) bool { return strings.HasSuffix(t, table) }) {
				continue
			}
			back := k.RemoveTable(table)
			large := backends.NewJob{Queue: "q", Payload: make([]byte, 2<<20), Priority: 9}
			ids := append(k.enqueuePayloads("1", "2", "3", "4", "5"), k.enqueue(large)...)
			priority := int16(3)
			for _, c := range []backends.Command{
				{Kind: backends.Delete, IDs: ids[:1]}, {Kind: backends.Change, IDs: ids[1:2], Priority: &priority}, {Kind: backends.Cancel, IDs: ids[2:3]},
				{Kind: backends.Retry, IDs: ids[2:3]}, {Kind: backends.Cancel, IDs: ids[2:3], Remove: true},
			} {
				c.Queue = "q"
				k.operateOnGroups(c, 1)
			}
			jobs := k.wantNext("2", "4", "5") // and the large one is dead
			k.wantState(ids[5], backends.StateDead)
			k.write(backends.Ack{Leases: leasesOf(jobs[0])})
			k.write(backends.Nack{Leases: leasesOf(jobs[1]), Error: "x"})
			k.write(backends.Release{Leases: leasesOf(jobs[2]), Uncounted: true})
			for state, n := range map[backends.State]int64{backends.StateReady: 1, backends.StateScheduled: 1, backends.StateDead: 1} {
				k.operateOnGroups(backends.Command{Kind: backends.Purge, Queue: "q", State: state}, n)
			}
			k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("later"), Delay: time.Second})
			k.AdvanceClock(2 * time.Second)
			k.heartbeat(k, me, backends.HeartbeatRenew)
			if r, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 10}); r.Promoted != 1 { // it can report that admissions fail
				k.Fatalf("promoted %d, %v", r.Promoted, err)
			}
			k.write(backends.Ack{Leases: leasesOf(k.claimOne())})
			back()
		}
	},
	"AHeldStripeDelaysOnlyItsGroups": func(k *kit) {
		if k.LockStripe == nil {
			return
		}
		k.enqueueMembers("a1", "a2", "b1", "b2", "c1", "c2")
		k.enqueuePayloads("none")
		jobs := k.wantNext("a1", "b1", "c1", "none")
		unlock := k.LockStripe("q", "a")
		r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{ // of several sessions
			acked(leasesOf(jobs[0])), acked(leasesOf(jobs[1])), acked(leasesOf(jobs[2])), acked(leasesOf(jobs[3])), backends.Enqueue{Jobs: []backends.NewJob{member("a3")}},
		}})
		if err != nil {
			k.Fatalf("beside a held stripe: %v", err)
		}
		for i := range r.Writes {
			if r.Writes[i].Err != nil || len(r.Writes[i].Lost) > 0 {
				k.Fatalf("write %d beside a held stripe: %+v", i, r.Writes[i])
			}
		}
		k.admit(k.Backend, r)
		k.write(backends.Ack{Leases: leasesOf(k.wantNext("b2", "c2")...)})
		k.enqueueMembers("d1", "d2")
		k.maintain(backends.Maintenance{})
		k.endNext("d1", acked)
		k.maintain(backends.Maintenance{})
		k.endNext("d2", acked)
		k.wantGroups(0, 2)
		unlock()
		k.enqueueMembers("a4") // whose admission finds the stripe free, before maintenance does
		k.endNext("a2", acked)
		k.endNext("a3", acked)
		k.endNext("a4", acked)
	},
}
