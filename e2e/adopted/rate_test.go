package adopted

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
)

// TestAdoptedRate prints the rates at which 32 own consumers, and 32 workers on a sidecar, process
// the table of system E.
func TestAdoptedRate(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	s.Queues = "  e:" + adopt.SystemE.Config
	jobs := kit.Size(20_000)
	db := databases.Owners(t, p.URL)
	db.Script(fmt.Sprintf(adopt.SystemE.DDL, jobs))
	const workers = 32
	ready := func() {
		p.Query(p.URL, "UPDATE my_queue SET state = 'waiting', worker_name = NULL, finished_dt = NULL")
		p.Query(p.URL, "VACUUM ANALYZE my_queue")
	}
	own := perSecond(t, jobs, workers, func() (func() (bool, error), func()) {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		own := adopt.OwnConsumers["e"]
		return func() (bool, error) {
			items, err := own.Take(t.Context(), c, "own", 1)
			if err == nil && len(items) > 0 {
				err = own.Finish(t.Context(), c, items[0], "own")
			}
			return len(items) > 0, err
		}, func() { _ = c.Close() }
	})
	ready()
	a := s.Start("a")
	through := perSecond(t, jobs, workers, func() (func() (bool, error), func()) {
		w := a.Dial()
		return func() (bool, error) {
			r, err := w.Call(kit.Msg{"op": "claim", "queue": "e"})
			if err == nil && r.Error != nil {
				err = r.Error
			}
			if err != nil || len(r.Jobs) == 0 {
				return false, err
			}
			r, err = w.Call(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
			if err == nil && r.Error != nil {
				err = r.Error
			}
			return true, err
		}, func() { _ = w.Close() }
	})
	if left := p.Query(p.URL, adopt.SystemE.CountOpen); left[0] != "0" {
		t.Errorf("%s jobs are left", left[0])
	}
	kit.Figure(t, "system E, %d workers: %.0f jobs/s by its own consumers, %.0f through the sidecar (%.1f times)", workers, own, through, through/own)
}

// perSecond runs workers until no job is left and returns the rate.
func perSecond(t *testing.T, jobs, workers int, begin func() (work func() (bool, error), end func())) float64 {
	t.Helper()
	var wg sync.WaitGroup
	var done atomic.Int64
	var works []func() (bool, error)
	for range workers {
		work, end := begin()
		defer end()
		works = append(works, work)
	}
	began := kit.Monotonic()
	for _, work := range works {
		wg.Go(func() {
			for {
				more, err := work()
				if err != nil {
					t.Error(errors.Join(errors.New("a worker ended"), err))
				}
				if err != nil || !more {
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if n := done.Load(); n != int64(jobs) {
		t.Errorf("%d jobs of %d were worked", n, jobs)
	}
	return float64(done.Load()) / kit.Since(began).Seconds()
}
