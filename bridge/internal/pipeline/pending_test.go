package pipeline

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
)

// TestSizesOfWrites shows that headers, keys, errors and results count towards the memory of waiting writes.
func TestSizesOfWrites(t *testing.T) {
	job := backends.NewJob{Key: "123", Payload: []byte("45"), Headers: map[string]string{"67": "8901"}}
	for _, x := range []struct {
		write backends.Write
		want  int64
	}{
		{backends.Enqueue{Jobs: []backends.NewJob{job, job}}, 22},
		{backends.Ack{Result: []byte("123"), Enqueue: []backends.NewJob{job}}, 14},
		{backends.Nack{Error: "123"}, 3},
	} {
		if got := sizeOf(x.write).bytes; got != x.want {
			t.Errorf("%+v has %d bytes, want %d", x.write, got, x.want)
		}
	}
}

// TestSettlesPassEnqueues shows that settles get memory while large enqueues wait for it.
func TestSettlesPassEnqueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExecutor(executorConfig{loops: newLoops(backends.Info{}), times: heartbeat.NewTimes(30*time.Second, 0)})
		payload := make([]byte, 40<<20)
		large := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: payload}}}
		var stored atomic.Int32
		for range 5 {
			go func() {
				if err := e.reserve(t.Context(), &PendingWrite{write: large}, 0); err == nil {
					stored.Add(1)
				}
			}()
		}
		synctest.Wait()
		settled := make(chan error, 1)
		go func() {
			err := e.reserve(t.Context(), &PendingWrite{write: backends.Ack{Leases: make([]backends.Lease, 1), Result: []byte("x")}}, 0)
			settled <- err
		}()
		synctest.Wait()
		select {
		case err := <-settled:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("an ack waits for room behind enqueues, of which %d have some", stored.Load())
		}
	})
}

// TestSettlesPassLargeSettles shows that small settles get memory while acks with large results or follow-up jobs
// wait for it.
func TestSettlesPassLargeSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newExecutor(executorConfig{loops: newLoops(backends.Info{}), times: heartbeat.NewTimes(30*time.Second, 0)})
		one := make([]backends.Lease, 1)
		for range 50 {
			go func() {
				_ = e.reserve(t.Context(), &PendingWrite{write: backends.Ack{Leases: one, Result: make([]byte, 4<<20)}}, 0)
			}()
		}
		synctest.Wait()
		settled := make(chan error, 1)
		go func() {
			err := e.reserve(t.Context(), &PendingWrite{write: backends.Ack{Leases: one, Result: []byte("x")}}, 0)
			settled <- err
		}()
		synctest.Wait()
		select {
		case err := <-settled:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("a small ack waits for room behind large ones")
		}
	})
}

// TestStatesOfAWrite lists every transition of a pending write. Those that return false leave the outcome to another one:
// a commit answers a write that is overdue, and no commit takes one that is abandoned.
func TestStatesOfAWrite(t *testing.T) {
	for _, x := range []struct {
		what     string
		do       func(s *state) bool
		from, to state
		ok       bool
	}{
		{"take", (*state).take, queued, committing, true},
		{"take", (*state).take, committing, committing, false},
		{"take", (*state).take, abandoned, abandoned, false},
		{"take", (*state).take, overdue, overdue, false},
		{"putBack", (*state).putBack, queued, queued, false},
		{"putBack", (*state).putBack, committing, queued, true},
		{"putBack", (*state).putBack, abandoned, abandoned, false},
		{"putBack", (*state).putBack, overdue, overdue, false},
		{"expire", (*state).expire, queued, abandoned, true},
		{"expire", (*state).expire, committing, overdue, false},
	} {
		s := x.from
		if ok := x.do(&s); ok != x.ok || s != x.to {
			t.Errorf("%s of a write in state %d: state %d, %v; want %d, %v", x.what, x.from, s, ok, x.to, x.ok)
		}
	}
}
