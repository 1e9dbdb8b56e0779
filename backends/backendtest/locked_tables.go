package backendtest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// lockedTableTests hold what goes on while another session has locked a table of the sidecar, for example by an ALTER, or while
// the table of the notes of groups is gone.
var lockedTableTests = map[string]func(*kit){
	"Jobs": func(k *kit) {
		unlock := k.lockTable("jobs")
		if unlock == nil {
			return
		}
		k.findLocked("jobs")
		_, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
		k.namesTable("an enqueue", err, "jobs")
		_, err = k.Commit(k.Context(), k.claimBatch(me, 1, 0, policy("q")))
		k.namesTable("a claim", err, "jobs")
		_, err = k.inspector().Peek(k.Context(), backends.Peek{Queue: "q", Max: 1})
		k.namesTable("a peek", err, "jobs")
		_, _, err = k.inspector().Command(k.Context(), backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady})
		k.namesTable("a purge", err, "jobs")
		k.heartbeat(k, me, backends.HeartbeatRenew)
		unlock()
		k.works()
	},
	"Commits": func(k *kit) { // maintenance that has nothing to do doesn't need it
		if !slices.Contains(k.SmallTables, "commits") {
			return
		}
		unlock := k.lockTable("commits")
		if unlock == nil {
			return
		}
		k.waitsForLock(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}, true)
		_, err := k.Commit(k.Context(), k.claimBatch(me, 1, 0, policy("q")))
		k.namesTable("a claim", err, "commits")
		unlock()
		k.works()
	},
	"SidecarsAndQueues": func(k *kit) {
		for _, table := range []string{"sidecars", "queues"} {
			k.enqueuePayloads("a", "b")
			jobs := k.claim(2)
			unlock := k.lockTable(table)
			if unlock == nil {
				return
			}
			k.findLocked(table)
			r := k.commit(backends.CommitContent{Sidecar: me, Claims: k.claimBatch(me, 1, 0, policy("q")).Claims, Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs[0])}}})
			if r.Writes[0].Err != nil || len(r.Writes[0].Lost) > 0 {
				k.Errorf("%s: beside claims, an ack gets %+v", table, r.Writes[0])
			}
			k.namesTable("a claim", r.Claims[0].Err, table)
			if table == "sidecars" {
				late, cancel := context.WithCancel(k.Context())
				cancel() // the caller bounds the wait
				_, err := k.Heartbeat(late, backends.Heartbeat{Sidecar: me, Kind: backends.HeartbeatRenew, Name: "test", Timeout: sidecarTimeout})
				k.namesTable("a heartbeat", err, table)
			} else {
				_, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Pause, Queue: "q"})
				k.namesTable("a pause", err, table)
			}
			r = k.commit(backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs[1])}, backends.Release{Leases: leasesOf(jobs[1]), Uncounted: true}}})
			if r.Writes[0].Err != nil {
				k.Errorf("%s: an ack gets %+v", table, r.Writes[0])
			}
			unlock()
			k.heartbeat(k, me, backends.HeartbeatRenew)
			k.works()
		}
	},
	"KeysAndFailures": func(k *kit) {
		for _, table := range []string{"keys", "failures"} {
			k.enqueue(backends.NewJob{Queue: "q", Key: table, Payload: []byte("k")}, backends.NewJob{Queue: "q", Payload: []byte("p")}, backends.NewJob{Queue: "q", Payload: []byte("p")})
			jobs := k.wantNext("k", "p", "p")
			unlock := k.lockTable(table)
			if unlock == nil {
				return
			}
			other := backends.Write(backends.Ack{Leases: leasesOf(jobs[0])})
			if table == "failures" {
				other = backends.Nack{Leases: leasesOf(jobs[2]), Error: "x", Dead: true}
			}
			k.waitsForLock(backends.CommitContent{Writes: []backends.Write{other}}, false)
			k.findLocked(table)
			r := k.commit(backends.CommitContent{Sidecar: me, Writes: []backends.Write{
				backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}, backends.Ack{Leases: leasesOf(jobs[1])}, other, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: "new"}}},
			}, Claims: k.claimBatch(me, 1, 0, policy("q")).Claims})
			for i, fails := range []bool{false, false, true, table == "keys"} {
				if fails && i == 2 {
					k.fails(r.Writes[i].Err)
				} else if fails {
					k.namesTable("a write", r.Writes[i].Err, table)
				} else if r.Writes[i].Err != nil || len(r.Writes[i].Lost) > 0 {
					k.Errorf("%s: beside it, write %d gets %+v", table, i, r.Writes[i])
				}
			}
			if len(r.Claims[0].Jobs) != 1 {
				k.Errorf("%s: a claim gets %+v", table, r.Claims[0])
			}
			_, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{other}, WaitForLocks: true})
			k.fails(err)
			unlock()
			k.works()
			k.write(other)
			k.claim(20)
		}
	},
	"Pending": func(k *kit) {
		if k.LockTable == nil || !k.replacesContent() {
			return
		}
		k.wantStored(replacing("first"), backends.Stored{})
		held := k.claimOne()
		k.enqueuePayloads("ended", "reaped")
		k.wantStored(replacing("second"), pendingAt(held.ID))
		jobs := k.wantNext("ended", "reaped")
		for _, j := range []backends.Job{held, jobs[1]} {
			k.writeLosing(backends.Extend{Leases: leasesOf(j), Lease: time.Second}, 0)
		}
		unlock := k.lockTable("pending")
		k.waitsForLock(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{replacing("third")}}}}, false)
		r := k.commit(backends.CommitContent{Sidecar: me, Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{contentOf("kept", backends.ConflictKeep)}}, backends.Ack{Leases: leasesOf(jobs[0])},
			backends.Ack{Leases: leasesOf(held)}, backends.Enqueue{Jobs: []backends.NewJob{replacing("third")}},
		}})
		for i := range r.Writes {
			if i == 2 { // on MySQL the first try can still keep the row locked
				k.fails(r.Writes[i].Err)
			} else if i > 2 {
				k.namesTable("a write", r.Writes[i].Err, "pending")
			} else if r.Writes[i].Err != nil || len(r.Writes[i].Lost) > 0 {
				k.Errorf("write %d gets %+v", i, r.Writes[i])
			}
		}
		k.AdvanceClock(2 * time.Second)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		if m := k.maintain(backends.Maintenance{}); m.Reaped[backends.CauseLeaseEnded] != 1 {
			k.Errorf("maintenance took back %v, want the claim without a pending job", m.Reaped)
		}
		k.wantState(held.ID, backends.StateClaimed)
		unlock()
		k.works()
		k.maintain(backends.Maintenance{})
		k.wantContent(held.ID, backends.StateReady, "second")
	},
	"Gates": func(k *kit) {
		if !k.hasLimits() {
			return
		}
		k.limit(capOf(5))
		k.enqueuePayloads("q1")
		k.enqueue(backends.NewJob{Queue: "free"}, backends.NewJob{Queue: "free"})
		for _, table := range []string{"gates", "capped"} {
			unlock := k.lockTable(table)
			if unlock == nil {
				return
			}
			b := k.claimBatch(me, 1, 0, gated("q"))
			k.waitsForLock(b, false)
			k.findLocked(table)
			b.WaitForLocks = true // as the bridge does
			_, err := k.Commit(k.Context(), b)
			k.namesTable("a claim", err, table)
			if jobs := k.commit(k.claimBatch(me, 1, 0, gated("q"), policy("free"))).Claims[0].Jobs; len(jobs) != 1 || jobs[0].Queue != "free" {
				k.Errorf("%s: a claim that also names another queue gets %v", table, jobs)
			}
			unlock()
			k.works()
		}
		k.wantJobs(k.commit(k.claimBatch(me, 1, 0, gated("q"))).Claims[0].Jobs, "q1")
	},
	"Schedules": func(k *kit) {
		scheduler, ok := k.Backend.(backends.Scheduler)
		if !ok || !k.hasSchedules() {
			return
		}
		k.enqueue(backends.NewJob{Queue: "q", Delay: time.Second})
		k.AdvanceClock(time.Minute)
		unlock := k.lockTable("schedules")
		if unlock == nil {
			return
		}
		if r := k.findLocked("schedules"); r.Promoted != 1 {
			k.Errorf("maintenance made %d delayed jobs ready", r.Promoted)
		}
		_, err := scheduler.Schedules(k.Context(), backends.ScheduleList{Max: 1})
		k.namesTable("a list", err, "schedules")
		_, err = scheduler.ChangeSchedule(k.Context(), backends.ScheduleCommand{Kind: backends.ScheduleDelete, Name: "s"})
		k.namesTable("a change", err, "schedules")
		unlock()
		k.works()
	},
	"TablesOfGroups": func(k *kit) {
		if k.hasGroups() && k.LockTable != nil {
			k.besideNotes(func() func() { return k.LockTable("admissions") }, func() { k.findLocked("admissions") })
		}
	},
	"NotesOfGroupsAreGone": func(k *kit) {
		if k.hasGroups() && k.RemoveTable != nil {
			k.besideNotes(func() func() { return k.RemoveTable("admissions") }, func() {})
		}
	},
}

// lockTable locks a table of the sidecar, which maintenance finds out soon; nil: the engine can't.
func (k *kit) lockTable(table string) (unlock func()) {
	k.Helper()
	if k.LockTable == nil {
		return nil
	}
	k.findLocksSoon()
	return k.LockTable(table)
}

func (k *kit) findLocksSoon() {
	k.Helper()
	if b, ok := k.Backend.(interface{ SetTablePatience(time.Duration) }); ok {
		b.SetTablePatience(10 * time.Millisecond)
	}
}

// findLocked maintains until the lock is known.
func (k *kit) findLocked(table string) backends.MaintenanceResult {
	k.Helper()
	k.findLocksSoon()
	r := k.maintain(backends.Maintenance{Waiting: []string{"q"}})
	all := k.Backend.(backends.Obstructed).Obstacles()
	if len(all) != 1 || all[0].Table != "qsidecar_"+table || all[0].Doing != backends.DoingUse || !strings.Contains(all[0].Err.Error(), "locked the whole table qsidecar_"+table) {
		k.Fatalf("obstacles: %+v", all)
	}
	return r
}

// waitsForLock commits something that needs a locked table. Maintenance doesn't need it, and finds the lock because of that commit.
// unknown: its outcome can't be found out before the end of the lock.
func (k *kit) waitsForLock(b backends.CommitContent, unknown bool) {
	k.Helper()
	k.findLocksSoon()
	waits := make(chan error, 1)
	go func() {
		r, err := k.Commit(k.Context(), b)
		if len(r.Writes) > 0 {
			err = cmp.Or(err, r.Writes[0].Err)
		}
		waits <- err
	}()
	testwait.Until(k, "the lock is found", func() bool {
		k.maintain(backends.Maintenance{})
		return len(k.Backend.(backends.Obstructed).Obstacles()) > 0
	})
	err := <-waits
	if _, locked := errors.AsType[*backends.LockedError](err); !locked && !backends.Retryable(err) && !(unknown && errors.Is(err, backends.ErrUnknownOutcome)) {
		k.Errorf("the commit that waited for the lock: %v", err)
	}
}

// fails checks the error of a write that was tried before its table was known to be locked. On MySQL the session of that try waits on for a
// while, and keeps the job's row locked.
func (k *kit) fails(err error) {
	k.Helper()
	if _, locked := errors.AsType[*backends.LockedError](err); !locked && !backends.Retryable(err) {
		k.Errorf("a write while its table is locked: %v", err)
	}
}

// namesTable checks the error of a call that needs a locked table.
func (k *kit) namesTable(what string, err error, table string) {
	k.Helper()
	if !backends.Retryable(err) || !strings.Contains(err.Error(), "qsidecar_"+table) {
		k.Errorf("%s while qsidecar_%s is locked: %v", what, table, err)
	}
}

// works checks that maintenance finds that no table is locked, and that jobs are stored and claimed.
func (k *kit) works() {
	k.Helper()
	k.maintain(backends.Maintenance{})
	if all := k.Backend.(backends.Obstructed).Obstacles(); len(all) > 0 {
		k.Fatalf("after the lock: %+v", all)
	}
	k.maintain(backends.Maintenance{})
	k.enqueue(backends.NewJob{Queue: "after"})
	if jobs := k.commit(k.claimBatch(me, 1, 0, policy("after"))).Claims[0].Jobs; len(jobs) != 1 {
		k.Fatalf("after the lock a claim gets %v", jobs)
	}
}

// besideNotes shows that jobs of groups are stored, claimed and settled without the table of the notes, also beside other jobs, and that
// blocked ones are admitted when it is there again.
func (k *kit) besideNotes(away func() (back func()), find func()) {
	k.Helper()
	k.enqueueMembers("a1", "a2", "b1", "b2")
	k.enqueuePayloads("plain")
	jobs := k.wantNext("a1", "b1", "plain")
	back := away()
	find()
	r := k.commit(backends.CommitContent{Sidecar: me, Writes: []backends.Write{
		backends.Ack{Leases: leasesOf(jobs[0])}, backends.Ack{Leases: leasesOf(jobs[2])}, backends.Nack{Leases: leasesOf(jobs[1]), Dead: true},
		backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("next")}, member("c1")}},
	}, Claims: k.claimBatch(me, 1, 0, policy("q")).Claims})
	for i := range r.Writes {
		if r.Writes[i].Err != nil || len(r.Writes[i].Lost) > 0 {
			k.Errorf("write %d gets %+v", i, r.Writes[i])
		}
	}
	all := k.Backend.(backends.Obstructed).Obstacles()
	if !slices.ContainsFunc(all, func(o backends.Obstacle) bool {
		return o.Table == "qsidecar_admissions" && o.Doing == backends.DoingUse
	}) {
		k.Errorf("obstacles: %+v", all)
	}
	k.write(backends.Ack{Leases: leasesOf(append(r.Claims[0].Jobs, k.claim(5)...)...)})
	back()
	k.maintain(backends.Maintenance{})
	k.AdvanceClock(10 * time.Second)
	k.heartbeat(k, me, backends.HeartbeatRenew)
	k.maintain(backends.Maintenance{})
	k.write(backends.Ack{Leases: leasesOf(k.wantNext("a2", "b2", "c1")...)})
}
