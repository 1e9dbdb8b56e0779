package backendtest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// CheckFailedCounts compares the failed counts of an answer with its batch. Each Nack and Release
// counts once for each valid lease, and other writes never count.
func CheckFailedCounts(t interface {
	Helper()
	Errorf(format string, args ...any)
}, b backends.CommitContent, r backends.Results) {
	t.Helper()
	for i, w := range b.Writes {
		want := 0
		switch w := w.(type) {
		case backends.Nack:
			want = len(w.Leases) - len(r.Writes[i].Lost)
		case backends.Release:
			want = len(w.Leases) - len(r.Writes[i].Lost)
		}
		got := 0
		for _, f := range r.Writes[i].Failed {
			got += f.Jobs
		}
		if got != want && r.Writes[i].Err == nil {
			t.Errorf("%T %+v: %d jobs are counted as failed, want %d: %+v", w, w, got, want, r.Writes[i].Failed)
		}
	}
}

// CheckReapedCounts checks that Failed of a maintenance result agrees with Reaped and Expired.
func CheckReapedCounts(t interface {
	Helper()
	Errorf(format string, args ...any)
}, r backends.MaintenanceResult) {
	t.Helper()
	got := map[backends.Cause]int{}
	for _, f := range r.Failed {
		got[f.Cause] += f.Jobs
	}
	if got[backends.CauseExpired] != r.Expired {
		t.Errorf("%d jobs expired, but counted as failed %+v", r.Expired, r.Failed)
	}
	delete(got, backends.CauseExpired)
	for cause, n := range r.Reaped {
		if got[cause] != n {
			t.Errorf("reaped %v, but counted as failed %+v", r.Reaped, r.Failed)
			return
		}
	}
	if len(got) != len(r.Reaped) {
		t.Errorf("reaped %v, but counted as failed %+v", r.Reaped, r.Failed)
	}
}

// wantFailed compares counts in any order.
func (k *kit) wantFailed(got backends.FailedCounts, want ...backends.FailedCount) {
	k.Helper()
	got = slices.SortedFunc(slices.Values(got), func(a, b backends.FailedCount) int {
		return cmp.Or(strings.Compare(a.Queue, b.Queue), strings.Compare(string(a.Cause), string(b.Cause)), b.Jobs-a.Jobs)
	})
	if !slices.Equal(got, want) {
		k.Errorf("failed: %+v, want %+v", got, want)
	}
}

var failedCountTests = map[string]func(*kit){
	"NacksAndReleases": func(k *kit) {
		k.enqueuePayloads("a", "b", "c", "d", "e")
		p, q := policy("q"), policy("p")
		k.enqueue(backends.NewJob{Queue: "p", Payload: []byte("p"), MaxAttempts: 1})
		jobs := k.commit(k.claimBatch(me, 9, 0, p, q)).Claims[0].Jobs
		k.wantJobs(jobs, "a", "b", "c", "d", "e", "p")
		gone := backends.Lease{Job: jobs[0].ID, Token: backends.Token{Sidecar: me, Number: 1 << 40}}
		nacks := k.commit(backends.CommitContent{Writes: []backends.Write{
			backends.Nack{Leases: append(leasesOf(jobs[0], jobs[5]), gone), Error: "no"}, // the last attempt of the second job
			backends.Nack{Leases: leasesOf(jobs[1]), Dead: true},
			backends.Nack{Leases: leasesOf(jobs[2]), Snooze: true},
			backends.Release{Leases: leasesOf(jobs[3]), Cause: backends.CauseDisconnected},
			backends.Release{Leases: leasesOf(jobs[4]), Uncounted: true},
		}}).Writes
		k.wantFailed(nacks[0].Failed, backends.FailedCount{Queue: "p", Cause: backends.CauseNacked, Dead: true, Jobs: 1}, backends.FailedCount{Queue: "q", Cause: backends.CauseNacked, Jobs: 1})
		k.wantFailed(nacks[1].Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseNacked, Dead: true, Jobs: 1})
		k.wantFailed(nacks[2].Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseNacked, Jobs: 1})
		k.wantFailed(nacks[3].Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseDisconnected, Jobs: 1})
		k.wantFailed(nacks[4].Failed, backends.FailedCount{Queue: "q", Jobs: 1})
		k.wantFailed(k.write(backends.Nack{Leases: leasesOf(jobs...)}).Failed) // all leases are lost now
	},
	"ReapedJobs": func(k *kit) {
		k.enqueuePayloads("a", "b", "c")
		p := policy("q")
		p.MaxAttempts = 1
		k.wantJobs(k.commit(k.claimBatch(me, 1, 10*time.Second, p)).Claims[0].Jobs, "a")
		p.Timeout = 5 * time.Second
		k.wantJobs(k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs, "b")
		p.MaxAttempts = 2
		k.wantJobs(k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs, "c")
		k.AdvanceClock(20 * time.Second)
		k.wantFailed(k.maintain(backends.Maintenance{}).Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseLeaseEnded, Dead: true, Jobs: 1},
			backends.FailedCount{Queue: "q", Cause: backends.CauseTimedOut, Dead: true, Jobs: 1},
			backends.FailedCount{Queue: "q", Cause: backends.CauseTimedOut, Jobs: 1})
		k.wantFailed(k.maintain(backends.Maintenance{}).Failed)
	},
	"TooLargeJobs": func(k *kit) {
		k.enqueuePayloads("ok", strings.Repeat("x", 11), strings.Repeat("y", 12))
		r := k.claimBounded(3, 1000, 10, policy("q"))
		k.wantJobs(r.Jobs, "ok")
		k.wantFailed(r.Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseTooLarge, Dead: true, Jobs: 2})
		k.wantFailed(k.claimBounded(3, 1000, 10, policy("q")).Failed)
	},
}
