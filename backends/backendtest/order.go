package backendtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func job(payload string, priority int16) backends.NewJob {
	return backends.NewJob{Queue: "q", Payload: []byte(payload), Priority: priority}
}

var orderTests = map[string]func(*kit){
	"ByPriorityThenOldestFirst": func(k *kit) {
		k.enqueue(job("low", -5), job("a", 0), job("high", 9), job("b", 0))
		k.enqueue(job("c", 0), job("highest", 32767), job("lowest", -32768))
		k.wantJobs(k.claim(10), "highest", "high", "a", "b", "c", "low", "lowest")
	},
	"ClaimsFindJobsOfEveryPriority": func(k *kit) { // at whatever priority a cursor stopped
		for _, stopped := range []int16{0, 3, -3} {
			k.enqueue(job("first", stopped), job("second", stopped))
			k.wantJobs(k.claim(1), "first")
			var jobs []backends.NewJob
			want := []string{"second"}
			for p := int16(-5); p <= 5; p++ {
				jobs = append(jobs, job(fmt.Sprint(p), p))
				want = append(want, fmt.Sprint(p))
			}
			k.enqueue(jobs...)
			got := payloads(k.claim(99))
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				k.Errorf("given %q, want %q in any order", got, want)
			}
		}
	},
	"LIFOClaimsNewestFirstWithinAPriority": func(k *kit) {
		k.enqueue(job("a", 0), job("high1", 1), job("b", 0), job("high2", 1), job("c", 0), job("low", -1))
		p := policy("q")
		p.LIFO = true
		claim := func(n int) []backends.Job { return k.commit(k.claimBatch(me, n, 0, p)).Claims[0].Jobs }
		k.wantJobs(claim(3), "high2", "high1", "c")
		k.wantJobs(claim(9), "b", "a", "low")
	},
	"QueuesInTheOrderOfTheClaim": func(k *kit) {
		k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("q1"), Priority: 9}, backends.NewJob{Queue: "p", Payload: []byte("p1")},
			backends.NewJob{Queue: "p", Payload: []byte("p2")}, backends.NewJob{Queue: "r", Payload: []byte("r1")})
		k.wantJobs(k.commit(k.claimBatch(me, 3, 0, policy("p"), policy("none"), policy("q"))).Claims[0].Jobs, "p1", "p2", "q1")
		k.wantNoneReady()
	},
	"ClaimsOfOneCommitInOrder": func(k *kit) {
		k.enqueuePayloads("a", "b", "c")
		b := k.claimBatch(me, 1, 0, policy("q"))
		b.Claims = append(b.Claims, k.claimBatch(me, 2, 0, policy("q")).Claims...)
		b.Claims = append(b.Claims, k.claimBatch(me, 1, 0, policy("q")).Claims...)
		r := k.commit(b)
		k.wantJobs(r.Claims[0].Jobs, "a")
		k.wantJobs(r.Claims[1].Jobs, "b", "c")
		k.wantJobs(r.Claims[2].Jobs)
	},
	"JobHasTheTokenOfItsSlot": func(k *kit) {
		k.enqueuePayloads("a", "b")
		b := k.claimBatch(me, 3, 0, policy("q"))
		for i, j := range k.commit(b).Claims[0].Jobs {
			if j.Token != b.Claims[0].Slots[i].Token {
				k.Errorf("job %d has the token %v, want that of its slot, %v", i, j.Token, b.Claims[0].Slots[i].Token)
			}
		}
	},
	"ClaimsSeeTheWritesOfTheirBatch": func(k *kit) {
		b := k.claimBatch(me, 1, 0, policy("q"))
		b.Writes = []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0)}}}
		k.wantJobs(k.commit(b).Claims[0].Jobs, "a")
	},
	"UncountedReleaseKeepsThePosition": func(k *kit) {
		k.enqueuePayloads("a", "b")
		first := k.claim(1)
		k.enqueuePayloads("c")
		k.writeLosing(backends.Release{Leases: leasesOf(first...), Uncounted: true}, 0)
		jobs := k.claim(9)
		k.wantJobs(jobs, "a", "b", "c")
		if jobs[0].Attempt != 1 {
			k.Errorf("attempt %d after an uncounted release, want 1", jobs[0].Attempt)
		}
	},
	"JobReleasedByAnotherSidecarIsClaimableAtOnce": func(k *kit) { // far behind the cursor of claims
		const n, batch = 1300, 100
		k.enqueueMany(n + 1)
		second := k.OpenAnother()
		k.join(second, other)
		r, err := second.Commit(k.Context(), k.claimBatch(other, 1, 0, policy("q")))
		if err != nil || len(r.Claims[0].Jobs) != 1 {
			k.Fatalf("%+v, %v", r, err)
		}
		for range n / batch {
			k.writeLosing(backends.Ack{Leases: leasesOf(k.claim(batch)...)}, 0)
		}
		k.wantNoneReady()
		back := backends.Release{Leases: leasesOf(r.Claims[0].Jobs...), Uncounted: true}
		if _, err := second.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{back}}); err != nil {
			k.Fatal(err)
		}
		if r := k.maintain(backends.Maintenance{Waiting: []string{"q"}}); !slices.Equal(r.Ready, []string{"q"}) {
			k.Errorf("work is ready in %v, want q", r.Ready)
		}
		k.wantJobs(k.claim(1), "0")
	},
	"RetriedAttemptsQueueBehindReadyJobs": func(k *kit) {
		k.enqueuePayloads("nacked", "released", "waiting")
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(1)...), HasDelay: true}, 0)
		k.writeLosing(backends.Release{Leases: leasesOf(k.claim(1)...), Cause: backends.CauseDisconnected}, 0)
		k.enqueuePayloads("later")
		k.wantJobs(k.claim(9), "waiting", "nacked", "released", "later")
	},
	"PromotionInDueOrder": func(k *kit) {
		at := func(d time.Duration, name string) backends.NewJob {
			return backends.NewJob{Queue: "q", Payload: []byte(name), Delay: d}
		}
		k.enqueue(at(3*time.Second, "third"), at(time.Second, "first"), at(2*time.Second, "second"), at(time.Hour, "not yet"))
		k.enqueuePayloads("waiting")
		k.AdvanceClock(time.Minute)
		if r := k.maintain(backends.Maintenance{}); r.Promoted != 3 {
			k.Fatalf("%d promoted, want 3", r.Promoted)
		}
		k.enqueuePayloads("after")
		k.wantJobs(k.claim(9), "waiting", "first", "second", "third", "after")
	},
	"PromotionInBatches": func(k *kit) {
		var want []string
		for i := range 5 {
			want = append(want, fmt.Sprint(i))
			k.enqueue(backends.NewJob{Queue: "q", Payload: []byte(want[i]), Delay: time.Duration(i+1) * time.Second})
		}
		k.AdvanceClock(time.Minute)
		for i, more := range []bool{true, true, false} {
			if r := k.maintain(backends.Maintenance{Limit: 2}); r.More != more {
				k.Fatalf("batch %d: more is %v, want %v", i, r.More, more)
			}
		}
		k.wantJobs(k.claim(9), want...)
	},
	"RetriedJobsQueueBehindReadyJobs": func(k *kit) {
		ids := k.enqueuePayloads("dead", "waiting")
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(1)...), Dead: true}, 0)
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids[:1]}, 1, true)
		k.enqueuePayloads("later")
		k.wantJobs(k.claim(9), "waiting", "dead", "later")
	},
	"PausedQueueIsNotClaimed": func(k *kit) {
		k.enqueuePayloads("a")
		k.enqueue(backends.NewJob{Queue: "p", Payload: []byte("p")})
		k.operate(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		k.wantJobs(k.commit(k.claimBatch(me, 9, 0, policy("q"), policy("p"))).Claims[0].Jobs, "p")
		k.enqueuePayloads("b")
		k.wantNoneReady()
		k.operate(backends.Command{Kind: backends.Resume, Queue: "q"}, 0, true)
		k.wantJobs(k.claim(9), "a", "b")
		k.operate(backends.Command{Kind: backends.Resume, Queue: "q"}, 0, false)
	},
}
