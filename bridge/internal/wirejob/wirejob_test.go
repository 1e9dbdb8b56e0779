package wirejob

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestExpiryOfAQueue shows that a job's own limit replaces that of its queue, and its own end that of the queue.
func TestExpiryOfAQueue(t *testing.T) {
	queue := backends.Expiry{StartWithin: time.Minute, Remove: true, RetainDead: time.Hour}
	at := time.UnixMilli(5000)
	for _, c := range []struct {
		job   protocol.NewJob
		queue backends.Expiry
		want  backends.Expiry
	}{
		{protocol.NewJob{}, queue, queue},
		{protocol.NewJob{OnExpiry: protocol.ExpireDead}, queue, backends.Expiry{StartWithin: time.Minute, RetainDead: time.Hour}},
		{protocol.NewJob{StartBefore: protocol.Some[int64](5000)}, queue, backends.Expiry{StartBefore: at, Remove: true, RetainDead: time.Hour}},
		{protocol.NewJob{StartWithinMS: protocol.Some[int64](7)}, queue, backends.Expiry{StartWithin: 7 * time.Millisecond, Remove: true, RetainDead: time.Hour}},
		{protocol.NewJob{StartWithinMS: protocol.Some[int64](7), OnExpiry: protocol.ExpireDelete}, backends.Expiry{}, backends.Expiry{StartWithin: 7 * time.Millisecond, Remove: true}},
		{protocol.NewJob{OnExpiry: protocol.ExpireDelete}, backends.Expiry{RetainDead: time.Hour}, backends.Expiry{}}, // no limit, so nothing is stored
	} {
		if got := Stored(&c.job, 0, c.queue).Expiry; got != c.want {
			t.Errorf("%+v in a queue with %+v is stored with %+v, want %+v", c.job, c.queue, got, c.want)
		}
	}
}
