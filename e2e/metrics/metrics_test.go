package metrics

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
)

// tally is the counts of the workers, by "what queue".
type tally struct {
	mu  sync.Mutex
	all map[string]int
}

func (t *tally) add(what, queue string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[what+" "+queue] += n
}

// metricsRun is 32 workers that do everything that a job can go through, and count it.
type metricsRun struct {
	t      *testing.T
	socket string
	tally
	late atomic.Int64 // settles and extends that got lease_lost
	stop atomic.Bool
}

// TestMetricsEqualTheWork checks that after a run with acks, nacks, deaths, timeouts, lost
// connections, duplicates and reloads, the metrics equal the workers' counts. No counter ever
// decreases, and promtool reports nothing.
func TestMetricsEqualTheWork(t *testing.T) {
	t.Parallel()
	s, _ := kit.NewPostgresSite(t)
	place := filepath.Join(s.Dir, "admin.sock")
	s.Extra = "admin: {listen: " + place + "}\ndefaults: {max_attempts: 3, backoff: {initial: 5ms, max: 20ms}}\n"
	s.Queues = "  work: {}\n  slow: {timeout: 2s, max_attempts: 2}\n  \"*\": {}\n"
	a := s.Start("a")
	c := a.Dial()
	c.Must(kit.Msg{"op": "limit", "queue": "limited", "max_claimed": 1, "rate": "1/h"}) // for the metrics that only such queues have
	c.Enqueue("limited", 2)
	c.Must(kit.Msg{"op": "ack", "lease": c.Must(kit.Msg{"op": "claim", "queue": "limited", "max": 2}).Jobs[0].Lease})
	c.Must(kit.Msg{"op": "purge", "queue": "limited", "state": "ready"})
	scrape := scraping(t, admin.At(t, place)) // only now, because the sidecar keeps the statistics of the queues for 15 s
	r := &metricsRun{t: t, socket: a.Socket, tally: tally{all: map[string]int{}}}
	var producers, workers sync.WaitGroup
	producers.Go(func() { r.produce(kit.Size(20_000)) })
	for n := range 32 {
		workers.Go(func() { r.work(rand.New(rand.NewPCG(uint64(n), 1))) })
	}
	producers.Add(1)
	reloads := 0
	go func() { // the config changes while they work
		defer producers.Done()
		for ; reloads < 6; reloads++ {
			r.reload(a, reloads)
		}
	}()
	producers.Wait()
	kit.WaitProgress(t, "every job has ended", func() (now int, done bool) {
		left := 0
		for _, q := range c.Must(kit.Msg{"op": "stats"}).Queues {
			left += q.Ready + q.Scheduled + q.Claimed
		}
		return left, left == 0
	})
	r.stop.Store(true)
	workers.Wait()
	c.Must(kit.Msg{"op": "purge", "queue": "work", "state": "dead"}) // a purge deletes rows, but does not change a counter
	e := scrape.end()
	r.compare(e)
	runPromtool(t, e.Text, "check", "metrics")
	onThePage(e, t)
	kit.Figure(t, "%d jobs: the counters are what 32 workers counted; %d looks at them meanwhile and %d reloads, and none decreased",
		r.all["enqueued work"]+r.all["enqueued side"]+r.all["enqueued slow"], scrape.asked, reloads)
}

// produce enqueues jobs, some of them twice.
func (m *metricsRun) produce(n int) {
	w := m.dial()
	defer w.Close()
	for at := 0; at < n; {
		var jobs []kit.Msg
		for ; len(jobs) < 50 && at < n; at++ {
			switch {
			case at%10 == 0:
				jobs = append(jobs, kit.Msg{"queue": "work", "key": fmt.Sprint(at / 20)})
			case at%100 == 1:
				jobs = append(jobs, kit.Msg{"queue": "slow"})
			default:
				jobs = append(jobs, kit.Msg{"queue": "work"})
			}
		}
		rep, err := w.Call(kit.Msg{"op": "enqueue", "jobs": jobs})
		if err != nil || rep.Error != nil {
			m.t.Errorf("enqueue: %v, %+v", err, rep)
			return
		}
		for i, j := range rep.Jobs {
			m.add(map[bool]string{true: "duplicate", false: "enqueued"}[j.Duplicate], jobs[i]["queue"].(string), 1)
		}
	}
}

func (m *metricsRun) dial() *kit.Wire {
	w, err := kit.DialWire(m.socket)
	if err != nil {
		m.t.Error(err)
		m.stop.Store(true)
		return &kit.Wire{}
	}
	return w
}

// work claims one job after another and ends each in some way.
func (m *metricsRun) work(rnd *rand.Rand) {
	w := m.dial()
	for !m.stop.Load() {
		rep, err := w.Call(kit.Msg{"op": "claim", "queues": []string{"slow", "side", "work"}, "wait_ms": 100})
		if err != nil || rep.Error != nil {
			m.t.Errorf("claim: %v, %+v", err, rep)
			return
		}
		for _, j := range rep.Jobs {
			m.add("claimed", j.Queue, 1)
			if !m.end(w, j, rnd) {
				w.Close()
				w = m.dial()
			}
		}
	}
	w.Close()
}

// end ends a delivery in a random way. It returns false if the connection is closed.
func (m *metricsRun) end(w *kit.Wire, j kit.Job, rnd *rand.Rand) bool {
	last := j.Attempt == j.MaxAttempts
	if j.Queue == "slow" { // until its time limit is over
		for {
			rep := m.call(w, kit.Msg{"op": "extend", "lease": j.Lease})
			if rep.Error != nil {
				m.lost(rep)
				break
			}
		}
		m.ended("timed_out", j, last)
		return true
	}
	switch p := rnd.IntN(100); {
	case p < 60:
		m.settle(w, kit.Msg{"op": "ack", "lease": j.Lease})
		m.add("acked", j.Queue, 1)
		if p < 5 {
			m.lost(m.call(w, kit.Msg{"op": "ack", "lease": j.Lease})) // once more
		}
	case p < 70 && j.Queue == "work":
		rep := m.settle(w, kit.Msg{"op": "ack", "lease": j.Lease, "enqueue": []kit.Msg{{"queue": "side"}}})
		m.add("acked", j.Queue, 1)
		m.add("enqueued", "side", len(rep.Enqueued))
	case p < 80:
		m.settle(w, kit.Msg{"op": "nack", "lease": j.Lease, "error": "no"})
		m.add("nacked", j.Queue, 1)
		m.countDeath(j, last)
	case p < 84:
		m.settle(w, kit.Msg{"op": "nack", "leases": []string{j.Lease}, "dead": true})
		m.add("nacked", j.Queue, 1)
		m.countDeath(j, true)
	case p < 88:
		m.settle(w, kit.Msg{"op": "nack", "lease": j.Lease, "snooze": true, "delay_ms": 0})
		m.add("nacked", j.Queue, 1)
	case p < 94:
		m.ended("disconnected", j, last)
		return false // closes the connection
	default:
		m.settle(w, kit.Msg{"op": "bye"})
		m.add("returned", j.Queue, 1)
		return false
	}
	return true
}

func (m *metricsRun) call(w *kit.Wire, req kit.Msg) *kit.Reply {
	rep, err := w.Call(req)
	if err != nil {
		m.t.Errorf("%v: %v", kit.Brief(req), err)
		return &kit.Reply{Error: &kit.Error{Code: "gone"}}
	}
	return rep
}

func (m *metricsRun) settle(w *kit.Wire, req kit.Msg) *kit.Reply {
	rep := m.call(w, req)
	if rep.Error != nil || len(rep.Lost) > 0 {
		m.t.Errorf("%v: %+v", kit.Brief(req), rep)
	}
	return rep
}

func (m *metricsRun) lost(rep *kit.Reply) {
	if rep.Error == nil || rep.Error.Code != "lease_lost" {
		m.t.Errorf("a lease that is not valid any more: %+v", rep)
	}
	m.late.Add(1)
}

func (m *metricsRun) ended(cause string, j kit.Job, last bool) {
	m.add("lost/"+cause, j.Queue, 1)
	m.countDeath(j, last)
}

func (m *metricsRun) countDeath(j kit.Job, dead bool) {
	if dead {
		m.add("dead", j.Queue, 1)
	}
}

// reload changes the config: it adds and removes queues and pprof.
func (m *metricsRun) reload(a *kit.Sidecar, n int) {
	text, err := os.ReadFile(a.ConfigFile)
	if err != nil {
		m.t.Error(err)
		return
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), func(l string) bool { return strings.HasPrefix(l, "  extra") || strings.HasPrefix(l, "  side") })
	added := fmt.Sprintf("  extra%d: {}\n", n)
	if n%2 == 0 {
		added += "  side: {timeout: 1h}\n"
	}
	if err := os.WriteFile(a.ConfigFile, []byte(strings.Join(lines, "")+added), 0o644); err != nil {
		m.t.Error(err)
		return
	}
	w := m.dial()
	defer w.Close()
	rep := m.call(w, kit.Msg{"op": "reload"})
	if rep.Error != nil {
		m.t.Errorf("reload: %v", rep.Error)
	}
}

// compare compares the metrics with the workers' counts.
func (m *metricsRun) compare(e admin.Exposition) {
	t := m.t
	for _, queue := range []string{"work", "side", "slow"} {
		got := map[string]int{}
		for _, what := range []string{"enqueued", "duplicate", "replaced", "pending", "claimed", "acked", "nacked", "dead", "returned"} {
			got[what] = int(e.Of(t, "jobs_"+what+"_total", queue))
		}
		for _, cause := range []string{"disconnected", "timed_out", "lease_ended", "sidecar_lost", "too_large", "transaction_lost"} {
			got["lost/"+cause] = int(e.Of(t, "jobs_lost_total", queue, `cause="`+cause+`"`))
		}
		want := map[string]int{}
		for what := range got {
			want[what] = m.all[what+" "+queue]
		}
		if !maps.Equal(got, want) {
			t.Errorf("the metrics of %s say %v, the workers counted %v", queue, got, want)
		}
		if queue == "work" && (want["nacked"] == 0 || want["dead"] == 0 || want["duplicate"] == 0 || want["returned"] == 0 || want["lost/disconnected"] == 0) ||
			queue == "slow" && (want["lost/timed_out"] == 0 || want["dead"] == 0) || queue == "side" && want["enqueued"] == 0 {
			t.Errorf("the run of %s has not all in it that there is: %v", queue, want)
		}
		if got, want := int(e.Of(t, "job_run_duration_seconds_count", queue)), want["acked"]+want["nacked"]; got != want {
			t.Errorf("%d runs of %s, want %d", got, queue, want)
		}
		if got, want := int(e.Of(t, "claim_wait_duration_seconds_count", queue)), want["claimed"]; got != want {
			t.Errorf("%d waits for %s, want %d", got, queue, want)
		}
	}
	if got := e.Series[`qsidecar_stale_settles_total{database="main"}`]; int64(got) != m.late.Load() {
		t.Errorf("%v lost leases, the workers counted %d", got, m.late.Load())
	}
	if got := e.Series["qsidecar_config_generation"]; got != 7 {
		t.Errorf("the config's generation is %v, want 7", got)
	}
}
