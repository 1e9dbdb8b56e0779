package bridge

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
)

// replicaOf is a replica without the jobs of q. It can be down.
type replicaOf struct{ down atomic.Bool }

func (r *replicaOf) Stats(context.Context, string, string) ([]backends.QueueStats, error) {
	return []backends.QueueStats{{Queue: "q", Done: 7}}, r.Err()
}

func (r *replicaOf) Err() error {
	if r.down.Load() {
		return errors.New("the replica is down")
	}
	return nil
}

func (*replicaOf) Close() error { return nil }

// TestReplica shows what comes from a replica: stats, but neither the jobs nor the limit of ready ones. If the replica is
// down, stats come from the primary, and status shows why.
func TestReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replicaOf{}
		o := options(memory.New())
		o.Databases["main"] = Database{Backend: o.Databases["main"].Backend, Replica: r}
		o.Queues["q"] = Queue{MaxReady: 1}
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		if got := c.call(`{"op":"stats","queue":"q"}`); len(got.Queues) != 1 || got.Queues[0]["done"] != 7.0 || got.Queues[0]["ready"] != 0.0 {
			t.Errorf("stats of the replica: %+v", got)
		}
		if got := c.call(`{"op":"peek"}`); len(got.Jobs) != 1 {
			t.Errorf("peek shows %+v", got)
		}
		time.Sleep(2 * depth.ReadyAge)
		c.refused("busy", `{"op":"enqueue","queue":"q"}`)
		if text := s.Bridge.status().Databases[0].ReplicaError; text != "" {
			t.Errorf("status shows %q", text)
		}
		r.down.Store(true)
		if got := c.call(`{"op":"stats","queue":"q"}`); len(got.Queues) != 1 || got.Queues[0]["done"] != 0.0 || got.Queues[0]["ready"] != 1.0 {
			t.Errorf("stats of the primary: %+v", got)
		}
		if text := s.Bridge.status().Databases[0].ReplicaError; text != "the replica is down" {
			t.Errorf("status shows %q", text)
		}
	})
}
