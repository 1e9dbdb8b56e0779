package bridge

import (
	"context"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
)

// counting is a database that counts the queries for queue depths.
type counting struct {
	*faulty
	stats  atomic.Int32
	broken atomic.Bool
	gate   atomic.Pointer[chan struct{}] // Stats waits for it first
}

func (c *counting) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	c.stats.Add(1)
	if gate := c.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if c.broken.Load() {
		return nil, errDown
	}
	return c.Backend.Stats(ctx, queue)
}

// depthsOf returns the gauges of a queue's depth, by state.
func depthsOf(t *testing.T, b *Bridge, queue string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for key, v := range figures(t, b) {
		if rest, ok := strings.CutPrefix(key, "queue_jobs{database=main,queue="+queue+",state="); ok {
			out[strings.TrimSuffix(rest, "}")] = v
		}
	}
	return out
}

// TestDepthsAreReadByOne shows that one of three sidecars of a database reports the depths, however often they are
// scraped. When it stopRun, another one does.
func TestDepthsAreReadByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &counting{faulty: &faulty{Backend: memory.New()}}
		var all []*sidecar
		var ends []*counting
		for range 3 {
			c := &counting{faulty: &faulty{Backend: db.Backend}}
			all, ends = append(all, start(t, options(c))), append(ends, c)
		}
		c := all[0].dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"},{"queue":"q","delay_ms":60000}]}`)
		tellers := func() (who []int) {
			for i, s := range all {
				if ends[i].heartbeat.Load() != nil {
					continue // it is dead
				}
				if d := depthsOf(t, s.Bridge, "q"); len(d) > 0 {
					who = append(who, i)
					if want := map[string]float64{"ready": 2, "blocked": 0, "scheduled": 1, "claimed": 0, "dead": 0, "done": 0}; !maps.Equal(d, want) {
						t.Errorf("sidecar %d reports %v, want %v", i, d, want)
					}
				}
			}
			if len(who) > 1 {
				t.Fatalf("sidecars %v tell the depths, want one of them", who)
			}
			return who
		}
		teller := func() int { // which one it is, as soon as it is known
			t.Helper()
			for range 10 * DefaultSidecarTimeout / time.Second {
				if who := tellers(); len(who) == 1 {
					return who[0]
				}
				time.Sleep(time.Second)
			}
			t.Fatal("no sidecar reports the depths")
			return -1
		}
		first := teller()
		for range 20 {
			if who := tellers(); len(who) != 1 || who[0] != first {
				t.Fatalf("sidecars %v tell the depths now, before it was %d", who, first)
			}
		}
		for i, e := range ends {
			if n := e.stats.Load(); i == first && n != 1 || i != first && n != 0 {
				t.Errorf("sidecar %d asked for the depths %d times, and %d reads them", i, n, first)
			}
		}
		ends[first].heartbeat.Store(&errDown) // it is alive, but the others can't distinguish it from a dead one
		second := teller()
		if d := depthsOf(t, all[first].Bridge, "q"); len(d) > 0 {
			t.Errorf("the one that does not reach the database reports %v", d)
		}
		ends[first].heartbeat.Store(nil)
		eventually(t, func() bool { return all[first].Health().Databases[0].Reachable })
		for range 5 {
			time.Sleep(time.Second)
			if who := tellers(); len(who) != 1 || who[0] != second {
				t.Fatalf("after the first came back sidecars %v tell the depths, before it was %d", who, second)
			}
		}
		if err := func() error { all[second].stop(); return <-all[second].done }(); err != nil {
			t.Fatal(err)
		}
		all[second].done <- nil // the end of the test waits for it
		ends[second].heartbeat.Store(&errDown)
		if third := teller(); third == second {
			t.Error("a sidecar that ended reports the depths")
		}
	})
}

// TestDepthsOfFailedReadings shows that the old depths are reported for a while, and that the failure is counted.
func TestDepthsOfFailedReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &counting{faulty: &faulty{Backend: memory.New()}}
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		eventually(t, func() bool { return depthsOf(t, s.Bridge, "q")["ready"] == 1 })
		p := s.pipeline()
		db.broken.Store(true)
		time.Sleep(depth.ReadEvery)
		if stats, _, err := p.QueueDepths(); err != nil || len(stats) != 1 || stats[0].Ready != 1 {
			t.Errorf("after a failure: %+v, %v", stats, err)
		}
		if n := figures(t, s.Bridge)["queue_stats_read_failures_total{database=main}"]; n != 1 {
			t.Errorf("%v failures counted, want 1", n)
		}
		time.Sleep(depth.MaxAge)
		if stats, known, err := p.QueueDepths(); known || err != nil || stats != nil {
			t.Errorf("old depths are reported: %+v, %v", stats, err)
		}
		if all := figures(t, s.Bridge); all["queue_stats_leader{database=main}"] != 0 {
			t.Error("it claims to lead, and reports no depths")
		}
	})
}

// TestDepthsOfSlowReadings shows that metrics wait a limited time for a reading. Then they report the depths of the
// reading before, or an error. The reading goes on. If it fails, metrics report that there are no depths.
func TestDepthsOfSlowReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &counting{faulty: &faulty{Backend: memory.New()}}
		s := start(t, options(db))
		s.dial(t).call(`{"op":"enqueue","queue":"q"}`)
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(s.Metrics())
		gather := func() (depths bool, err error) {
			t.Helper()
			before := time.Now()
			families, err := r.Gather()
			if took := time.Since(before); took > depth.MaxWait+heartbeat.FirstWait {
				t.Errorf("metrics waited for %v", took)
			}
			for _, f := range families {
				depths = depths || f.GetName() == "qsidecar_queue_jobs"
			}
			return depths, err
		}
		held := func() chan struct{} {
			gate := make(chan struct{})
			db.gate.Store(&gate)
			return gate
		}
		gate := held()
		eventually(t, func() bool { _, _ = gather(); return db.stats.Load() > 0 })
		if depths, err := gather(); depths || err == nil || !strings.Contains(err.Error(), "ask again") || db.stats.Load() != 1 {
			t.Fatalf("metrics without the depths: %v, %v, %d readings", depths, err, db.stats.Load())
		}
		close(gate)
		synctest.Wait()
		if depths, err := gather(); !depths || err != nil || db.stats.Load() != 1 {
			t.Fatalf("after the reading: %v, %v, %d readings", depths, err, db.stats.Load())
		}
		held()
		time.Sleep(depth.ReadEvery)
		if depths, err := gather(); !depths || err != nil || db.stats.Load() != 2 {
			t.Fatalf("while the second is slow: %v, %v, %d readings", depths, err, db.stats.Load())
		}
		time.Sleep(depth.ReadTimeout + depth.MaxAge)
		if depths, err := gather(); depths || err != nil {
			t.Fatalf("after a reading that failed: %v, %v", depths, err)
		}
		if all := figures(t, s.Bridge); all["queue_stats_leader{database=main}"] != 0 || all["queue_stats_read_failures_total{database=main}"] == 0 {
			t.Error("metrics without the depths do not say that reading them failed")
		}
	})
}

// meeting is a database that, when begun is set, returns its depths only while another one is also queried for its
// own.
type meeting struct {
	*metered
	begun *atomic.Bool
	came  chan<- struct{}
	meet  <-chan struct{}
}

func (m *meeting) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	if !m.begun.Load() {
		return m.Backend.Stats(ctx, queue)
	}
	m.came <- struct{}{}
	select {
	case <-m.meet:
		return m.Backend.Stats(ctx, queue)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// TestDepthsOfSeveralDatabases shows that all databases are queried at the same time, so that metrics wait only once
// for late ones, however many there are.
func TestDepthsOfSeveralDatabases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Bool
		one, other := make(chan struct{}, 9), make(chan struct{}, 9)
		database := func(id string, came chan<- struct{}, meet <-chan struct{}) Database {
			m := &metered{Backend: memory.New(), id: id}
			m.u.Store(&backends.Usage{})
			return Database{Backend: &meeting{metered: m, begun: &begun, came: came, meet: meet}}
		}
		o := options(nil)
		o.Databases = map[string]Database{"main": database("BBBBBBBBBBB", one, other), "second": database("CCCCCCCCCCC", other, one)}
		o.Queues = map[string]Queue{"*": {Database: "main"}, "s": {Database: "second"}}
		s := start(t, o)
		eventually(t, func() bool { // this sidecar reads the depths of both
			all := figures(t, s.Bridge)
			return all["queue_stats_reads_total{database=main}"] > 0 && all["queue_stats_reads_total{database=second}"] > 0
		})
		begun.Store(true)
		time.Sleep(depth.ReadEvery)
		figures(t, s.Bridge)
		all := figures(t, s.Bridge) // the counters of the queries of that one
		for _, name := range []string{"main", "second"} {
			if n := all["queue_stats_read_failures_total{database="+name+"}"]; n != 0 {
				t.Errorf("%s was asked alone", name)
			}
		}
		if len(one)+len(other) > 0 {
			t.Error("one of them was not asked")
		}
	})
}
