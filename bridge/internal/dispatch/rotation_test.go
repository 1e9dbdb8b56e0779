package dispatch

import (
	"fmt"
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
	r := &Request{Session: &d.session().Session, Slots: n, Once: true, Rotate: rotate}
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
	if got, want := d.take(2, true, "b", "b"), []string{"b", "b"}; !slices.Equal(got, want) || d.scheduler.queues["b"] == nil {
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
