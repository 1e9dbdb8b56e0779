package protocol

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReplyFields checks which fields of a reply are present and absent.
func TestReplyFields(t *testing.T) {
	for _, test := range []struct {
		reply Reply
		want  string
	}{
		{Reply{OK: true}, `{"ok":true}`},
		{Reply{ID: TextID(""), OK: true}, `{"id":"","ok":true}`},
		{Reply{ID: NumberID(0), Error: &Error{Code: CodeBusy, Message: "m"}}, `{"id":0,"ok":false,"error":{"code":"busy","message":"m"}}`},
		{Reply{Error: &Error{Code: CodeBusy, Field: "f", Index: Some[int64](0), RetryMS: Some[int64](0)}},
			`{"ok":false,"error":{"code":"busy","message":"","field":"f","index":0,"retry_ms":0}}`},
		{Reply{OK: true, Jobs: []Job{}}, `{"ok":true,"jobs":[]}`},
		{Reply{OK: true, Jobs: []Job{}, Join: true}, `{"ok":true,"jobs":[],"join":true}`},
		{Reply{OK: true, Views: []JobView{}}, `{"ok":true,"jobs":[]}`},
		{Reply{OK: true, Queues: []QueueStat{}}, `{"ok":true,"queues":[]}`},
		{Reply{OK: true, Jobs: []Job{{}}}, `{"ok":true,"jobs":[{"id":"","queue":"","lease":"","payload":"","attempt":0,"max_attempts":0,"fence":0,"priority":0,"enqueued_at":0}]}`},
		{Reply{OK: true, Jobs: []Job{{Payload: []byte{0xff}}}}, `{"ok":true,"jobs":[{"id":"","queue":"","lease":"","payload_b64":"/w==","attempt":0,"max_attempts":0,"fence":0,"priority":0,"enqueued_at":0}]}`},
		{Reply{OK: true, Views: []JobView{{Result: []byte{}}}}, `{"ok":true,"jobs":[{"id":"","queue":"","state":"","payload":"","priority":0,"attempt":0,"max_attempts":0,"result":"","errors":[]}]}`},
		{Reply{OK: true, Views: []JobView{{WaitsFor: WaitsForGroup, Behind: []Unchanged{{ID: "1", State: StateClaimed}}}}},
			`{"ok":true,"jobs":[{"id":"","queue":"","state":"","payload":"","priority":0,"attempt":0,"max_attempts":0,"errors":[],"waits_for":"group","behind":[{"id":"1","state":"claimed"}]}]}`},
		{Reply{OK: true, Queues: []QueueStat{{Queue: "q"}}}, `{"ok":true,"queues":[{"queue":"q","ready":0,"blocked":0,"scheduled":0,"claimed":0,"dead":0,"done":0,"paused":false,"oldest_ready_ms":0,"oldest_claimed_ms":0}]}`},
		{Reply{OK: true, Settled: &Settled{Verb: "acked"}}, `{"ok":true,"acked":0,"lost":[]}`},
		{Reply{OK: true, Settled: &Settled{Verb: "acked"}, Join: true}, `{"ok":true,"join":true,"acked":0,"lost":[]}`},
		{Reply{Error: &Error{Code: CodeLeaseLost}, Join: true}, `{"ok":false,"error":{"code":"lease_lost","message":""},"join":true}`},
		{Reply{OK: true, Settled: &Settled{Verb: "acked", Count: 1}, EnqueuedAll: []EnqueuedJob{{ID: "1", Duplicate: true, State: StateDone}}},
			`{"ok":true,"acked":1,"lost":[],"enqueued":[{"id":"1","duplicate":true,"state":"done"}]}`},
		{Reply{OK: true, After: "s", Schedules: []Schedule{{Name: "s", Queue: "q", EveryMS: 1, Upcoming: []int64{1, 2, 3}, ClockChange: &ClockChange{At: 4, Skipped: true}}}},
			`{"ok":true,"after":"s","schedules":[{"name":"s","every_ms":1,"queue":"q","upcoming":[1,2,3],"clock_change":{"at":4,"skipped":true}}]}`},
		{Reply{OK: true, Declared: &Declared{Outcome: "updated", Differences: []Difference{{"cron", "a", "b"}}, NextAt: Some[int64](5)}},
			`{"ok":true,"declared":{"outcome":"updated","differences":[{"field":"cron","from":"a","to":"b"}],"next_at":5}}`},
		{Reply{OK: true, Enqueued: &EnqueuedJob{ID: "1"}}, `{"ok":true,"job":{"id":"1"}}`},
		{Reply{OK: true, EnqueuedAll: []EnqueuedJob{{ID: "1"}}}, `{"ok":true,"jobs":[{"id":"1"}]}`},
		{Reply{OK: true, Count: Some[int64](0)}, `{"ok":true,"count":0}`},
		{Reply{Event: EventLost, Lost: []string{"1.a"}}, `{"event":"lost","leases":["1.a"]}`},
		{Reply{Event: EventDraining}, `{"event":"draining"}`},
		{Reply{OK: true, Hello: &HelloReply{Version: 1}}, `{"ok":true,"version":1,"server":"","session":"","features":[],"max_frame":0,"max_payload":0,"max_reply":0}`},
	} {
		if got := string(JSON.AppendReply(nil, &test.reply)); got != test.want+"\n" {
			t.Errorf("got  %swant %s", got, test.want)
		}
	}
}

// TestInvalidTextInRepliesIsReplaced checks that a client can read any text of a database.
func TestInvalidTextInRepliesIsReplaced(t *testing.T) {
	eachCodec(t, func(t *testing.T, c Codec) {
		var got Reply
		sent := c.AppendReply(nil, &Reply{Error: &Error{Code: CodeInternal, Message: "caf\xe9\x00"}})
		if err := c.DecodeReply(body(c, sent), &got); err != nil {
			t.Fatal(err)
		}
		if want := "caf��"; got.Error.Message != want {
			t.Errorf("got %q, want %q", got.Error.Message, want)
		}
	})
}

// TestUnknownFieldsOfRepliesAreIgnored checks that clients ignore unknown fields and events.
func TestUnknownFieldsOfRepliesAreIgnored(t *testing.T) {
	const later = `{"new":{"deep":[1,[2,{"x":null}],1.5]},"id":3,"ok":true,"jobs":[{"id":"7","lease":"1.x","payload":"p","colour":["red"],"attempt":2}],"max_frame2":1e3}`
	var got Reply
	if err := JSON.DecodeReply([]byte(later), &got); err != nil {
		t.Fatal(err)
	}
	want := Reply{ID: NumberID(3), OK: true, Jobs: []Job{{ID: "7", Lease: "1.x", Payload: []byte("p"), Attempt: 2}}}
	if diff := cmp.Diff(want, got, compareIDs); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestEmptyJobsAreClaimedJobsAndViews checks that an empty list is both Jobs and Views.
func TestEmptyJobsAreClaimedJobsAndViews(t *testing.T) {
	eachCodec(t, func(t *testing.T, c Codec) {
		var got Reply
		if err := c.DecodeReply(body(c, c.AppendReply(nil, &Reply{OK: true, Jobs: []Job{}})), &got); err != nil {
			t.Fatal(err)
		}
		if got.Jobs == nil || got.Views == nil || len(got.Jobs)+len(got.Views) > 0 {
			t.Errorf("got jobs %#v and views %#v, want both empty and not nil", got.Jobs, got.Views)
		}
	})
}

func TestInvalidReplies(t *testing.T) {
	for _, s := range []string{`{}`, `{"id":1}`, `{"ok":false}`, `{"ok":true,"error":{"code":"busy","message":""}}`, `{"ok":1}`,
		`{"ok":true} {}`, `{"ok":true,"ok":true}`, `[]`, ``, `{"ok":true,"jobs":{}}`, `{"ok":true,"count":1.5}`} {
		var r Reply
		if err := JSON.DecodeReply([]byte(s), &r); err == nil {
			t.Errorf("%s: was read as %+v, want an error", s, r)
		}
	}
}

// TestInvalidTextInRequestsIsRejected checks that invalid text in a request is rejected. A changed key would
// be another job's key.
func TestInvalidTextInRequestsIsRejected(t *testing.T) {
	eachCodec(t, func(t *testing.T, c Codec) {
		for _, key := range []string{"\"a\xff\n\"", "a\x00"} {
			var r Request
			sent := c.AppendRequest(nil, &Request{Op: OpEnqueue, Job: NewJob{Queue: "q", Key: key}})
			err := c.DecodeRequest(body(c, sent), NewLimits(DefaultMaxFrame), &r)
			if err == nil || err.Code != CodeBadRequest || err.Field != "key" {
				t.Errorf("%q as %q: got %v, want a bad_request of the key", key, sent, err)
			}
		}
	})
}
