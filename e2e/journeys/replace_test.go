package journeys

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// replaceRun is producers that replace the content of one key, and workers that run it.
type replaceRun struct {
	t     *testing.T
	clock atomic.Int64 // orders what the clients see
	done  atomic.Bool

	mu       sync.Mutex
	sent     []span
	outcomes map[string]int
	ran      []int // contents in the order of their claims
}

// span is an enqueue, from its request to its reply. Of two whose spans don't overlap, the commit of the first was earlier.
type span struct{ from, to int64 }

// TestReplaceFromTwoHosts enqueues with on_conflict: replace through two sidecars while workers of both ack and nack. The content of the
// last commit is run, and no content is run after a newer one.
func TestReplaceFromTwoHosts(t *testing.T) {
	t.Parallel()
	s, _ := kit.NewPostgresSite(t)
	hosts := []*kit.Sidecar{s.Start("a"), s.Start("b")}
	r := &replaceRun{t: t, outcomes: map[string]int{}}
	var producers, workers sync.WaitGroup
	for i := range 4 {
		producers.Go(func() { r.produce(hosts[i%2].Socket, 50) })
	}
	for i := range 4 {
		workers.Go(func() { r.work(hosts[i%2].Socket) })
	}
	producers.Wait()
	c := hosts[0].Dial()
	kit.WaitProgress(t, "every job has ended", func() (now int, done bool) {
		q := c.Stats("docs")
		left := q.Ready + q.Scheduled + q.Claimed
		return left, left == 0
	})
	r.done.Store(true)
	workers.Wait()
	if len(r.ran) == 0 {
		t.Fatal("nothing was run")
	}
	for i, content := range r.ran[1:] {
		if before := r.ran[i]; r.sent[content].to < r.sent[before].from {
			t.Errorf("content %d %+v was run after %d %+v", content, r.sent[content], before, r.sent[before])
		}
	}
	last := r.ran[len(r.ran)-1]
	for content, x := range r.sent {
		if x.from > r.sent[last].to {
			t.Errorf("content %d %+v was enqueued after the last one that was run, %d %+v", content, x, last, r.sent[last])
		}
	}
	kit.Figure(t, "%d enqueues of one key through two sidecars: %v, %d attempts", len(r.sent), r.outcomes, len(r.ran))
}

func (r *replaceRun) call(w *kit.Wire, req kit.Msg) *kit.Reply {
	rep, err := w.Call(req)
	if err == nil && rep.Error != nil {
		err = rep.Error
	}
	if err != nil {
		r.t.Errorf("%s: %v", kit.Brief(req), err)
		r.done.Store(true)
		return &kit.Reply{}
	}
	return rep
}

func (r *replaceRun) dial(socket string) *kit.Wire {
	w, err := kit.DialWire(socket)
	if err != nil {
		r.t.Error(err)
		r.done.Store(true)
	}
	return w
}

func (r *replaceRun) produce(socket string, n int) {
	w := r.dial(socket)
	if w == nil {
		return
	}
	defer w.Close()
	for range n {
		r.mu.Lock()
		content := len(r.sent)
		r.sent = append(r.sent, span{from: r.clock.Add(1)})
		r.mu.Unlock()
		rep := r.call(w, kit.Msg{"op": "enqueue", "queue": "docs", "payload": fmt.Sprint(content), "key": "k", "on_conflict": "replace", "max_attempts": 1000})
		if rep.Job == nil {
			return
		}
		r.mu.Lock()
		r.sent[content].to = r.clock.Add(1)
		r.outcomes[map[bool]string{true: rep.Job.Outcome, false: "stored"}[rep.Job.Outcome != ""]]++
		r.mu.Unlock()
	}
}

// work acks most jobs, and nacks every third one.
func (r *replaceRun) work(socket string) {
	w := r.dial(socket)
	if w == nil {
		return
	}
	defer w.Close()
	for n := 0; !r.done.Load(); {
		for _, j := range r.call(w, kit.Msg{"op": "claim", "queue": "docs", "wait_ms": 100}).Jobs {
			content, err := strconv.Atoi(j.Payload)
			if err != nil {
				r.t.Errorf("the payload of job %s: %v", j.ID, err)
			}
			r.mu.Lock()
			r.ran = append(r.ran, content)
			r.mu.Unlock()
			end := kit.Msg{"op": "ack", "lease": j.Lease}
			if n++; n%3 == 0 {
				end = kit.Msg{"op": "nack", "lease": j.Lease, "delay_ms": 0}
			}
			r.call(w, end)
		}
	}
}
