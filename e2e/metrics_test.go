package e2e

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
	"time"
)

// tally is what workers count, as "what queue".
type tally struct {
	mu  sync.Mutex
	all map[string]int
}

func (y *tally) add(what, queue string, n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.all[what+" "+queue] += n
}

// metricsRun is 32 workers that do all that can be done to a job, and count it.
type metricsRun struct {
	t      *testing.T
	socket string
	tally
	late atomic.Int64 // settles and extends that were answered lease_lost
	stop atomic.Bool
}

// TestMetricsEqualTheWork: after a run of 32 workers with acks, nacks, deaths, time-outs,
// hang-ups and duplicates, under reloads, the metrics are what the workers counted; all the
// while no counter decreases; and promtool finds nothing to say.
func TestMetricsEqualTheWork(t *testing.T) {
	t.Parallel()
	s, _ := newPostgresSite(t)
	place := filepath.Join(s.dir, "admin.sock")
	s.extra = "admin: {listen: " + place + "}\ndefaults: {max_attempts: 3, backoff: {initial: 5ms, max: 20ms}}\n"
	s.queues = "  work: {}\n  slow: {timeout: 200ms, max_attempts: 2}\n  \"*\": {}\n"
	a := s.started("a")
	scrape := scraping(t, adminAt(t, place))
	r := &metricsRun{t: t, socket: a.socket, tally: tally{all: map[string]int{}}}
	var producers, workers sync.WaitGroup
	producers.Go(func() { r.produce(size(20_000)) })
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
	c := a.dial()
	eventually(t, time.Minute, "every job has ended", func() bool {
		left := 0
		for _, q := range c.must(msg{"op": "stats"}).Queues {
			left += q.Ready + q.Scheduled + q.Claimed
		}
		return left == 0
	})
	r.stop.Store(true)
	workers.Wait()
	c.must(msg{"op": "purge", "queue": "work", "state": "dead"}) // it takes away rows, and no count
	e := scrape.end()
	r.compare(e)
	promtoolSays(t, e.text, "check", "metrics")
	e.onThePage(t)
	figure(t, "%d jobs: the counters are what 32 workers counted; %d looks at them meanwhile and %d reloads, and none decreased",
		r.all["enqueued work"]+r.all["enqueued side"]+r.all["enqueued slow"], scrape.asked, reloads)
}

// produce stores jobs, some of them twice.
func (r *metricsRun) produce(n int) {
	w := r.dial()
	defer w.Close()
	for at := 0; at < n; {
		var jobs []msg
		for ; len(jobs) < 50 && at < n; at++ {
			switch {
			case at%10 == 0:
				jobs = append(jobs, msg{"queue": "work", "key": fmt.Sprint(at / 20)})
			case at%100 == 1:
				jobs = append(jobs, msg{"queue": "slow"})
			default:
				jobs = append(jobs, msg{"queue": "work"})
			}
		}
		rep, err := w.call(msg{"op": "enqueue", "jobs": jobs})
		if err != nil || rep.Error != nil {
			r.t.Errorf("enqueue: %v, %+v", err, rep)
			return
		}
		for i, j := range rep.Jobs {
			r.add(map[bool]string{true: "duplicate", false: "enqueued"}[j.Duplicate], jobs[i]["queue"].(string), 1)
		}
	}
}

func (r *metricsRun) dial() *wire {
	w, err := dialWire(r.socket)
	if err != nil {
		r.t.Error(err)
		r.stop.Store(true)
		return &wire{}
	}
	return w
}

// work takes one job after another and does something with it.
func (r *metricsRun) work(rnd *rand.Rand) {
	w := r.dial()
	for !r.stop.Load() {
		rep, err := w.call(msg{"op": "claim", "queues": []string{"slow", "side", "work"}, "wait_ms": 100})
		if err != nil || rep.Error != nil {
			r.t.Errorf("claim: %v, %+v", err, rep)
			return
		}
		for _, j := range rep.Jobs {
			r.add("claimed", j.Queue, 1)
			if !r.end(w, j, rnd) {
				w.Close()
				w = r.dial()
			}
		}
	}
	w.Close()
}

// end ends a delivery in one of the ways there are. false: the connection is of no more use.
func (r *metricsRun) end(w *wire, j wireJob, rnd *rand.Rand) bool {
	last := j.Attempt == j.MaxAttempts
	if j.Queue == "slow" { // until its time is over
		for {
			rep := r.call(w, msg{"op": "extend", "lease": j.Lease})
			if rep.Error != nil {
				r.lost(rep)
				break
			}
		}
		r.ended("timed_out", j, last)
		return true
	}
	switch p := rnd.IntN(100); {
	case p < 60:
		r.settle(w, msg{"op": "ack", "lease": j.Lease})
		r.add("acked", j.Queue, 1)
		if p < 5 {
			r.lost(r.call(w, msg{"op": "ack", "lease": j.Lease})) // once more
		}
	case p < 70 && j.Queue == "work":
		rep := r.settle(w, msg{"op": "ack", "lease": j.Lease, "enqueue": []msg{{"queue": "side"}}})
		r.add("acked", j.Queue, 1)
		r.add("enqueued", "side", len(rep.Enqueued))
	case p < 80:
		r.settle(w, msg{"op": "nack", "lease": j.Lease, "error": "no"})
		r.add("nacked", j.Queue, 1)
		r.dies(j, last)
	case p < 84:
		r.settle(w, msg{"op": "nack", "leases": []string{j.Lease}, "dead": true})
		r.add("nacked", j.Queue, 1)
		r.dies(j, true)
	case p < 88:
		r.settle(w, msg{"op": "nack", "lease": j.Lease, "charge": false, "delay_ms": 0})
		r.add("nacked", j.Queue, 1)
	case p < 94:
		r.ended("disconnected", j, last)
		return false // hangs up
	default:
		r.settle(w, msg{"op": "bye"})
		r.add("returned", j.Queue, 1)
		return false
	}
	return true
}

func (r *metricsRun) call(w *wire, req msg) *reply {
	rep, err := w.call(req)
	if err != nil {
		r.t.Errorf("%v: %v", brief(req), err)
		return &reply{Error: &wireError{Code: "gone"}}
	}
	return rep
}

func (r *metricsRun) settle(w *wire, req msg) *reply {
	rep := r.call(w, req)
	if rep.Error != nil || len(rep.Lost) > 0 {
		r.t.Errorf("%v: %+v", brief(req), rep)
	}
	return rep
}

func (r *metricsRun) lost(rep *reply) {
	if rep.Error == nil || rep.Error.Code != "lease_lost" {
		r.t.Errorf("a lease that is not valid any more: %+v", rep)
	}
	r.late.Add(1)
}

func (r *metricsRun) ended(cause string, j wireJob, last bool) {
	r.add("lost/"+cause, j.Queue, 1)
	r.dies(j, last)
}

func (r *metricsRun) dies(j wireJob, dead bool) {
	if dead {
		r.add("dead", j.Queue, 1)
	}
}

// reload has the sidecar take another config: queues come and go, and so does the switch of pprof.
func (r *metricsRun) reload(a *sidecar, n int) {
	text, err := os.ReadFile(a.config)
	if err != nil {
		r.t.Error(err)
		return
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), func(l string) bool { return strings.HasPrefix(l, "  extra") || strings.HasPrefix(l, "  side") })
	added := fmt.Sprintf("  extra%d: {}\n", n)
	if n%2 == 0 {
		added += "  side: {timeout: 1h}\n"
	}
	if err := os.WriteFile(a.config, []byte(strings.Join(lines, "")+added), 0o644); err != nil {
		r.t.Error(err)
		return
	}
	w := r.dial()
	defer w.Close()
	rep := r.call(w, msg{"op": "reload"})
	if rep.Error != nil {
		r.t.Errorf("reload: %v", rep.Error)
	}
}

// compare holds the metrics against what the workers counted.
func (r *metricsRun) compare(e exposition) {
	t := r.t
	for _, queue := range []string{"work", "side", "slow"} {
		got := map[string]int{}
		for _, what := range []string{"enqueued", "duplicate", "claimed", "acked", "nacked", "dead", "returned"} {
			got[what] = int(e.of(t, "jobs_"+what+"_total", queue))
		}
		for _, cause := range []string{"disconnected", "timed_out", "lease_ended", "sidecar_lost", "too_large"} {
			got["lost/"+cause] = int(e.of(t, "jobs_lost_total", queue, `cause="`+cause+`"`))
		}
		want := map[string]int{}
		for what := range got {
			want[what] = r.all[what+" "+queue]
		}
		if !maps.Equal(got, want) {
			t.Errorf("the metrics of %s say %v, the workers counted %v", queue, got, want)
		}
		if queue == "work" && (want["nacked"] == 0 || want["dead"] == 0 || want["duplicate"] == 0 || want["returned"] == 0 || want["lost/disconnected"] == 0) ||
			queue == "slow" && (want["lost/timed_out"] == 0 || want["dead"] == 0) || queue == "side" && want["enqueued"] == 0 {
			t.Errorf("the run of %s has not all in it that there is: %v", queue, want)
		}
		if got, want := int(e.of(t, "job_run_seconds_count", queue)), want["acked"]+want["nacked"]; got != want {
			t.Errorf("%d runs of %s, want %d", got, queue, want)
		}
		if got, want := int(e.of(t, "claim_wait_seconds_count", queue)), want["claimed"]; got != want {
			t.Errorf("%d waits for %s, want %d", got, queue, want)
		}
	}
	if got := e.series[`qsidecar_leases_lost_total{database="main"}`]; int64(got) != r.late.Load() {
		t.Errorf("%v lost leases, the workers counted %d", got, r.late.Load())
	}
	if got := e.series["qsidecar_config_generation"]; got != 7 {
		t.Errorf("the config's generation is %v, want 7", got)
	}
}
