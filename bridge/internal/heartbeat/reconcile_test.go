package heartbeat

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// TestSettledJobsAreNotUnknown shows that a job that is settled between the query for the claimed rows and their
// comparison is not released. A claimed row without an entry in the lease table is.
func TestSettledJobsAreNotUnknown(t *testing.T) {
	for _, settled := range []bool{true, false} {
		db := memory.New()
		const host = backends.Identity(7)
		var released []backends.Lease
		k := New(Config{
			Backend: backendref.New(db, nil, nil),
			Times:   NewTimes(20*time.Second, 0),
			Leases:  lease.NewTable(func(map[string]string) (string, string) { return "", "" }),
			Log:     slog.New(slog.DiscardHandler),
			Release: func(_ backends.Identity, jobs []backends.ClaimedJob) int {
				for _, j := range jobs {
					released = append(released, j.Lease)
				}
				return len(jobs)
			},
		})
		commit := func(b backends.CommitContent) backends.Results {
			t.Helper()
			res, err := db.Commit(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		if _, err := db.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: host, Kind: backends.HeartbeatJoin, Timeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
		commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
		slots := []backends.Slot{{Token: backends.Token{Sidecar: host, Number: 1}}}
		k.Leases.Expect(slots)
		res := commit(backends.CommitContent{Sidecar: host, Claims: []backends.Claim{{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 3}}, Slots: slots, MaxBytes: 1 << 20, MaxPayload: 1 << 20}}})
		jobs := res.Claims[0].Jobs
		if len(jobs) != 1 || !k.Leases.Give(jobs, new(quota.Session), true, time.Now()) {
			t.Fatalf("claimed %+v", res)
		}
		rows, err := db.ClaimedBy(t.Context(), host, "", claimedPage)
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		leases := []backends.Lease{jobs[0].Lease()}
		if settled {
			commit(backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases}}})
		}
		k.Leases.Remove(leases)
		if err := k.releaseUnknown(t.Context(), host, "", k.Leases.Unknown(rows)); err != nil {
			t.Fatal(err)
		}
		if settled != (len(released) == 0) {
			t.Errorf("settled: %v, given back: %v", settled, released)
		}
	}
}

// manyClaims is a slow database with claimed rows, of which the sidecar has no record.
type manyClaims struct {
	backends.Backend
	rows []backends.ClaimedJob
	took time.Duration // of each query for them
}

func (m *manyClaims) ClaimedBy(ctx context.Context, _ backends.Identity, after string, limit int) (page []backends.ClaimedJob, err error) {
	select {
	case <-time.After(m.took):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, r := range m.rows {
		if r.Lease.Job > after && len(page) < limit {
			page = append(page, r)
		}
	}
	return page, nil
}

// TestManyClaimsDelayNoHeartbeat shows that the heartbeat of a sidecar with very many claimed rows, in a slow database, is never late. The
// comparison of its claims goes on after the next heartbeat: each row without an entry is released, and a lease without a row is lost.
func TestManyClaimsDelayNoHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rows, host = 20 * claimedPage, backends.Identity(7)
		db := &manyClaims{Backend: memory.New(), took: time.Second}
		for i := range rows {
			db.rows = append(db.rows, backends.ClaimedJob{Lease: backends.Lease{Job: fmt.Sprintf("%06d", i), Token: backends.Token{Sidecar: host, Number: uint64(i)}}})
		}
		released := map[backends.Token]int{}
		var lost atomic.Int64
		began := time.Now()
		m := metrics.New().Databases.Of("db")
		k := New(Config{
			Backend: backendref.New(db, nil, nil),
			Times:   NewTimes(30*time.Second, 0),
			Leases:  lease.NewTable(func(map[string]string) (string, string) { return "", "" }),
			Metrics: func() *metrics.Database { return m },
			Log:     slog.New(slog.DiscardHandler),
			Clock:   func() time.Duration { return time.Since(began) },
			Revived: func() {},
			Lost:    func(all lease.Lost) { lost.Add(int64(len(all))) },
			Release: func(_ backends.Identity, jobs []backends.ClaimedJob) int {
				for i := range jobs {
					released[jobs[i].Lease.Token]++
				}
				return len(jobs)
			},
		})
		gone := backends.Job{ID: "gone", Token: backends.Token{Sidecar: host, Number: rows}}
		k.Leases.Expect([]backends.Slot{{Token: gone.Token}})
		if !k.Leases.Give([]backends.Job{gone}, new(quota.Session), false, time.Now()) {
			t.Fatal("no lease")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		synctest.Wait()
		for lost.Load() == 0 && time.Since(began) < 10*time.Minute {
			time.Sleep(time.Second)
			if synctest.Wait(); k.Fresh() == 0 {
				t.Fatalf("the heartbeat is late after %v", time.Since(began))
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := lost.Load(); len(released) != rows || n != 1 {
			t.Errorf("%d of %d rows are released, %d leases lost, want all and 1", len(released), rows, n)
		}
	})
}
