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

var order = map[string]func(*kit){
	"PriorityThenOldest": func(k *kit) {
		k.enqueue(job("low", -5), job("a", 0), job("high", 9), job("b", 0))
		k.enqueue(job("c", 0), job("highest", 32767), job("lowest", -32768))
		k.given(k.claim(10), "highest", "high", "a", "b", "c", "low", "lowest")
	},
	"EachPriorityAfterAClaim": func(k *kit) { // wherever a claim remembers that it stopped, and in whatever order it looks
		for _, stopped := range []int16{0, 3, -3} {
			k.enqueue(job("first", stopped), job("second", stopped))
			k.given(k.claim(1), "first")
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
	"LIFOIsNewestInsideAPriority": func(k *kit) {
		k.enqueue(job("a", 0), job("high1", 1), job("b", 0), job("high2", 1), job("c", 0), job("low", -1))
		p := policy("q")
		p.LIFO = true
		take := func(n int) []backends.Job { return k.commit(k.claims(me, n, 0, p)).Claims[0].Jobs }
		k.given(take(3), "high2", "high1", "c")
		k.given(take(9), "b", "a", "low")
	},
	"QueuesInTheOrderAsked": func(k *kit) {
		k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("q1"), Priority: 9}, backends.NewJob{Queue: "p", Payload: []byte("p1")},
			backends.NewJob{Queue: "p", Payload: []byte("p2")}, backends.NewJob{Queue: "r", Payload: []byte("r1")})
		k.given(k.commit(k.claims(me, 3, 0, policy("p"), policy("none"), policy("q"))).Claims[0].Jobs, "p1", "p2", "q1")
		k.none()
	},
	"ClaimsOfOneCommitInTurn": func(k *kit) {
		k.put("a", "b", "c")
		b := k.claims(me, 1, 0, policy("q"))
		b.Claims = append(b.Claims, k.claims(me, 2, 0, policy("q")).Claims...)
		b.Claims = append(b.Claims, k.claims(me, 1, 0, policy("q")).Claims...)
		r := k.commit(b)
		k.given(r.Claims[0].Jobs, "a")
		k.given(r.Claims[1].Jobs, "b", "c")
		k.given(r.Claims[2].Jobs)
	},
	"TheSlotsTokenComesWithItsJob": func(k *kit) {
		k.put("a", "b")
		b := k.claims(me, 3, 0, policy("q"))
		for i, j := range k.commit(b).Claims[0].Jobs {
			if j.Token != b.Claims[0].Slots[i].Token {
				k.Errorf("job %d has the token %v, want that of its slot, %v", i, j.Token, b.Claims[0].Slots[i].Token)
			}
		}
	},
	"WritesComeBeforeClaims": func(k *kit) {
		b := k.claims(me, 1, 0, policy("q"))
		b.Writes = []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job("a", 0)}}}
		k.given(k.commit(b).Claims[0].Jobs, "a")
	},
	"GiveBackKeepsThePosition": func(k *kit) {
		k.put("a", "b")
		first := k.claim(1)
		k.put("c")
		k.settle(backends.Release{Leases: each(first...), Uncounted: true}, 0)
		jobs := k.claim(9)
		k.given(jobs, "a", "b", "c")
		if jobs[0].Attempt != 1 {
			k.Errorf("attempt %d after a give-back, want 1", jobs[0].Attempt)
		}
	},
	"GivenBackByAnotherIsSeenAtOnce": func(k *kit) { // far behind where claims have come
		const n, batch = 1300, 100
		k.fill(n + 1)
		second := k.Again()
		k.join(second, other)
		r, err := second.Commit(k.Context(), k.claims(other, 1, 0, policy("q")))
		if err != nil || len(r.Claims[0].Jobs) != 1 {
			k.Fatalf("%+v, %v", r, err)
		}
		for range n / batch {
			k.settle(backends.Ack{Leases: each(k.claim(batch)...)}, 0)
		}
		k.none()
		back := backends.Release{Leases: each(r.Claims[0].Jobs...), Uncounted: true}
		if _, err := second.Commit(k.Context(), backends.Batch{Writes: []backends.Write{back}}); err != nil {
			k.Fatal(err)
		}
		if r := k.sweep(backends.Maintenance{Waiting: []string{"q"}}); !slices.Equal(r.Ready, []string{"q"}) {
			k.Errorf("work is ready in %v, want q", r.Ready)
		}
		k.given(k.claim(1), "0")
	},
	"ReadyAgainIsBehindTheWaiting": func(k *kit) {
		k.put("nacked", "released", "waiting")
		k.settle(backends.Nack{Leases: each(k.claim(1)...), HasDelay: true}, 0)
		k.settle(backends.Release{Leases: each(k.claim(1)...), Cause: backends.CauseDisconnected}, 0)
		k.put("later")
		k.given(k.claim(9), "waiting", "nacked", "released", "later")
	},
	"PromotionInDueOrder": func(k *kit) {
		at := func(d time.Duration, name string) backends.NewJob {
			return backends.NewJob{Queue: "q", Payload: []byte(name), Delay: d}
		}
		k.enqueue(at(3*time.Second, "third"), at(time.Second, "first"), at(2*time.Second, "second"), at(time.Hour, "not yet"))
		k.put("waiting")
		k.Shift(time.Minute)
		if r := k.sweep(backends.Maintenance{}); r.Promoted != 3 {
			k.Fatalf("%d promoted, want 3", r.Promoted)
		}
		k.put("after")
		k.given(k.claim(9), "waiting", "first", "second", "third", "after")
	},
	"PromotionInBites": func(k *kit) {
		var want []string
		for i := range 5 {
			want = append(want, fmt.Sprint(i))
			k.enqueue(backends.NewJob{Queue: "q", Payload: []byte(want[i]), Delay: time.Duration(i+1) * time.Second})
		}
		k.Shift(time.Minute)
		for i, more := range []bool{true, true, false} {
			if r := k.sweep(backends.Maintenance{Limit: 2}); r.More != more {
				k.Fatalf("bite %d: more is %v, want %v", i, r.More, more)
			}
		}
		k.given(k.claim(9), want...)
	},
	"RetriedIsBehindTheWaiting": func(k *kit) {
		ids := k.put("dead", "waiting")
		k.settle(backends.Nack{Leases: each(k.claim(1)...), Dead: true}, 0)
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids[:1]}, 1, true)
		k.put("later")
		k.given(k.claim(9), "waiting", "dead", "later")
	},
	"PauseGivesNothing": func(k *kit) {
		k.put("a")
		k.enqueue(backends.NewJob{Queue: "p", Payload: []byte("p")})
		k.command(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		k.given(k.commit(k.claims(me, 9, 0, policy("q"), policy("p"))).Claims[0].Jobs, "p")
		k.put("b")
		k.none()
		k.command(backends.Command{Kind: backends.Resume, Queue: "q"}, 0, true)
		k.given(k.claim(9), "a", "b")
		k.command(backends.Command{Kind: backends.Resume, Queue: "q"}, 0, false)
	},
}
