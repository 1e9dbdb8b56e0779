package backendtest

import (
	"bytes"
	"maps"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

var valueTests = map[string]func(*kit){
	"PayloadsKeepTheirBytes": func(k *kit) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		want := [][]byte{all, nil, {}, {0}, []byte("text"), []byte("\xff\xfe"), []byte(" "), []byte("''\"\\"), []byte("42"), []byte("NULL")}
		var jobs []backends.NewJob
		for _, p := range want {
			jobs = append(jobs, backends.NewJob{Queue: "q", Payload: p})
		}
		k.enqueue(jobs...)
		for i, j := range k.claim(99) {
			if !bytes.Equal(j.Payload, want[i]) {
				k.Errorf("payload %q came back as %q", want[i], j.Payload)
			}
			if v := k.view(j.ID); !bytes.Equal(v.Payload, want[i]) {
				k.Errorf("payload %q is shown as %q", want[i], v.Payload)
			}
		}
	},
	"CallersMemoryIsNotShared": func(k *kit) {
		p, h := []byte("mine"), map[string]string{"a": "b"}
		k.enqueue(backends.NewJob{Queue: "q", Payload: p, Headers: h})
		p[0], h["a"] = 'X', "changed"
		j := k.claimOne()
		if string(j.Payload) != "mine" || j.Headers["a"] != "b" {
			k.Errorf("the stored job changed with the caller's memory: %q, %v", j.Payload, j.Headers)
		}
	},
	"AllFieldsOfAJob": func(k *kit) {
		headers := map[string]string{"traceparent": "00-ab", "": "empty name", "quote\"\\'": "new\nline", "ü€😀": "\u2028<&>"}
		began := time.Now()
		id := k.enqueue(backends.NewJob{
			Queue: "q", Payload: []byte("p"), Priority: -7, Headers: headers, MaxAttempts: 32767,
			Timeout: 10 * 366 * 24 * time.Hour, Key: "ключ 'x'; --", KeyTTL: time.Hour,
		})[0]
		j := k.claimOne()
		if !maps.Equal(j.Headers, headers) {
			k.Errorf("headers came back as %q", j.Headers)
		}
		if j.EnqueuedAt.Sub(began).Abs() > time.Hour { // a wrong time zone would differ by an hour or more
			k.Errorf("enqueued at %v, and it is %v", j.EnqueuedAt, began)
		}
		j.Headers, j.EnqueuedAt, j.Fence = nil, time.Time{}, 0
		want := backends.Job{
			ID: id, Queue: "q", Token: j.Token, Payload: []byte("p"), Attempt: 1, MaxAttempts: 32767, Priority: -7,
			Timeout: 10 * 366 * 24 * time.Hour, Key: "ключ 'x'; --",
		}
		if got := j; got.ID != want.ID || got.Queue != want.Queue || string(got.Payload) != "p" || got.Attempt != want.Attempt ||
			got.MaxAttempts != want.MaxAttempts || got.Priority != want.Priority || got.Timeout != want.Timeout || got.Key != want.Key || got.LastError != "" {
			k.Errorf("got %+v, want %+v", got, want)
		}
	},
	"EmptyFieldsOfAJob": func(k *kit) {
		for _, h := range []map[string]string{nil, {}} {
			k.enqueue(backends.NewJob{Queue: "q", Headers: h})
			j := k.claimOne()
			if len(j.Headers) != 0 || j.Key != "" || j.LastError != "" || j.Timeout != 0 || len(j.Payload) != 0 || j.Priority != 0 {
				k.Errorf("an empty job is claimed as %+v", j)
			}
			if v := k.view(j.ID); v.Result != nil || v.Failures != nil || !v.RunAt.IsZero() || !v.FinishedAt.IsZero() || v.ClaimedAt.IsZero() || v.Worker != "w" {
				k.Errorf("it is shown as %+v", v)
			}
		}
	},
	"TokensOfAnyValue": func(k *kit) {
		for _, token := range []backends.Token{{Sidecar: 1<<64 - 1, Number: 1<<64 - 1}, {Sidecar: me, Number: 1 << 63}, {Sidecar: 1, Number: 0}} {
			k.enqueuePayloads("a")
			b := k.claimBatch(me, 1, 0, policy("q"))
			b.Claims[0].Slots[0].Token = token
			j := k.commit(b).Claims[0].Jobs[0]
			if h := k.claimedBy(k, me); len(h) != 1 || h[0].Lease != (backends.Lease{Job: j.ID, Token: token}) {
				k.Errorf("token %v is listed as %+v", token, h)
			}
			k.writeLosing(backends.Ack{Leases: []backends.Lease{{Job: j.ID, Token: token}}}, 0)
		}
	},
	"LongNames": func(k *kit) {
		queue, key := strings.Repeat("Q", 128), strings.Repeat("k", 255)
		k.enqueue(backends.NewJob{Queue: queue, Key: key, KeyTTL: time.Hour}, backends.NewJob{Queue: strings.ToLower(queue)})
		b := k.claimBatch(me, 2, 0, policy(queue))
		b.Claims[0].Slots[0].Worker = strings.Repeat("w", 128)
		jobs := k.commit(b).Claims[0].Jobs
		if len(jobs) != 1 || jobs[0].Key != key || jobs[0].Queue != queue {
			k.Fatalf("%+v, want one job: queues compare by bytes", jobs)
		}
		message := strings.Repeat("é", 2048)
		k.writeLosing(backends.Nack{Leases: leasesOf(jobs...), Error: message, HasDelay: true}, 0)
		if j := k.commit(b).Claims[0].Jobs[0]; j.LastError != message {
			k.Errorf("the error came back with %d bytes", len(j.LastError))
		}
	},
	"IDsAreNeverReused": func(k *kit) {
		used := map[string]bool{}
		for range 3 {
			for _, id := range k.enqueuePayloads("a", "b", "c") {
				if used[id] || id == "" || len(id) > 255 {
					k.Fatalf("id %q", id)
				}
				used[id] = true
			}
			k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(2)...), HasDelay: true}, 0)
			k.writeLosing(backends.Ack{Leases: leasesOf(k.claim(9)...)}, 0)
			k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, 0, false)
		}
	},
	"EmptyBatch": func(k *kit) {
		k.commit(backends.CommitContent{})
		k.commit(backends.CommitContent{Sidecar: 99})
		r := k.commit(k.claimBatch(me, 0, 0, policy("q")))
		if len(r.Claims[0].Jobs) != 0 {
			k.Error("a claim without slots got jobs")
		}
	},
	"PlainInsert": func(k *kit) {
		if k.InsertJob == nil {
			return // this engine has no SQL
		}
		k.enqueuePayloads("first")
		k.InsertJob("q", "héllo '\"")
		k.enqueuePayloads("last")
		k.wantJobs(k.claim(9), "first", "héllo '\"", "last")
	},
}
