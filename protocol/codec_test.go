package protocol

import (
	"testing"
)

func TestSmoke(t *testing.T) {
	l := NewLimits(DefaultMaxFrame)
	for _, s := range []string{
		`{"op":"claim","queue":"q","id":7}`,
		`{"op":"enqueue","queue":"q","payload":"hi","headers":{"a":"b"},"id":"x"}`,
		`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"b","priority":100000}],"id":"x"}`,
		`{"oops":[1,{"a":{}}],"op":"claim","id":"x"}`,
		`{"op":"ack","lease":"1.x","result_b64":"AP8=","enqueue":[{"queue":"r"}],"id":"x"}`,
	} {
		var r Request
		err := JSON.DecodeRequest([]byte(s), l, &r)
		t.Log(s, err, r.ID)
		if err != nil {
			t.Logf("%s", JSON.AppendReply(nil, &Reply{ID: r.ID, Error: err}))
			continue
		}
		b := Msgpack.AppendRequest(nil, &r)
		var r2 Request
		if err := Msgpack.DecodeRequest(b[4:], l, &r2); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", JSON.AppendRequest(nil, &r2))
	}
}
