package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
)

// rotationDB is a database with jobs, which answers each commit at once.
type rotationDB struct {
	*kit
	ready  map[string]int // jobs by queue
	commit int
}

func newRotationDB() *rotationDB { return &rotationDB{kit: newKit(), ready: map[string]int{}} }

// store stores jobs and announces them.
func (d *rotationDB) store(queue string, n int) {
	d.ready[queue] += n
	d.Notify([]string{queue}, n)
	d.commits()
}

// commits carries out commits as long as there is something to claim.
func (d *rotationDB) commits() {
	for {
		groups := d.gather()
		if len(groups) == 0 {
			return
		}
		d.commit++
		for _, g := range groups {
			var results []backends.ClaimResult
			for n := range g.Len() {
				var res backends.ClaimResult
				p := g.Part(n)
				for _, q := range p.Queues {
					for ; d.ready[q] > 0 && len(res.Jobs) < len(p.Slots); d.ready[q]-- {
						slot := p.Slots[len(res.Jobs)]
						res.Jobs = append(res.Jobs, backends.Job{Queue: q, Token: slot.Token, Payload: []byte("text")})
					}
				}
				results = append(results, res)
			}
			d.Deliver(g, results...)
		}
	}
}

// take claims up to n jobs, and returns their queues.
func (d *rotationDB) take(n int, rotate bool, queues ...string) (from []string) {
	return d.claim(&Request{Slots: n, Rotate: rotate}, queues)
}

// weighted claims up to n jobs of queues with weights, and returns their queues.
func (d *rotationDB) weighted(n int, weights map[string]int64) (from []string) {
	return d.claim(&Request{Slots: n, Rotate: true, Weights: weights}, slices.Collect(maps.Keys(weights)))
}

func (d *rotationDB) claim(r *Request, queues []string) (from []string) {
	r.Session, r.Once = &d.session().Session, true
	a, answered := d.Add(r, queues)
	if !answered {
		d.commits()
		a = <-r.answer
	}
	d.commits()
	for i := range a.Jobs {
		from = append(from, a.Jobs[i].Queue)
	}
	return from
}

// stream lets a worker take jobs so fast that the next ones are prefetched.
func (d *rotationDB) stream(rotate bool, queues ...string) {
	for range 100 {
		d.now += time.Millisecond
		d.take(1, rotate, queues...)
	}
}

// TestRotatingQueuesTakeTurns shows that a full queue doesn't starve another one, whatever the order of the names is, and that all
// of these orders share one wait queue.
func TestRotatingQueuesTakeTurns(t *testing.T) {
	d := newRotationDB()
	d.store("a", 100)
	d.store("b", 100)
	var got []string
	for i := range 6 {
		queues := []string{"a", "b", "a"}
		if i%2 == 1 {
			queues = []string{"b", "a"}
		}
		got = append(got, d.take(1, true, queues...)...)
	}
	if want := []string{"a", "b", "a", "b", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("jobs come from %v, want %v", got, want)
	}
	if got, want := d.take(5, true, "b", "a"), []string{"a", "b", "a", "b", "a"}; !slices.Equal(got, want) {
		t.Errorf("a claim of five jobs gets them from %v, want %v", got, want)
	}
	if n := d.Snapshot().WaitQueues; n != 1 {
		t.Errorf("there are %d wait queues, want one", n)
	}
	if got, want := d.take(2, false, "b", "a"), []string{"b", "b"}; !slices.Equal(got, want) {
		t.Errorf("in strict order a claim gets jobs from %v, want %v", got, want)
	}
	if got, want := d.take(2, true, "b", "b"), []string{"b", "b"}; !slices.Equal(got, want) || d.matcher.queues["b"] == nil {
		t.Errorf("a claim of one queue gets jobs from %v, want %v, in the wait queue of that queue", got, want)
	}
}

// TestSlowWorkerRotates shows that the queues take turns although the wait queue is forgotten between two claims.
func TestSlowWorkerRotates(t *testing.T) {
	d := newRotationDB()
	d.store("a", 10)
	d.store("b", 10)
	var got []string
	for range 4 {
		got = append(got, d.take(1, true, "b", "a")...)
		d.now += time.Hour
		if _, left := d.TakePrefetched(0); left || d.Snapshot().WaitQueues != 0 {
			t.Fatal("the wait queue isn't forgotten")
		}
	}
	if want := []string{"b", "a", "b", "a"}; !slices.Equal(got, want) {
		t.Errorf("jobs come from %v, want %v", got, want)
	}
}

// TestRefusedQueueIsNotAskedAgain shows that a queue whose claims the database refuses causes no further commit until a notification,
// although jobs of another queue are prefetched.
func TestRefusedQueueIsNotAskedAgain(t *testing.T) {
	d := newRotationDB()
	d.store("a", 1000)
	d.stream(true, "a", "b")
	d.Notify([]string{"b"}, 1)
	for range 2 {
		commits := 0
		for groups := d.gather(); len(groups) > 0 && commits < 100; groups = d.gather() {
			commits++
			for _, g := range groups {
				results := make([]backends.ClaimResult, g.Len())
				for n := range results {
					if p := g.Part(n); p.Queues[0] == "b" {
						results[n].Err = backends.Unavailable(errTooMany)
					}
				}
				if len(results) == 1 {
					d.FailApart(g, results[0].Err)
				} else {
					d.Deliver(g, results...)
				}
			}
		}
		if commits == 0 || commits == 100 {
			t.Errorf("%d commits ask for the queue, want a few", commits)
		}
		d.Notify([]string{"b"}, 1)
	}
}

// TestPrefetchedJobsHideNoQueue shows that a job is handed out soon although many of another queue were prefetched before it.
func TestPrefetchedJobsHideNoQueue(t *testing.T) {
	d := newRotationDB()
	d.store("a", 10_000)
	d.stream(true, "a", "b")
	if n := d.Snapshot().Prefetched; n < 5 {
		t.Fatalf("%d jobs are prefetched, want more", n)
	}
	d.store("b", 1)
	if got := append(d.take(1, true, "a", "b"), d.take(1, true, "a", "b")...); !slices.Contains(got, "b") {
		t.Errorf("the next jobs are of %v, want one of b among them", got)
	}
	commits := d.commit
	for range 3 {
		d.take(1, true, "a", "b")
	}
	if d.commit != commits {
		t.Errorf("three jobs that were prefetched took %d commits, want none", d.commit-commits)
	}
}

// TestNoQueueWaitsForMoreThanTheOthers draws jobs and claims. Between two jobs of a queue that has some, each other queue has one
// at most.
func TestNoQueueWaitsForMoreThanTheOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newRotationDB()
		var queues []string
		for i := range rapid.IntRange(2, 6).Draw(t, "queues") {
			queues = append(queues, fmt.Sprint("q", i))
		}
		left, waits := map[string]int{}, map[string]int{} // jobs that no worker has; hand-outs of others since the last one
		slack := map[string]int{}
		took := func(from []string) { // a claim of several jobs can get all that are prefetched, without a commit between them
			for _, q := range from {
				left[q]--
				waits[q], slack[q] = 0, len(from)-1
				for _, other := range queues {
					if other == q || left[other] == 0 {
						continue
					}
					slack[other] = max(slack[other], len(from)-1)
					if waits[other]++; waits[other] >= len(queues)+slack[other] {
						t.Fatalf("%s waited for %d jobs of %d other queues", other, waits[other], len(queues)-1)
					}
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				q, n := rapid.SampledFrom(queues).Draw(t, "queue"), rapid.SampledFrom([]int{1, 3, 200}).Draw(t, "jobs")
				if left[q] == 0 {
					waits[q], slack[q] = 0, 0
				}
				left[q] += n
				d.store(q, n)
			},
			"take": func(t *rapid.T) { took(d.take(rapid.IntRange(1, 5).Draw(t, "jobs"), true, queues...)) },
			"stream": func(*rapid.T) {
				for range 60 {
					d.now += time.Millisecond
					took(d.take(1, true, queues...))
				}
			},
			"idle": func(*rapid.T) {
				d.now += time.Hour
				back, _ := d.TakePrefetched(0)
				names := make([]string, len(back))
				for i := range back {
					names[i] = back[i].Queue
					d.ready[back[i].Queue]++
				}
				d.Returned(names)
				d.commits()
			},
			"time": func(t *rapid.T) { d.now += time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond },
		})
	})
}

// TestWeights shows the turns of queues with weights, and that claims with the same ratio share a wait queue.
func TestWeights(t *testing.T) {
	d := newRotationDB()
	d.store("a", 100)
	d.store("b", 100)
	want := []string{"a", "b", "a", "a"}
	if got := d.claim(&Request{Slots: 4, Rotate: true, Weights: map[string]int64{"a": 6, "b": 2}}, []string{"a", "b"}); !slices.Equal(got, want) {
		t.Errorf("a claim of four jobs gets them from %v, want %v", got, want)
	}
	var got []string
	for range 8 {
		got = append(got, d.claim(&Request{Slots: 1, Rotate: true, Weights: map[string]int64{"a": 3}}, []string{"b", "a"})...)
	}
	if want := slices.Concat(want, want); !slices.Equal(got, want) {
		t.Errorf("jobs come from %v, want %v", got, want)
	}
	if n := d.Snapshot().WaitQueues; n != 1 {
		t.Errorf("there are %d wait queues for one ratio, want one", n)
	}
	d.weighted(1, map[string]int64{"a": 1, "b": 3})
	if n := d.Snapshot().WaitQueues; n != 2 {
		t.Errorf("there are %d wait queues for two ratios, want two", n)
	}
	d.take(1, true, "b", "a")
	d.weighted(1, map[string]int64{"a": 7, "b": 7})
	if n := d.Snapshot().WaitQueues; n != 3 {
		t.Errorf("there are %d wait queues for two ratios and equal weights, want three", n)
	}
}

// TestWeightsOfSlowWorker shows that the ratio holds although the wait queue is forgotten between two claims.
func TestWeightsOfSlowWorker(t *testing.T) {
	d := newRotationDB()
	d.store("a", 100)
	d.store("b", 100)
	got := map[string]int{}
	for range 40 {
		for _, q := range d.weighted(1, map[string]int64{"a": 3, "b": 1}) {
			got[q]++
		}
		d.now += time.Hour
		if _, left := d.TakePrefetched(0); left || d.Snapshot().WaitQueues != 0 {
			t.Fatal("the wait queue isn't forgotten")
		}
	}
	if got["a"] != 30 || got["b"] != 10 {
		t.Errorf("the queues have %v of 40 jobs, want 30 and 10", got)
	}
}

// TestTurnsAreNotSavedUp shows that a queue without jobs leaves its turns to the others, which keep their ratio, and doesn't get them later.
func TestTurnsAreNotSavedUp(t *testing.T) {
	d := newRotationDB()
	weights := map[string]int64{"a": 6, "b": 2, "c": 1}
	count := func() map[string]int {
		got := map[string]int{}
		for range 90 {
			d.now += time.Hour // so that nothing is prefetched
			for _, q := range d.weighted(1, weights) {
				got[q]++
			}
		}
		return got
	}
	d.store("b", 1000)
	d.store("c", 1000)
	if got := count(); got["b"] != 60 || got["c"] != 30 {
		t.Errorf("without jobs of a, the others have %v of 90 jobs, want 60 and 30", got)
	}
	d.store("a", 1000)
	if got := count(); got["a"] < 59 || got["a"] > 61 || got["b"] < 19 || got["b"] > 21 {
		t.Errorf("the queues have %v of 90 jobs, want about 60, 20 and 10", got)
	}
}

// TestEmptyQueuesTakeNoShare shows that a claim of several jobs gets a share from each queue that has jobs, although more queues
// than it has slots are empty and long due.
func TestEmptyQueuesTakeNoShare(t *testing.T) {
	d := newRotationDB()
	queues := []string{"a", "b", "c", "x", "y", "z"}
	d.store("a", 100)
	d.store("b", 100)
	for range 6 {
		d.now += time.Hour
		d.take(1, true, queues...)
	}
	for range 3 {
		d.now += time.Hour
		if got := d.take(4, true, queues...); len(got) != 4 || got[0] == got[1] || got[0] != got[2] || got[1] != got[3] {
			t.Errorf("a claim of four jobs gets them from %v, want two from each of a and b, in turn", got)
		}
	}
	d.store("y", 1)
	if got := d.take(4, true, queues...); !slices.Contains(got, "y") {
		t.Errorf("the next claim gets %v, want the job of y among them", got)
	}
	d.ready["z"]++ // without a notification
	if got := d.take(4, true, queues...); !slices.Contains(got, "z") {
		t.Errorf("the next claim gets %v, want the job of z among them, which nothing announced", got)
	}
}

// TestWeightsProperty draws weights and claims, also so fast that jobs are prefetched. Full queues have jobs in the ratio of their
// weights at any time.
func TestWeightsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newRotationDB()
		weights, sum := map[string]int64{}, int64(0)
		for i := range rapid.IntRange(2, 6).Draw(t, "queues") {
			w := rapid.SampledFrom([]int64{1, 2, 3, 10, 1000}).Draw(t, "weight")
			q := fmt.Sprint("q", i)
			weights[q], sum = w, sum+w
			d.store(q, 1_000_000)
		}
		got, all := map[string]int64{}, int64(0)
		took := func(from []string) {
			for _, q := range from {
				got[q]++
				all++
			}
			for q, w := range weights {
				share := float64(all) * float64(w) / float64(sum)
				if off := float64(got[q]) - share; off < -float64(len(weights)) || off > float64(len(weights)) {
					t.Fatalf("%s has %d of %d jobs by the weights %v, want about %.1f", q, got[q], all, weights, share)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) { took(d.weighted(rapid.IntRange(1, 20).Draw(t, "jobs"), weights)) },
			"stream": func(*rapid.T) {
				for range 60 {
					d.now += time.Millisecond
					took(d.weighted(1, weights))
				}
			},
			"time": func(t *rapid.T) { d.now += time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond },
		})
	})
}

// TestExpiredPrefetchedJobs shows that no worker gets a prefetched job whose time to start is over, that it goes back, and that it
// keeps no other job from workers.
func TestExpiredPrefetchedJobs(t *testing.T) {
	d := newRotationDB()
	d.store("a", 10_000)
	d.stream(false, "a")
	kept := d.matcher.queues["a"].prefetch.jobs
	if len(kept) < 5 {
		t.Fatalf("%d jobs are prefetched, want more", len(kept))
	}
	for i := range kept[:3] {
		kept[i].StartWithin = time.Second
	}
	kept[0].StartWithin = 2 * time.Hour
	first, next := kept[0].Token, kept[3].Token
	d.now += 100 * time.Millisecond
	d.ready["a"] = 0
	claim := func() backends.Token {
		r := &Request{Session: &d.session().Session, Slots: 1, Once: true}
		a, answered := d.Add(r, []string{"a"})
		if !answered || len(a.Jobs) != 1 {
			t.Fatalf("the claim gets %+v", a)
		}
		return a.Jobs[0].Token
	}
	if got := claim(); got != first {
		t.Errorf("the first claim gets %v, want %v, which is in time", got, first)
	}
	d.now += 2 * time.Second
	if got := claim(); got != next {
		t.Errorf("the next claim gets %v, want %v", got, next)
	}
	if back, _ := d.TakePrefetched(d.now - time.Hour); len(back) != 2 {
		t.Errorf("%d jobs go back, want the two that expired", len(back))
	}
}
