package bridge

import (
	"cmp"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// figures returns the values of all series, by name and labels; of a histogram its count.
func figures(t testing.TB, b *Bridge) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(b.Metrics())
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			all[strings.TrimPrefix(f.GetName(), "qsidecar_")+"{"+strings.Join(labels, ",")+"}"] = v
		}
	}
	return all
}

// counted checks the counters of a queue, and that all others of it are 0.
func (s *sidecar) counted(t *testing.T, queue string, want map[string]float64) {
	t.Helper()
	all := figures(t, s.Bridge)
	for _, name := range []string{"jobs_enqueued_total", "jobs_duplicate_total", "jobs_replaced_total", "jobs_pending_total", "jobs_claimed_total", "jobs_acked_total", "jobs_nacked_total",
		"jobs_dead_total", "jobs_returned_total", "jobs_lost_total/disconnected", "jobs_lost_total/timed_out", "jobs_lost_total/lease_ended", "jobs_lost_total/too_large"} {
		name, cause, _ := strings.Cut(name, "/")
		key := name + "{database=main,queue=" + queue + "}"
		short := strings.TrimSuffix(strings.TrimPrefix(name, "jobs_"), "_total")
		if cause != "" {
			key, short = name+"{cause="+cause+",database=main,queue="+queue+"}", cause
		}
		if got, ok := all[key]; !ok || got != want[short] {
			t.Errorf("%s is %v (%v), want %v", key, got, ok, want[short])
		}
	}
}

// TestCountsOfSecondEnqueues shows that an enqueue whose content isn't lost doesn't count as a duplicate.
func TestCountsOfSecondEnqueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		again := func() { c.call(`{"op":"enqueue","queue":"q","key":"k","on_conflict":"replace"}`) }
		again()
		again()
		c.call(`{"op":"enqueue","queue":"q","key":"k"}`)
		s.counted(t, "q", map[string]float64{"enqueued": 1, "replaced": 1, "duplicate": 1})
		held := c.claim1("q")
		again()
		again()
		s.counted(t, "q", map[string]float64{"enqueued": 1, "replaced": 1, "duplicate": 1, "pending": 2, "claimed": 1})
		c.call(`{"op":"ack","lease":%q}`, held.Lease)
		s.counted(t, "q", map[string]float64{"enqueued": 2, "replaced": 1, "duplicate": 1, "pending": 2, "claimed": 1, "acked": 1})
	})
}

// TestCounts shows that each event of a job is counted once, after the database has it.
func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Queues["q"] = Queue{Backoff: time.Millisecond, MaxAttempts: 3}
		s := start(t, o)
		s.counted(t, "q", nil)
		c := s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q","key":"k"},{"queue":"q"},{"queue":"q"},{"queue":"q","key":"k"}]}`)
		s.counted(t, "q", map[string]float64{"enqueued": 3, "duplicate": 1})
		a, b := c.claim1("q"), c.claim1("q")
		s.counted(t, "q", map[string]float64{"enqueued": 3, "duplicate": 1, "claimed": 2})
		c.call(`{"op":"ack","lease":"%s","enqueue":[{"queue":"q","delay_ms":3600000}]}`, a.Lease)
		c.refused("lease_lost", `{"op":"ack","lease":"%s"}`, a.Lease)
		c.call(`{"op":"nack","leases":["%s","%s"],"dead":true}`, b.Lease, a.Lease)
		s.counted(t, "q", map[string]float64{"enqueued": 4, "duplicate": 1, "claimed": 2, "acked": 1, "nacked": 1, "dead": 1})
		d := c.claim1("q")
		c.call(`{"op":"nack","lease":"%s","snooze":true,"delay_ms":0}`, d.Lease)
		want := map[string]float64{"enqueued": 4, "duplicate": 1, "claimed": 3, "acked": 1, "nacked": 2, "dead": 1}
		s.counted(t, "q", want)

		other := s.dial(t)
		other.claim1("q")
		other.call(`{"op":"bye"}`)
		want["claimed"], want["returned"] = 4, 1
		s.counted(t, "q", want)
		gone := s.dial(t)
		gone.claim1("q")
		gone.conn.Close()
		want["claimed"], want["disconnected"] = 5, 1
		eventually(t, func() bool {
			return figures(t, s.Bridge)["jobs_lost_total{cause=disconnected,database=main,queue=q}"] == 1
		})
		s.counted(t, "q", want)
		// A connection is closed after its jobs were released.
		eventually(t, func() bool { return figures(t, s.Bridge)["sessions{socket="+s.path+"}"] == 1 })

		all := figures(t, s.Bridge)
		for key, n := range map[string]float64{
			"stale_settles_total{database=main}":                 2,
			"job_run_duration_seconds{database=main,queue=q}":    3, // an ack, two nacks
			"claim_wait_duration_seconds{database=main,queue=q}": 5,
			"job_wait_duration_seconds{database=main,queue=q}":   5, // no attempt counted before
			"sessions_opened_total{}":                            3,
			"leases{database=main}":                              0,
			"draining{}":                                         0,
			"database_reachable{database=main}":                  1,
			"sidecar_timeout_seconds{database=main}":             30,
			"jobs_acked_total{database=main,queue=_unknown}":     0,
		} {
			if got, ok := all[key]; !ok || got != n {
				t.Errorf("%s is %v (%v), want %v", key, got, ok, n)
			}
		}
		if all["commit_duration_seconds{database=main}"] < 5 || all["commit_writes{database=main}"] < 5 {
			t.Errorf("commits: %v, with writes: %v", all["commit_duration_seconds{database=main}"], all["commit_writes{database=main}"])
		}
	})
}

// TestCountsOfSweepsAndClaims shows the counts of reaped jobs, and of jobs that are too large.
func TestCountsOfSweepsAndClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.MaxFrame = 64 << 10
		o.Queues["timed"] = Queue{Timeout: 20 * time.Millisecond, MaxAttempts: 1}
		b := o.Databases["main"].Backend
		if _, err := b.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{
			{Queue: "large", Payload: make([]byte, 1<<20)},
		}}}}); err != nil {
			t.Fatal(err)
		}
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"timed"}`)
		c.claim1("timed")
		c.call(`{"op":"claim","queue":"large"}`)
		s.counted(t, "large", map[string]float64{"too_large": 1, "dead": 1})
		eventually(t, func() bool { return figures(t, s.Bridge)["jobs_dead_total{database=main,queue=timed}"] == 1 })
		s.counted(t, "timed", map[string]float64{"enqueued": 1, "claimed": 1, "timed_out": 1, "dead": 1})
	})
}

// TestAcksOfOthersClaims shows that a lease of another sidecar is counted, although its queue is unknown. After it is
// bound here, the heartbeat finds out the queue.
func TestAcksOfOthersClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		o := options(db)
		first := start(t, o)
		c := first.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
		var leases []string
		for range 2 {
			leases = append(leases, c.call(`{"op":"claim","queue":"q","lease_ms":60000}`).Jobs[0].Lease)
		}
		second := start(t, options(db))
		d := second.dial(t)
		d.call(`{"op":"ack","lease":"%s"}`, leases[0])
		if n := figures(t, second.Bridge)["jobs_acked_total{database=main,queue=_unknown}"]; n != 1 {
			t.Errorf("%v acks of unknown queues, want 1", n)
		}
		d.call(`{"op":"extend","lease":"%s","bind":true}`, leases[1])
		eventually(t, func() bool {
			for _, x := range second.status().Sessions {
				for _, held := range x.Queues {
					if held.Queue == "q" {
						return true
					}
				}
			}
			return false
		})
		d.call(`{"op":"ack","lease":"%s"}`, leases[1])
		all := figures(t, second.Bridge)
		if n := all["jobs_acked_total{database=main,queue=q}"]; n != 1 {
			t.Errorf("%v acks of q, want 1", n)
		}
		if n := all["job_run_duration_seconds{database=main,queue=q}"]; n != 0 {
			t.Errorf("%v runs that began elsewhere", n)
		}
	})
}

// TestQueueLabels shows that auto-created queues have labels up to a limit, and configured ones always.
func TestQueueLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.QueueLabels = 3
		o.Queues["named"] = Queue{}
		s := start(t, o)
		c := s.dial(t)
		for i := range 9 {
			c.call(`{"op":"enqueue","queue":"made-up-%d"}`, i)
		}
		c.call(`{"op":"enqueue","queue":"named"}`)
		enqueued := func() map[string]float64 {
			all := figures(t, s.Bridge)
			maps.DeleteFunc(all, func(key string, _ float64) bool { return !strings.HasPrefix(key, "jobs_enqueued_total") })
			return all
		}
		key := func(queue string) string { return "jobs_enqueued_total{database=main,queue=" + queue + "}" }
		want := map[string]float64{key("made-up-0"): 1, key("made-up-1"): 1, key("made-up-2"): 1, key("named"): 1, key("_other"): 6}
		if got := enqueued(); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		// The config adds a queue that had no label, and drops one that had one: both continue to count.
		o.Queues = map[string]Queue{"*": {}, "made-up-8": {}}
		if err := s.Reload(o); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{"made-up-8", "named", "made-up-7"} {
			c.call(`{"op":"enqueue","queue":"%s"}`, q)
		}
		want[key("made-up-8")], want[key("named")], want[key("_other")] = 1, 2, 7
		if got := enqueued(); !maps.Equal(got, want) {
			t.Errorf("after a reload: %v, want %v", got, want)
		}
	})
}

// TestMetricsAreWellFormed checks the metrics by the rules of promlint.
func TestMetricsAreWellFormed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		c.claim1("q")
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(s.Metrics())
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	})
}

// metered reports the usage that the test sets.
type metered struct {
	*memory.Backend
	u  atomic.Pointer[backends.Usage]
	id string // of the database; empty: that of the memory backend
}

func (m *metered) Info() backends.Info {
	info := m.Backend.Info()
	info.Database = cmp.Or(m.id, info.Database)
	return info
}

func (m *metered) Usage() backends.Usage { return *m.u.Load() }

// TestUsageOverAReload shows that the counts of a Backend continue with its replacement.
func TestUsageOverAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		withUsage := func(u backends.Usage) *metered {
			m := &metered{Backend: db}
			m.u.Store(&u)
			return m
		}
		first := backends.Usage{Max: 8, InUse: 3, Idle: 2, Waits: 5, OldPrimaries: 9, Waited: 4 * time.Second, RoundTrips: backends.RoundTrips{Count: 10, Sum: time.Minute}}
		first.RoundTrips.Within[3], first.Retries[backends.RetryConflict] = 7, 6
		o := options(withUsage(first))
		s := start(t, o)
		want := map[string]float64{"pool_connections{database=main,state=idle}": 2, "pool_connections{database=main,state=in_use}": 3, "pool_connections_max{database=main}": 8,
			"pool_waits_total{database=main}": 5, "old_primaries_refused_total{database=main}": 9, "pool_wait_duration_seconds_total{database=main}": 4, "database_round_trip_duration_seconds{database=main}": 10,
			"transaction_retries_total{cause=conflict,database=main}": 6, "transaction_retries_total{cause=connection,database=main}": 0}
		check := func() {
			t.Helper()
			all := figures(t, s.Bridge)
			for key, n := range want {
				if got, ok := all[key]; !ok || got != n {
					t.Errorf("%s is %v (%v), want %v", key, got, ok, n)
				}
			}
		}
		check()
		o.Databases = map[string]Database{"main": {Backend: withUsage(backends.Usage{Max: 4, Waits: 1, RoundTrips: backends.RoundTrips{Count: 1}})}}
		if err := s.Reload(o); err != nil {
			t.Fatal(err)
		}
		want["pool_connections{database=main,state=idle}"], want["pool_connections{database=main,state=in_use}"], want["pool_connections_max{database=main}"] = 0, 0, 4
		want["pool_waits_total{database=main}"], want["database_round_trip_duration_seconds{database=main}"] = 6, 11
		check()
	})
}

// TestUsageByName shows that the usage of a database's Backends stays counted under the name that it had then. A
// reload can give the name to another database, give the database another name, or drop it.
func TestUsageByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		withUsage := func(id string, trips uint64) *metered {
			m := &metered{Backend: memory.New(), id: id}
			m.u.Store(&backends.Usage{Max: 8, RoundTrips: backends.RoundTrips{Count: trips}})
			return m
		}
		first, second := withUsage("BBBBBBBBBBB", 10), withUsage("CCCCCCCCCCC", 3)
		o := options(first)
		s := start(t, o)
		checkTrips := func(want map[string]float64) {
			t.Helper()
			all := figures(t, s.Bridge)
			for name, n := range want {
				if got, ok := all["database_round_trip_duration_seconds{database="+name+"}"]; !ok || got != n {
					t.Errorf("%s: %v trips (%v), want %v", name, got, ok, n)
				}
			}
		}
		reload := func(name string, b backends.Backend) {
			t.Helper()
			o.Databases = map[string]Database{name: {Backend: b}}
			o.Queues = map[string]Queue{"*": {Database: name}}
			if err := s.Reload(o); err != nil {
				t.Fatal(err)
			}
		}
		checkTrips(map[string]float64{"main": 10})
		reload("main", second)
		checkTrips(map[string]float64{"main": 13})
		eventually(t, func() bool { return len(s.config.Load().databases) == 1 }) // the first one was removed
		checkTrips(map[string]float64{"main": 13})
		reload("other", second)
		second.u.Store(&backends.Usage{Max: 8, RoundTrips: backends.RoundTrips{Count: 5}})
		checkTrips(map[string]float64{"main": 13, "other": 2})
		if _, ok := figures(t, s.Bridge)["pool_connections_max{database=main}"]; ok {
			t.Error("the pool of a database that is not configured any more is reported")
		}
	})
}

// TestCountOfReclaim shows that jobs that an operator reclaims count as returned, so that each delivery ends in
// one count.
func TestCountOfReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		j := c.claim1("q")
		s.dial(t).call(`{"op":"reclaim","queue":"q","ids":["%s"]}`, j.ID)
		s.counted(t, "q", map[string]float64{"enqueued": 1, "claimed": 1, "returned": 1})
		c.refused("lease_lost", `{"op":"ack","lease":"%s"}`, j.Lease)
		s.counted(t, "q", map[string]float64{"enqueued": 1, "claimed": 1, "returned": 1})
	})
}
