package backendtest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// CheckFallen holds an answer's counts against what was asked: each Nack and Release is
// counted once for each lease that was valid, and nothing else is.
func CheckFallen(t interface {
	Helper()
	Errorf(format string, args ...any)
}, b backends.Batch, r backends.Results) {
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
			t.Errorf("%T %+v: %d jobs are counted as fallen, want %d: %+v", w, w, got, want, r.Writes[i].Failed)
		}
	}
}

// CheckReaped holds the two counts of a sweep against each other.
func CheckReaped(t interface {
	Helper()
	Errorf(format string, args ...any)
}, r backends.MaintenanceResult) {
	t.Helper()
	got := map[backends.Cause]int{}
	for _, f := range r.Failed {
		got[f.Cause] += f.Jobs
	}
	for cause, n := range r.Reaped {
		if got[cause] != n {
			t.Errorf("reaped %v, counted as fallen %+v", r.Reaped, r.Failed)
			return
		}
	}
	if len(got) != len(r.Reaped) {
		t.Errorf("reaped %v, counted as fallen %+v", r.Reaped, r.Failed)
	}
}

// fell checks counts, whatever their order.
func (k *kit) fell(got backends.FailedCounts, want ...backends.FailedCount) {
	k.Helper()
	got = slices.SortedFunc(slices.Values(got), func(a, b backends.FailedCount) int {
		return cmp.Or(strings.Compare(a.Queue, b.Queue), strings.Compare(string(a.Cause), string(b.Cause)), b.Jobs-a.Jobs)
	})
	if !slices.Equal(got, want) {
		k.Errorf("fallen: %+v, want %+v", got, want)
	}
}

var fallen = map[string]func(*kit){
	"WhatANackAndAReleaseEnd": func(k *kit) {
		k.put("a", "b", "c", "d", "e")
		p, q := policy("q"), policy("p")
		k.enqueue(backends.NewJob{Queue: "p", Payload: []byte("p"), MaxAttempts: 1})
		jobs := k.commit(k.claims(me, 9, 0, p, q)).Claims[0].Jobs
		k.given(jobs, "a", "b", "c", "d", "e", "p")
		gone := backends.Lease{Job: jobs[0].ID, Token: backends.Token{Host: me, Number: 1 << 40}}
		nacks := k.commit(backends.Batch{Writes: []backends.Write{
			backends.Nack{Leases: append(each(jobs[0], jobs[5]), gone), Error: "no"}, // the second one's last attempt
			backends.Nack{Leases: each(jobs[1]), Dead: true},
			backends.Nack{Leases: each(jobs[2]), Snooze: true},
			backends.Release{Leases: each(jobs[3]), Cause: backends.CauseDisconnected},
			backends.Release{Leases: each(jobs[4]), Uncounted: true},
		}}).Writes
		k.fell(nacks[0].Failed, backends.FailedCount{Queue: "p", Cause: backends.CauseNacked, Dead: true, Jobs: 1}, backends.FailedCount{Queue: "q", Cause: backends.CauseNacked, Jobs: 1})
		k.fell(nacks[1].Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseNacked, Dead: true, Jobs: 1})
		k.fell(nacks[2].Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseNacked, Jobs: 1})
		k.fell(nacks[3].Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseDisconnected, Jobs: 1})
		k.fell(nacks[4].Failed, backends.FailedCount{Queue: "q", Jobs: 1})
		k.fell(k.write(backends.Nack{Leases: each(jobs...)}).Failed) // all are lost by now
	},
	"WhatASweepTakesBack": func(k *kit) {
		k.put("a", "b", "c")
		p := policy("q")
		p.MaxAttempts = 1
		k.given(k.commit(k.claims(me, 1, 10*time.Second, p)).Claims[0].Jobs, "a")
		p.Timeout = 5 * time.Second
		k.given(k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs, "b")
		p.MaxAttempts = 2
		k.given(k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs, "c")
		k.Shift(20 * time.Second)
		k.fell(k.sweep(backends.Maintenance{}).Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseLeaseEnded, Dead: true, Jobs: 1},
			backends.FailedCount{Queue: "q", Cause: backends.CauseTimedOut, Dead: true, Jobs: 1},
			backends.FailedCount{Queue: "q", Cause: backends.CauseTimedOut, Jobs: 1})
		k.fell(k.sweep(backends.Maintenance{}).Failed)
	},
	"WhatIsTooLarge": func(k *kit) {
		k.put("ok", strings.Repeat("x", 11), strings.Repeat("y", 12))
		r := k.bounded(3, 1000, 10, policy("q"))
		k.given(r.Jobs, "ok")
		k.fell(r.Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseTooLarge, Dead: true, Jobs: 2})
		k.fell(k.bounded(3, 1000, 10, policy("q")).Failed)
	},
}

// usage is of backends that are Metered; of others there is nothing to hold them to.
var usage = map[string]func(*kit){
	"ItGrowsWithWhatIsAsked": func(k *kit) {
		m, ok := k.Backend.(backends.Metered)
		if !ok {
			return
		}
		before := m.Usage()
		k.put("a")
		k.settle(backends.Ack{Leases: each(k.one())}, 0)
		after := m.Usage()
		if after.RoundTrips.Count < before.RoundTrips.Count+3 || after.RoundTrips.Sum <= before.RoundTrips.Sum {
			k.Errorf("an enqueue, a claim and an ack: %+v, before %+v", after.RoundTrips, before.RoundTrips)
		}
		within := uint64(0)
		for _, n := range after.RoundTrips.Within {
			within += n
		}
		if within > after.RoundTrips.Count || within < after.RoundTrips.Count/2 {
			k.Errorf("of %d round trips %d have a place", after.RoundTrips.Count, within)
		}
		if after.Max > 0 && (after.InUse+after.Idle < 1 || after.InUse+after.Idle > after.Max) {
			k.Errorf("the pool: %+v", after)
		}
	},
}
