package backendtest

import (
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func (k *kit) hasProgress() bool { return k.Info().Progress }

// keeper returns the Backend as a ProgressKeeper.
func (k *kit) keeper() backends.ProgressKeeper {
	k.Helper()
	p, ok := k.Backend.(backends.ProgressKeeper)
	if !ok {
		k.Fatalf("%T isn't a ProgressKeeper", k.Backend)
	}
	return p
}

// report saves the progress of claimed jobs, each with its number in the list as the data.
func (k *kit) report(done int64, jobs ...backends.Job) []backends.ProgressOutcome {
	k.Helper()
	all := make([]backends.LeaseProgress, len(jobs))
	for i := range jobs {
		all[i] = backends.LeaseProgress{Lease: jobs[i].Lease(), Progress: backends.Progress{Done: done, Total: -1, Data: []byte(strconv.Itoa(i))}}
	}
	out, err := k.keeper().SaveProgress(k.Context(), all)
	if err != nil {
		k.Fatal(err)
	}
	return out
}

// wantProgress checks the progress of a job; done -1: it has none.
func (k *kit) wantProgress(id string, done int64) {
	k.Helper()
	all, err := k.keeper().ProgressOf(k.Context(), []string{id, "1000000", "x"})
	if err != nil {
		k.Fatal(err)
	}
	p, found := all[id]
	if !found && done < 0 {
		return
	}
	if !found || len(all) != 1 || p.Done != done || p.Total != -1 || p.At.IsZero() {
		k.Errorf("the progress of job %s is %+v, want %d", id, all, done)
	}
}

func (k *kit) progressJobs() []string {
	k.Helper()
	ids, err := k.keeper().ProgressJobs(k.Context(), "", 10)
	if err != nil {
		k.Fatal(err)
	}
	return ids
}

var progressTests = map[string]func(*kit){
	"NextDeliveryHasIt": func(k *kit) {
		k.enqueuePayloads("a", "b", "c")
		jobs := k.claim(3)
		if out := k.report(1, jobs[0], jobs[2]); !slices.Equal(out, []backends.ProgressOutcome{backends.ProgressSaved, backends.ProgressSaved}) {
			k.Fatalf("outcomes %v", out)
		}
		k.report(7, jobs[2])
		k.wantProgress(jobs[0].ID, 1)
		k.wantProgress(jobs[1].ID, -1)
		k.wantProgress(jobs[2].ID, 7)
		for i, want := range []bool{true, false, true} {
			if jobs[i].HasProgress || k.view(jobs[i].ID).HasProgress != want {
				k.Errorf("job %d: at its first claim %v, now %v", i, jobs[i].HasProgress, k.view(jobs[i].ID).HasProgress)
			}
		}
		k.write(backends.Release{Leases: leasesOf(jobs...), Uncounted: true})
		again := k.claim(3)
		k.wantJobs(again, "a", "b", "c")
		for i, want := range []bool{true, false, true} {
			if again[i].HasProgress != want {
				k.Errorf("job %d: HasProgress is %v", i, again[i].HasProgress)
			}
		}
		k.wantProgress(jobs[2].ID, 7) // until its worker reports
		k.report(8, again[2])
		k.wantProgress(jobs[2].ID, 8)
	},
	"OfAQueueClaimedNewestFirst": func(k *kit) {
		k.enqueuePayloads("a", "b")
		jobs := k.claim(2)
		k.report(1, jobs[1])
		k.write(backends.Release{Leases: leasesOf(jobs...), Uncounted: true})
		p := policy("q")
		p.LIFO = true
		again := k.commit(k.claimBatch(me, 2, 0, p)).Claims[0].Jobs
		k.wantJobs(again, "b", "a")
		if !again[0].HasProgress || again[1].HasProgress {
			k.Errorf("HasProgress is %v and %v", again[0].HasProgress, again[1].HasProgress)
		}
	},
	"OnlyTheValidLeaseReports": func(k *kit) {
		k.enqueuePayloads("a")
		first := k.claimOne()
		k.report(5, first)
		k.write(backends.Nack{Leases: leasesOf(first), HasDelay: true})
		if out := k.report(6, first); out[0] != backends.ProgressLost {
			k.Errorf("before the next claim: %v", out)
		}
		second := k.claimOne()
		forged := second
		forged.ID = "999"
		if out := k.report(6, first, forged, second); !slices.Equal(out, []backends.ProgressOutcome{backends.ProgressLost, backends.ProgressLost, backends.ProgressSaved}) {
			k.Errorf("outcomes %v", out)
		}
		k.wantProgress(first.ID, 6)
		k.write(backends.Ack{Leases: leasesOf(second)})
		if out := k.report(7, second); out[0] != backends.ProgressLost {
			k.Errorf("after the ack: %v", out)
		}
	},
	"DataAndLimits": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimOne()
		data := make([]byte, backends.MaxProgressData)
		for i := range data {
			data[i] = byte(i)
		}
		const most = 1<<53 - 1
		for _, p := range []backends.Progress{{Done: most, Total: most, Data: data}, {Done: -1, Total: 0}, {Done: 0, Total: -1, Data: []byte("\x00\xff")}} {
			if _, err := k.keeper().SaveProgress(k.Context(), []backends.LeaseProgress{{Lease: j.Lease(), Progress: p}}); err != nil {
				k.Fatal(err)
			}
			all, err := k.keeper().ProgressOf(k.Context(), []string{j.ID})
			if got := all[j.ID]; err != nil || got.Done != p.Done || got.Total != p.Total || string(got.Data) != string(p.Data) {
				k.Errorf("saved %d of %d with %d bytes, got %+v, %v", p.Done, p.Total, len(p.Data), got, err)
			}
		}
	},
	"ForgottenAfterTheEnd": func(k *kit) {
		k.enqueuePayloads("acked", "kept", "dead", "waits", "runs")
		p := policy("q")
		p.RetainDone = 0
		jobs := k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs
		p.RetainDone = time.Hour
		jobs = append(jobs, k.commit(k.claimBatch(me, 4, 0, p)).Claims[0].Jobs...)
		k.report(3, jobs...)
		k.write(backends.Ack{Leases: leasesOf(jobs[0], jobs[1])})
		k.write(backends.Nack{Leases: leasesOf(jobs[2]), Dead: true})
		k.write(backends.Nack{Leases: leasesOf(jobs[3]), Delay: time.Hour, HasDelay: true})
		var ids []string
		for _, j := range jobs {
			ids = append(ids, j.ID)
		}
		if found, want := k.progressJobs(), ids; !slices.Contains(found, ids[4]) || len(found) > len(want) {
			k.Errorf("jobs %v have progress, of %v", found, want)
		}
		if err := k.keeper().ForgetProgress(k.Context(), ids); err != nil {
			k.Fatal(err)
		}
		if found := k.progressJobs(); !slices.Equal(found, ids[3:]) {
			k.Errorf("then jobs %v, want %v", found, ids[3:])
		}
		next, err := k.keeper().ProgressJobs(k.Context(), ids[3], 10)
		if err != nil || !slices.Equal(next, ids[4:]) {
			k.Errorf("after the first %v, %v", next, err)
		}
	},
	"LockedRowDelaysNoOther": func(k *kit) {
		if k.LockRow == nil {
			return
		}
		k.enqueuePayloads("a", "b")
		jobs := k.claim(2)
		unlock := k.LockRow(jobs[0].ID)
		out := k.report(1, jobs...)
		if out[1] != backends.ProgressSaved || out[0] == backends.ProgressLost {
			k.Errorf("outcomes %v", out)
		}
		unlock()
		k.report(2, jobs[0])
		k.wantProgress(jobs[0].ID, 2)
		k.LockRow(jobs[0].ID) // a marked row isn't locked
		if out := k.report(3, jobs[0]); out[0] != backends.ProgressSaved {
			k.Errorf("then %v", out)
		}
		k.wantProgress(jobs[0].ID, 3)
	},
	"WithoutItsTable": func(k *kit) {
		if k.RemoveTable == nil {
			return
		}
		k.enqueuePayloads("a", "b")
		jobs := k.claim(2)
		k.report(1, jobs...)
		back := k.RemoveTable("progress")
		if _, err := k.keeper().SaveProgress(k.Context(), []backends.LeaseProgress{{Lease: jobs[0].Lease()}}); err == nil {
			k.Error("a report succeeds without the table")
		}
		k.write(backends.Release{Leases: leasesOf(jobs...), Uncounted: true})
		again := k.claim(2)
		k.wantJobs(again, "a", "b")
		k.write(backends.Ack{Leases: leasesOf(again[0])})
		k.maintain(backends.Maintenance{})
		back()
		k.wantProgress(again[1].ID, 1)
	},
	"TwoHandles": func(k *kit) { // a sidecar whose claim is over reports beside the one that has the job
		k.enqueuePayloads("a")
		first := k.claimOne()
		second := k.OpenAnother()
		k.join(second, other)
		k.report(1, first)
		k.write(backends.Release{Leases: leasesOf(first), Uncounted: true})
		b := k.claimBatch(other, 1, 0, policy("q"))
		r, err := second.Commit(k.Context(), b)
		if err != nil || len(r.Claims[0].Jobs) != 1 || !r.Claims[0].Jobs[0].HasProgress {
			k.Fatalf("the other claim: %+v, %v", r, err)
		}
		keeper, _ := second.(backends.ProgressKeeper)
		if _, err := keeper.SaveProgress(k.Context(), []backends.LeaseProgress{{Lease: r.Claims[0].Jobs[0].Lease(), Progress: backends.Progress{Done: 9, Total: -1}}}); err != nil {
			k.Fatal(err)
		}
		if out := k.report(2, first); out[0] != backends.ProgressLost {
			k.Errorf("the first reports %v", out)
		}
		k.wantProgress(first.ID, 9)
	},
}
