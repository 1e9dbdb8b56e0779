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

// endless is a database for this benchmark only. It has a job for every claim and forgets it.
type endless struct{ n atomic.Int64 }

func (e *endless) Info() backends.Info {
	return backends.Info{Engine: "endless", Database: "AAAAAAAAAAA", Prefetch: true, Concurrent: true}
}

func (e *endless) Commit(_ context.Context, c backends.Batch) (r backends.Results, err error) {
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

// BenchmarkClaimAck measures the cost of a job in the sidecar without the database: 32 workers claim and ack one job
// each, on a database that costs nothing. The workers do little more than the system calls.
func BenchmarkClaimAck(b *testing.B) {
	s := start(b, unixOptions(b, &endless{}))
	var todo atomic.Int64
	todo.Store(int64(b.N))
	var wg sync.WaitGroup
	errs := make(chan error, 32)
	b.ReportAllocs()
	b.ResetTimer()
	for range 32 {
		conn, err := net.Dial("unix", s.path)
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		wg.Go(func() {
			if err := claimAndAck(conn, &todo); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	select {
	case err := <-errs:
		b.Fatal(err)
	default:
	}
}

// claimAndAck speaks just enough msgpack for it.
func claimAndAck(conn net.Conn, todo *atomic.Int64) error {
	claim := frame("\x83\xa2op\xa5claim\xa5queue\xa4mail\xa7wait_ms\xcd\x03\xe8")
	in := make([]byte, 64<<10)
	for todo.Add(-1) >= 0 {
		reply, err := exchange(conn, claim, in)
		if err != nil {
			return err
		}
		at := bytes.Index(reply, []byte("\xa5lease"))
		if at < 0 {
			return fmt.Errorf("no job: %q", reply)
		}
		lease := reply[at+6:]
		switch {
		case lease[0] == 0xd9:
			lease = lease[:2+int(lease[1])]
		case lease[0]&0xe0 == 0xa0:
			lease = lease[:1+int(lease[0]&0x1f)]
		default:
			return fmt.Errorf("no lease: %q", reply)
		}
		if reply, err = exchange(conn, frame("\x82\xa2op\xa3ack\xa5lease"+string(lease)), in); err != nil {
			return err
		}
		if !bytes.Contains(reply, []byte("\xa2ok\xc3")) {
			return fmt.Errorf("not acked: %q", reply)
		}
	}
	return nil
}

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func exchange(conn net.Conn, out, in []byte) ([]byte, error) {
	if _, err := conn.Write(out); err != nil {
		return nil, err
	}
	n, err := io.ReadAtLeast(conn, in, 4)
	if err != nil {
		return nil, err
	}
	size := 4 + int(binary.BigEndian.Uint32(in))
	if n < size {
		if _, err := io.ReadFull(conn, in[n:size]); err != nil {
			return nil, err
		}
	}
	return in[4:size], nil
}
