package dispatch

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// world is a Dispatcher with everything around it: sessions, a database that answers as rapid draws, and jobs on their way.
type world struct {
	*kit
	sessions []*session
	waiting  []*Request // claims without an answer
	groups   []Group    // of the commit under way
	slow     []Group    // of the commits of slow wait queues
	back     []string   // queues of jobs on their way back
	admits   []string   // queues of groups in which jobs are being admitted
	settles  []string   // queues of settles that free slots of a cap
	held     map[*session][]backends.Job
	where    map[uint64]string        // what became of each job
	until    map[uint64]time.Duration // when a job must not start any more
}

// moved records what became of jobs. Each job has one fate.
func (w *world) moved(t *rapid.T, jobs []backends.Job, to string) {
	for i := range jobs {
		if old := w.where[jobs[i].Token.Number]; old != "claimed" {
			t.Fatalf("job %d was %s and is now %s", jobs[i].Token.Number, old, to)
		}
		w.where[jobs[i].Token.Number] = to
	}
}

func (w *world) returning(t *rapid.T, jobs []backends.Job) {
	w.moved(t, jobs, "returned")
	for i := range jobs {
		w.back = append(w.back, jobs[i].Queue)
	}
}

// answered ends a claim as a session does.
func (w *world) answered(t *rapid.T, r *Request, a Answer) {
	s := r.Session.Client.(*session)
	w.moved(t, a.Jobs, "handed out")
	for i := range a.Jobs {
		if until := w.until[a.Jobs[i].Token.Number]; a.Unrecorded && !a.Jobs[i].Alone && until > 0 && a.At >= until {
			t.Fatalf("an expired job was handed out at %v, and had to start before %v", a.At, until)
		}
	}
	for i := range a.Jobs {
		if !slices.Contains(r.Queues, a.Jobs[i].Queue) {
			t.Fatalf("a claim of %v got a job of %s", r.Queues, a.Jobs[i].Queue)
		}
	}
	if len(a.Jobs) > r.Slots {
		t.Fatalf("a claim of %d jobs got %d", r.Slots, len(a.Jobs))
	}
	s.AddUnread(-quota.JobBytes(a.Jobs))
	if r.Template.Lease > 0 {
		return
	}
	s.SettleJobs(r.Reserved, len(a.Jobs))
	w.held[s] = append(w.held[s], a.Jobs...)
	if len(w.held[s]) > s.MaxJobs() {
		t.Fatalf("a session holds %d jobs", len(w.held[s]))
	}
	if len(w.held[s]) > 1 && slices.ContainsFunc(w.held[s], isAlone) {
		t.Fatal("a session holds a job that must be alone beside others")
	}
}

// collect takes the answers that have come.
func (w *world) collect(t *rapid.T) {
	w.waiting = slices.DeleteFunc(w.waiting, func(r *Request) bool {
		select {
		case a := <-r.answer:
			w.answered(t, r, a)
			return true
		default:
			return false
		}
	})
}

func (w *world) claim(t *rapid.T) {
	s := rapid.SampledFrom(w.sessions).Draw(t, "session")
	r := &Request{Session: &s.Session, Slots: rapid.IntRange(1, 3).Draw(t, "slots"), Once: rapid.Bool().Draw(t, "once")}
	r.Template.Worker = "w"
	if rapid.IntRange(0, 4).Draw(t, "timed") == 0 {
		r.Template.Lease = time.Minute
	}
	queues := rapid.SampledFrom([][]string{{"a"}, {"b"}, {"a", "b"}, {"b", "b"}, {"slow"}, {"slow", "a"}}).Draw(t, "queues")
	r.Rotate = rapid.Bool().Draw(t, "rotate")
	if a, answered := w.Add(r, queues); answered {
		r.Queues = queues
		w.answered(t, r, a)
		return
	}
	w.waiting = append(w.waiting, r)
}

func (w *world) gatherClaims(t *rapid.T) {
	if w.groups == nil {
		w.groups, _ = w.Gather(host, w.number, &Budget{Left: rapid.Int64Range(0, 4).Draw(t, "memory") * quota.MinClaim, Whole: 2 * quota.MinClaim})
	}
}

func (w *world) gatherOwn(t *rapid.T) {
	for _, g := range w.GatherOwn(host, w.number, &Budget{Left: 1 << 30, Whole: 1}) {
		if slices.ContainsFunc(w.slow, func(other Group) bool { return slices.Equal(other.Queues(), g.Queues()) }) {
			t.Fatalf("two commits claim from %v", g.Queues())
		}
		w.slow = append(w.slow, g)
	}
	if len(w.slow) > maxOwn {
		t.Fatalf("%d commits of slow queues", len(w.slow))
	}
}

// commit ends the commit under way, with a result that rapid draws for each group.
func (w *world) commit(t *rapid.T) {
	for _, g := range w.groups {
		w.end(t, g)
	}
	w.groups = nil
}

// commitOwn ends the oldest commit of a slow wait queue.
func (w *world) commitOwn(t *rapid.T) {
	if len(w.slow) > 0 {
		w.end(t, w.slow[0])
		w.EndOwn(w.slow[0])
		w.slow = w.slow[1:]
	}
}

func (w *world) end(t *rapid.T, g Group) {
	switch rapid.IntRange(0, 7).Draw(t, "outcome") {
	case 0:
		w.Fail(g, backends.Unavailable(errors.New("no connection")))
	case 1:
		w.Fail(g, errors.New("no right"))
	case 2:
		w.FailApart(g, &backends.SlotError{Worker: "w", Lease: time.Minute, Err: errors.New("refused")})
	default:
		var results []backends.ClaimResult
		for n := range g.Len() {
			slots := g.Part(n).Slots
			res := w.result(g.Part(n), rapid.IntRange(0, len(slots)).Draw(t, "jobs"))
			for i := range res.Jobs {
				res.Jobs[i].Alone = slots[i].Lease == 0 && rapid.IntRange(0, 5).Draw(t, "alone") == 0
				if rapid.Bool().Draw(t, "expires") {
					res.Jobs[i].StartWithin = time.Duration(rapid.IntRange(1, 300).Draw(t, "start within")) * time.Millisecond
					w.until[res.Jobs[i].Token.Number] = g.Asked + res.Jobs[i].StartWithin
				}
			}
			res.More = len(res.Jobs) < len(slots) && rapid.IntRange(0, 3).Draw(t, "more") == 0
			results = append(results, res)
		}
		w.returning(t, w.Deliver(g, results...))
	}
}

// stream lets a worker take jobs of a, or of a and b, at such a rate that the next ones are prefetched.
func (w *world) stream(t *rapid.T) {
	s := w.sessions[0]
	queues := rapid.SampledFrom([][]string{{"a"}, {"a", "b"}}).Draw(t, "queues")
	for range 60 {
		if w.now += time.Millisecond; w.groups != nil || w.late {
			return
		}
		r := &Request{Session: &s.Session, Slots: 1, Rotate: true, Template: backends.Slot{Worker: "w"}}
		if a, answered := w.Add(r, queues); answered {
			r.Queues = queues
			w.answered(t, r, a)
		} else {
			w.waiting = append(w.waiting, r)
			for _, g := range w.gather() {
				var results []backends.ClaimResult
				for n := range g.Len() {
					results = append(results, w.result(g.Part(n), len(g.Part(n).Slots)))
				}
				w.returning(t, w.Deliver(g, results...))
			}
			w.collect(t)
		}
		w.settle(1)
	}
}

// result has the first n jobs of a part.
func (w *world) result(p Part, n int) (res backends.ClaimResult) {
	for _, slot := range p.Slots[:n] {
		w.where[slot.Token.Number] = "claimed"
		res.Jobs = append(res.Jobs, backends.Job{Queue: p.Queues[int(slot.Token.Number)%len(p.Queues)], Token: slot.Token, Payload: []byte("text")})
	}
	return res
}

func (w *world) settle(n int) {
	for s, jobs := range w.held {
		n := min(n, len(jobs))
		s.ReleaseJobs(n)
		w.held[s] = jobs[n:]
	}
}

func (w *world) bringBack() {
	if back := w.back; len(back) > 0 {
		w.back = nil
		w.Returned(back)
	}
}

// admitted ends the admissions.
func (w *world) admitted(ready bool) {
	queues := w.admits
	if w.admits = nil; ready {
		w.Admitted(queues, queues)
		return
	}
	w.Admitted(queues, nil)
}

// settled ends the settles.
func (w *world) settled() {
	queues := w.settles
	w.settles = nil
	w.Settled(queues)
}

// check fails if a claim is forgotten: one that no commit has included yet must be due.
func (w *world) check(t *rapid.T) {
	for _, wq := range w.matcher.queues {
		if wq.fresh.Len() > 0 && wq.due == nil && !wq.prefetch.inCommit && !wq.committing {
			t.Fatalf("%d claims of %v are forgotten", wq.fresh.Len(), wq.queues)
		}
		if wq.prefetch.inCommit && w.groups == nil && !wq.committing {
			t.Fatalf("%v is in no commit", wq.queues)
		}
	}
	for _, wq := range w.matcher.queues {
		if wq.rotation == nil {
			continue
		}
		held := make([]int, len(wq.queues))
		for i := range wq.prefetch.jobs {
			held[wq.rotation.index(wq.prefetch.jobs[i].Queue)]++
		}
		if !slices.Equal(held, wq.rotation.held) {
			t.Fatalf("%v have %v prefetched jobs, counted: %v", wq.queues, held, wq.rotation.held)
		}
	}
	returning := map[string]int{}
	for _, q := range w.back {
		returning[q]++
	}
	for i := range w.matcher.expired { // the prefetcher takes them soon
		returning[w.matcher.expired[i].Queue]++
	}
	if !maps.Equal(returning, w.matcher.returning) {
		t.Fatalf("jobs on their way back: %v, counted: %v", returning, w.matcher.returning)
	}
	for _, wq := range w.matcher.queues {
		held := func(q string) bool {
			return slices.Contains(w.back, q) || slices.Contains(w.admits, q) || slices.Contains(w.settles, q)
		}
		if wq.deferred.Len() > 0 && !slices.ContainsFunc(wq.queues, held) {
			t.Fatalf("%d claims of %v are held for nothing", wq.deferred.Len(), wq.queues)
		}
	}
}

// TestEveryClaimIsAnswered draws what sessions and the database do. Each claim gets one answer, each job one fate, no session
// holds more than it can, and nothing is left of claims that ended.
func TestEveryClaimIsAnswered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{kit: newKit(), held: map[*session][]backends.Job{}, where: map[uint64]string{}, until: map[uint64]time.Duration{}}
		for range 4 {
			w.sessions = append(w.sessions, w.session())
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim":       w.claim,
			"stream":      w.stream,
			"gather":      w.gatherClaims,
			"commit":      w.commit,
			"gather slow": w.gatherOwn,
			"commit slow": w.commitOwn,
			"speed":       func(t *rapid.T) { w.fast = rapid.Bool().Draw(t, "fast") }, // an index was built, or dropped
			"notify": func(t *rapid.T) {
				w.Notify([]string{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "queue")}, rapid.IntRange(1, 9).Draw(t, "jobs"))
			},
			"leave": func(t *rapid.T) {
				if len(w.waiting) > 0 {
					w.leave(rapid.SampledFrom(w.waiting).Draw(t, "claim"))
				}
			},
			"limit": func(t *rapid.T) {
				w.full = rapid.Bool().Draw(t, "full")
				if w.closed = rapid.Bool().Draw(t, "closed"); !w.closed {
					w.Reopen("a")
				}
			},
			"settle": func(t *rapid.T) { w.settle(rapid.IntRange(1, 3).Draw(t, "jobs")) },
			"return": func(*rapid.T) { w.bringBack() },
			"admit": func(t *rapid.T) {
				w.admits = append(w.admits, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "queue"))
				w.MarkAdmitting(w.admits[len(w.admits)-1:])
			},
			"settling": func(t *rapid.T) {
				w.settles = append(w.settles, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "queue"))
				w.MarkSettling(w.settles[len(w.settles)-1:])
			},
			"settled":  func(*rapid.T) { w.settled() },
			"admitted": func(t *rapid.T) { w.admitted(rapid.Bool().Draw(t, "ready")) },
			"time":     func(t *rapid.T) { w.now += time.Duration(rapid.IntRange(1, 400).Draw(t, "ms")) * time.Millisecond },
			"prefetcher": func(t *rapid.T) {
				out, _ := w.TakePrefetched(w.now - 150*time.Millisecond)
				w.returning(t, out)
			},
			"late": func(t *rapid.T) {
				if w.late = rapid.IntRange(0, 5).Draw(t, "late") == 0; w.late {
					w.FailOnce(errLate)
				}
			},
			"": func(t *rapid.T) { w.collect(t); w.check(t) },
		})
		w.commit(t)
		for len(w.slow) > 0 {
			w.commitOwn(t)
		}
		for _, r := range w.waiting {
			w.leave(r)
		}
		w.collect(t)
		if len(w.waiting) > 0 {
			t.Fatalf("%d claims have no answer", len(w.waiting))
		}
		for left := true; left; { // jobs to be alone keep their session empty for a while
			w.settle(100)
			w.now += 2 * paceIdle
			var out []backends.Job
			out, left = w.TakePrefetched(0)
			w.returning(t, out)
			w.bringBack()
		}
		w.admitted(false)
		w.settled()
		for number, where := range w.where {
			if where == "claimed" {
				t.Errorf("job %d is lost", number)
			}
		}
		s := &w.matcher
		if n := [...]int{len(s.queues), len(s.byQueue), len(s.attended), len(s.returning), len(s.admitting), len(s.settling), s.due.Len(), s.ownDue.Len(), s.ownCommits, len(s.alone), int(s.prefetchBytes.bytes), len(s.expired)}; n != [12]int{} {
			t.Errorf("at the end the matcher has %v entries, want none", n)
		}
		for i, s := range w.sessions {
			if n, _, probe := s.Jobs.Reserve(s.MaxJobs(), s.MaxJobs()); n != s.MaxJobs() && !probe {
				t.Errorf("session %d can claim %d jobs, want %d", i, n, s.MaxJobs())
			}
		}
	})
}
