package bridge

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// endless is a database that costs nothing. It has a job for every claim and forgets it.
type endless struct {
	n          atomic.Int64
	noPrefetch bool
}

func (e *endless) Info() backends.Info {
	return backends.Info{Engine: "endless", Database: "AAAAAAAAAAA", Prefetch: !e.noPrefetch, Concurrent: true}
}

func (e *endless) Commit(_ context.Context, c backends.CommitContent) (r backends.Results, err error) {
	r.Writes = make([]backends.WriteResult, len(c.Writes))
	for _, claim := range c.Claims {
		res := backends.ClaimResult{Jobs: make([]backends.Job, len(claim.Slots))}
		for i := range res.Jobs {
			res.Jobs[i] = backends.Job{
				ID: strconv.FormatInt(e.n.Add(1), 10), Queue: claim.Queues[0].Queue, Token: claim.Slots[i].Token,
				Payload: make([]byte, 100), Attempt: 1, MaxAttempts: 20, Fence: 1, EnqueuedAt: time.Now(),
			}
		}
		r.Claims = append(r.Claims, res)
	}
	return r, nil
}

func (e *endless) Heartbeat(context.Context, backends.Heartbeat) (backends.HeartbeatResult, error) {
	return backends.HeartbeatResult{Alive: true}, nil
}

func (e *endless) ClaimedBy(context.Context, backends.Identity, string, int) ([]backends.ClaimedJob, error) {
	return nil, nil
}

func (e *endless) Maintain(context.Context, backends.Maintenance) (backends.MaintenanceResult, error) {
	return backends.MaintenanceResult{Next: -1}, nil
}

func (e *endless) Close() error { return nil }

// BenchmarkTrip measures the cost of a job in the sidecar without the database: 32 workers work one job at a time, on a
// database that costs nothing, and claim the next one with the ack. The workers do little more than the system calls.
func BenchmarkTrip(b *testing.B) {
	s := start(b, unixOptions(b, &endless{}))
	workers := make([]*tripWorker, 32)
	for i := range workers {
		workers[i] = newTripWorker(b, s.path)
	}
	var todo atomic.Int64
	todo.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for _, w := range workers {
		wg.Go(func() {
			for todo.Add(-1) >= 0 {
				if err := w.trip(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// tripWorker is a worker that speaks just enough msgpack, and allocates nothing for a job.
type tripWorker struct {
	conn    net.Conn
	in, out []byte
}

// newTripWorker connects a worker and claims its first job.
func newTripWorker(t testing.TB, path string) *tripWorker {
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w := &tripWorker{conn: conn, in: make([]byte, 64<<10), out: frame("\x83\xa2op\xa5claim\xa5queue\xa4mail\xa7wait_ms\xcd\x03\xe8")}
	if err := w.exchange(); err != nil {
		t.Fatal(err)
	}
	return w
}

// trip acks the worker's job and claims the next one.
func (t *tripWorker) trip() error { return t.exchange() }

// exchange sends a request and makes the next one from the lease in its reply.
func (t *tripWorker) exchange() error {
	if _, err := t.conn.Write(t.out); err != nil {
		return err
	}
	n, err := io.ReadAtLeast(t.conn, t.in, 4)
	if err != nil {
		return err
	}
	size := 4 + int(binary.BigEndian.Uint32(t.in))
	if n < size {
		if _, err := io.ReadFull(t.conn, t.in[n:size]); err != nil {
			return err
		}
	}
	reply := t.in[4:size]
	at := bytes.Index(reply, []byte("\xa5lease\xd9"))
	if at < 0 {
		return fmt.Errorf("no job: %q", reply)
	}
	lease := reply[at+6:]
	t.out = append(t.out[:4], "\x83\xa2op\xa3ack\xa5claim\x81\xa5queue\xa4mail\xa5lease"...)
	t.out = append(t.out, lease[:2+int(lease[1])]...)
	binary.BigEndian.PutUint32(t.out, uint32(len(t.out)-4))
	return nil
}

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}
