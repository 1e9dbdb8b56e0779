package bridge

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestSizesOfWrites: headers and keys, errors and results are part of what waits in memory.
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

// TestSettlesPassEnqueues: where large enqueues wait for room, settles find some.
func TestSettlesPassEnqueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &committer{writes: newLane(), room: semaphore.NewWeighted(queueBytes), settles: semaphore.NewWeighted(settleBytes),
			times: newLeaseTimes(30*time.Second, 0)}
		payload := make([]byte, 40<<20)
		large := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: payload}}}
		var stored atomic.Int32
		for range 5 {
			go func() {
				if _, err := c.reserve(t.Context(), nil, large, 0); err == nil {
					stored.Add(1)
				}
			}()
		}
		synctest.Wait()
		settled := make(chan error, 1)
		go func() {
			_, err := c.reserve(t.Context(), nil, backends.Ack{Leases: make([]backends.Lease, 1), Result: []byte("x")}, 0)
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

// TestSettlesPassLargeSettles: where acks with large results or follow-up jobs wait for room, small
// settles find some.
func TestSettlesPassLargeSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &committer{writes: newLane(), room: semaphore.NewWeighted(queueBytes), settles: semaphore.NewWeighted(settleBytes),
			times: newLeaseTimes(30*time.Second, 0)}
		one := make([]backends.Lease, 1)
		for range 50 {
			go func() {
				_, _ = c.reserve(t.Context(), nil, backends.Ack{Leases: one, Result: make([]byte, 4<<20)}, 0)
			}()
		}
		synctest.Wait()
		settled := make(chan error, 1)
		go func() {
			_, err := c.reserve(t.Context(), nil, backends.Ack{Leases: one, Result: []byte("x")}, 0)
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

// inBites is a backend whose retry takes many transactions.
type inBites struct {
	*memory.Backend
	bites int
	takes func() <-chan time.Time // a transaction
}

func (b *inBites) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	for range b.bites {
		select {
		case <-b.takes():
			count++
			c.Progressed()
		case <-ctx.Done():
			return count, true, backends.Unavailable(context.Cause(ctx))
		}
	}
	return count, true, nil
}

// TestRetryOfManyIsNotLimited: a command may take as long as it goes on. When the sidecar
// stops it ends, and its answer has the number of jobs that are done.
func TestRetryOfManyIsNotLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &inBites{Backend: memory.New(), bites: 2, takes: func() <-chan time.Time { return time.After(inspectTimeout * 2 / 3) }}
		s := start(t, options(db))
		c := s.dial(t)
		if r := c.call(`{"op":"retry","queue":"q","all":true}`); !r.OK || r.Count != 2 {
			t.Errorf("%+v", r)
		}
		db.bites = 100
		c.send(`{"op":"retry","queue":"q","all":true}`)
		time.Sleep(inspectTimeout)
		s.stop()
		for {
			r := c.receive()
			if r.Event != "" {
				continue
			}
			if r.Error.Code != "unavailable" || !strings.Contains(r.Error.Message, "2 jobs are done") {
				t.Errorf("of a sidecar that stops: %+v", r.Error)
			}
			break
		}
	})
}
