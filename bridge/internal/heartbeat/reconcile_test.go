package heartbeat

import (
	"log/slog"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
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
