package backendtest

import (
	"bytes"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// claimBounded claims with its own limits of bytes and payload size.
func (k *kit) claimBounded(n int, maxBytes, maxPayload int64, policies ...backends.Policy) backends.ClaimResult {
	k.Helper()
	b := k.claimBatch(me, n, 0, policies...)
	b.Claims[0].MaxBytes, b.Claims[0].MaxPayload = maxBytes, maxPayload
	return k.commit(b).Claims[0]
}

var claimLimitTests = map[string]func(*kit){
	"ClaimStopsByBytes": func(k *kit) {
		k.enqueuePayloads("aaaa", "bbbb", "cc", "dddd", "")
		for i, want := range []struct {
			max  int64
			more bool
			jobs []string
		}{
			{9, true, []string{"aaaa", "bbbb"}}, // cc would make ten
			{1, true, []string{"cc"}},           // at least one
			{4, false, []string{"dddd", ""}},
			{4, false, nil},
		} {
			r := k.claimBounded(9, want.max, 100, policy("q"))
			k.wantJobs(r.Jobs, want.jobs...)
			if r.More != want.more {
				k.Errorf("claim %d: more is %v", i, r.More)
			}
		}
	},
	"ClaimStopsBeforeTheNextQueue": func(k *kit) {
		k.enqueuePayloads("aaaa", "bbbb")
		k.enqueue(backends.NewJob{Queue: "p", Payload: []byte("p")})
		r := k.claimBounded(9, 5, 100, policy("q"), policy("p"))
		k.wantJobs(r.Jobs, "aaaa")
		if !r.More {
			k.Error("More is false, want true")
		}
	},
	"StrictClaimNeverExceedsItsBytes": func(k *kit) {
		k.enqueuePayloads("aaaa", "bb", "cc")
		k.enqueue(backends.NewJob{Queue: "p", Payload: []byte("p")})
		strict := func(most int64) backends.ClaimResult {
			b := k.claimBatch(me, 9, 0, policy("q"), policy("p"))
			b.Claims[0].MaxBytes, b.Claims[0].MaxPayload, b.Claims[0].Strict = most, 100, true
			return k.commit(b).Claims[0]
		}
		for _, want := range []struct {
			max  int64
			more bool
			jobs []string
		}{
			{3, true, nil}, // no smaller job instead, from no queue
			{5, true, []string{"aaaa"}},
			{5, false, []string{"bb", "cc", "p"}},
			{5, false, nil},
		} {
			r := strict(want.max)
			k.wantJobs(r.Jobs, want.jobs...)
			if r.More != want.more {
				k.Errorf("a claim of at most %d bytes: more is %v", want.max, r.More)
			}
		}
	},
	"ExactlyEnoughBytes": func(k *kit) {
		k.enqueuePayloads("aaaa", "bbbb")
		r := k.claimBounded(9, 8, 4, policy("q"))
		k.wantJobs(r.Jobs, "aaaa", "bbbb")
		if r.More {
			k.Error("there is no more")
		}
	},
	"TooLargeJobIsDeadAndTheNextIsClaimed": func(k *kit) {
		ids := k.enqueuePayloads("ok1", strings.Repeat("x", 11), "ok2", strings.Repeat("y", 5000), "ok3")
		p := policy("q")
		p.LIFO = false
		k.wantJobs(k.claimBounded(3, 1000, 10, p).Jobs, "ok1", "ok2", "ok3")
		for i, size := range map[int]string{1: "11 bytes", 3: "5000 bytes"} {
			v := k.view(ids[i])
			if v == nil || v.State != backends.StateDead || len(v.Failures) != 1 || v.Failures[0].Cause != backends.CauseTooLarge ||
				!strings.Contains(v.Failures[0].Message, size) || v.FinishedAt.IsZero() {
				k.Errorf("the large job is %+v, want it dead for its %s", v, size)
			}
		}
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 2, true)
		if r := k.claimBounded(3, 1<<20, 1<<20, p); len(r.Jobs) != 2 || r.Jobs[0].Attempt != 1 {
			k.Errorf("after a retry with a higher limit: %d jobs", len(r.Jobs))
		}
	},
	"OnlyATooLargeJob": func(k *kit) {
		k.enqueuePayloads(strings.Repeat("x", 11))
		p := policy("q")
		p.LIFO = true
		if r := k.claimBounded(1, 1000, 10, p); len(r.Jobs) != 0 || r.More {
			k.Errorf("%+v", r)
		}
		if st := k.stats(); st.Dead != 1 {
			k.Errorf("%+v, want it dead", st)
		}
	},
	"KeyOfATooLargeJob": func(k *kit) {
		j := keyed("k")
		j.Payload = bytes.Repeat([]byte("x"), 11)
		id := k.enqueue(j)[0]
		k.claimBounded(1, 1000, 10, policy("q"))
		k.enqueueKey("k", id, backends.StateDead)
	},
	"LargePayload": func(k *kit) {
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // one MiB
		k.enqueue(backends.NewJob{Queue: "q", Payload: big})
		j := k.claimOne()
		if !bytes.Equal(j.Payload, big) {
			k.Errorf("%d bytes came back changed", len(j.Payload))
		}
		k.writeLosing(backends.Nack{Leases: leasesOf(j), HasDelay: true}, 0)
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
	},
}
