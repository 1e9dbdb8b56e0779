package adopted

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestLockedRowAmongAcks locks a row that a worker acks repeatedly. In the meantime 64 other
// workers process all their jobs. It prints their rate and the rate without the lock.
func TestLockedRowAmongAcks(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	s.Queues = "  e:" + adopt.SystemE.Config
	jobs := kit.Size(10_000)
	db := databases.Owners(t, p.URL)
	db.Script(fmt.Sprintf(adopt.SystemE.DDL, 2*jobs+1))
	a := s.Start("a")
	w := a.Dial()
	lease := w.Must(kit.Msg{"op": "claim", "queue": "e"}).Jobs[0].Lease
	kit.Figure(t, "no row is locked: %s", ackAmong(t, a, jobs))

	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() // does nothing the second time
	if _, err := tx.ExecContext(t.Context(), "SELECT 1 FROM my_queue WHERE queue_item_id = 1 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			r, err := w.Call(kit.Msg{"op": "ack", "lease": lease})
			if err != nil || r.Error == nil || r.Error.Code != string(protocol.CodeUnavailable) {
				t.Errorf("the ack of the locked row: %+v, %v", r, err)
				return
			}
		}
	})
	kit.Figure(t, "a row is locked: %s", ackAmong(t, a, jobs))
	stop.Store(true)
	wg.Wait()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	w.Must(kit.Msg{"op": "ack", "lease": lease})
	if left := p.Query(p.URL, adopt.SystemE.CountOpen); left[0] != "0" {
		t.Errorf("%s jobs are left", left[0])
	}
}

// ackAmong makes 64 workers claim and ack the jobs, and returns the rate.
func ackAmong(t *testing.T, a *kit.Sidecar, jobs int) string {
	t.Helper()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(jobs))
	took := make([][]time.Duration, 64)
	began := kit.Monotonic()
	for i := range took {
		w := a.Dial()
		wg.Go(func() {
			defer w.Close()
			for left.Add(-1) >= 0 {
				r, err := w.Call(kit.Msg{"op": "claim", "queue": "e", "wait_ms": kit.WaitMS()})
				if err != nil || len(r.Jobs) != 1 {
					t.Errorf("a claim: %+v, %v", r, err)
					return
				}
				at := kit.Monotonic()
				if r, err = w.Call(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease}); err != nil || r.Error != nil {
					t.Errorf("an ack: %+v, %v", r.Error, err)
					return
				}
				took[i] = append(took[i], kit.Since(at))
			}
		})
	}
	wg.Wait()
	rate := float64(jobs) / kit.Since(began).Seconds()
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) < jobs {
		t.Fatalf("%d jobs of %d were acked", len(all), jobs)
	}
	return fmt.Sprintf("%.0f acks/s, p99 %v", rate, all[len(all)*99/100].Round(time.Millisecond))
}
