package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/testseed"
)

// started is a job that a process began to work.
type started struct {
	job
	process int
	beside  int // jobs of the same connection at that moment
	after   time.Duration
}

// fleet is processes with one connection each, on which several threads claim. A job "kill" ends its process a second
// after it began: the connection breaks, and the process starts again. The other jobs take the time that is their payload.
type fleet struct {
	t       *testing.T
	s       *sidecar
	threads int
	next    bool // a thread claims its next job with its ack
	began   time.Duration

	mu      sync.Mutex
	over    bool
	conns   map[int]*client
	started []started
	crowded []string // jobs that began beside one that must be alone
	wg      sync.WaitGroup
}

func newFleet(t *testing.T, s *sidecar, threads int) *fleet {
	return &fleet{t: t, s: s, threads: threads, began: virtualClock(), conns: map[int]*client{}}
}

// launch starts process n.
func (f *fleet) launch(n int) {
	f.wg.Go(func() {
		for !f.isOver() {
			f.live(n)
		}
	})
}

func (f *fleet) isOver() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.over
}

// stop ends all processes.
func (f *fleet) stop() {
	f.mu.Lock()
	f.over = true
	for _, c := range f.conns {
		_ = c.conn.Close() // a process can have closed it
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// live is the life of a process until its connection breaks.
func (f *fleet) live(n int) {
	c := f.s.dial(f.t)
	f.mu.Lock()
	f.conns[n] = c
	f.mu.Unlock()
	var mu sync.Mutex
	dead := false
	send := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if !dead {
			_, _ = fmt.Fprintf(c.conn, format+"\n", args...) // the connection can be closed
		}
	}
	held := map[string]bool{}      // the jobs of this process
	exclusive := map[string]bool{} // those of them that were lost before and are on their last attempt
	claim := func(id string) { send(`{"op":"claim","id":%q,"queue":"q","wait_ms":3600000}`, id) }
	for i := range f.threads {
		claim(fmt.Sprint(i))
	}
	for {
		line, err := c.line()
		if err != nil {
			mu.Lock()
			dead = true
			mu.Unlock()
			return
		}
		r := parse(f.t, line)
		id, _ := r.ID.(string)
		if !r.OK {
			f.t.Errorf("process %d: %s: %s", n, r.Error.Code, r.Error.Message)
		}
		switch {
		case len(r.Jobs) == 1:
		case r.Acked == 1 || r.Error.Code != "" || f.next:
			claim(id)
			continue
		default:
			f.t.Errorf("process %d: a claim that waits an hour got %s", n, line)
			return
		}
		j := r.Jobs[0]
		mu.Lock()
		f.mu.Lock()
		if len(exclusive) > 0 {
			f.crowded = append(f.crowded, j.Payload)
		}
		f.started = append(f.started, started{j, n, len(held), virtualClock() - f.began})
		f.mu.Unlock()
		if held[j.ID] = true; strings.HasPrefix(j.LastError, "the client hung up") && j.Attempt == j.MaxAttempts {
			exclusive[j.ID] = true
		}
		mu.Unlock()
		if j.Payload == "kill" {
			f.wg.Go(func() {
				time.Sleep(time.Second)
				_ = c.conn.Close() // another one on this connection was faster
			})
			continue
		}
		took, err := time.ParseDuration(j.Payload)
		if err != nil {
			f.t.Error(err)
		}
		f.wg.Go(func() {
			time.Sleep(took)
			mu.Lock()
			delete(held, j.ID)
			delete(exclusive, j.ID)
			mu.Unlock()
			if f.next {
				send(`{"op":"ack","id":%q,"lease":%q,"claim":{"queue":"q"}}`, id, j.Lease)
			} else {
				send(`{"op":"ack","id":%q,"lease":%q}`, id, j.Lease)
			}
		})
	}
}

// enqueue stores jobs of queue q with these payloads.
func (f *fleet) enqueue(payloads ...string) {
	var jobs []string
	for _, p := range payloads {
		payload, _ := json.Marshal(p)
		jobs = append(jobs, fmt.Sprintf(`{"queue":"q","payload":%s}`, payload))
	}
	f.s.dial(f.t).call(`{"op":"enqueue","jobs":[%s]}`, strings.Join(jobs, ","))
}

// finish waits until no job is left, ends the processes and returns the dead jobs.
func (f *fleet) finish(db backends.Inspector) []backends.View {
	f.t.Helper()
	for left := int64(1); left > 0; time.Sleep(time.Second) {
		all, err := db.Stats(f.t.Context(), "q")
		if err != nil {
			f.t.Fatal(err)
		}
		if left = all[0].Ready + all[0].Scheduled + all[0].Claimed; virtualClock()-f.began > 2*time.Hour {
			f.t.Errorf("%d jobs are left after two hours", left)
			break
		}
	}
	f.stop()
	dead, err := db.Peek(f.t.Context(), backends.Peek{Queue: "q", State: backends.StateDead, Max: 100})
	if err != nil {
		f.t.Fatal(err)
	}
	if len(f.crowded) > 0 {
		f.t.Errorf("began beside a job that must be alone: %v", f.crowded)
	}
	for _, x := range f.started {
		if x.Attempt == x.MaxAttempts && strings.HasPrefix(x.LastError, "the client hung up") && x.beside > 0 {
			f.t.Errorf("the last attempt of %s began beside %d others", x.Payload, x.beside)
		}
	}
	return dead
}

// onlyKillers checks that each dead job is a killer, and how many there are.
func (f *fleet) onlyKillers(dead []backends.View, want int) {
	f.t.Helper()
	for _, v := range dead {
		if string(v.Payload) != "kill" {
			f.t.Errorf("%s is dead: %+v", v.Payload, v.Failures)
		}
	}
	if len(dead) != want {
		f.t.Errorf("%d jobs are dead, want %d", len(dead), want)
	}
}

func crashing(maxAttempts int) (*memory.Backend, Options) {
	db := memory.New()
	o := options(db)
	o.Queues["*"] = Queue{MaxAttempts: maxAttempts}
	return db, o
}

// TestNeighboursOfACrashLive: a job ends its process again and again. The other jobs of the process get through, and the
// failures have the number of jobs that the process had.
func TestNeighboursOfACrashLive(t *testing.T) {
	for name, x := range map[string]struct {
		maxAttempts, processes, threads int
		next                            bool
	}{
		"one connection for all":            {3, 1, 8, false},
		"one connection, two attempts":      {2, 1, 8, false},
		"more claims than jobs":             {3, 1, 30, false},
		"claims with acks":                  {3, 1, 8, true},
		"two processes":                     {3, 2, 4, false},
		"two processes, two attempts":       {2, 2, 8, true},
		"one job for each connection":       {3, 8, 1, false},
		"one job each, claims with acks":    {3, 8, 1, true},
		"fewer threads than jobs":           {3, 1, 3, false},
		"fewer threads, claims with an ack": {3, 1, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, o := crashing(x.maxAttempts)
				f := newFleet(t, start(t, o), x.threads)
				f.next = x.next
				f.enqueue("kill", "20s", "20s", "20s", "20s", "20s", "20s", "20s")
				for n := range x.processes {
					f.launch(n)
				}
				dead := f.finish(db)
				f.onlyKillers(dead, 1)
				if len(dead) == 0 {
					return
				}
				failures := dead[0].Failures
				if len(failures) != x.maxAttempts || failures[len(failures)-1].Message != "the client hung up" {
					t.Errorf("%+v", failures)
				}
				if x.processes == 1 && x.threads == 8 && failures[0].Message != "the client hung up while it had 8 jobs" {
					t.Errorf("the first failure is %+v", failures[0])
				}
			})
		})
	}
}

// suspects store jobs that were lost with their worker, and whose next attempt is the last.
func suspects(t *testing.T, s *sidecar, n int) {
	t.Helper()
	c, before := s.dial(t), s.pipeline().Leases()
	for range n {
		c.call(`{"op":"enqueue","queue":"q","payload":"suspect","max_attempts":2}`)
	}
	if jobs := c.call(`{"op":"claim","queue":"q","max":%d}`, n).Jobs; len(jobs) != n || jobs[0].Payload != "suspect" {
		t.Fatalf("claimed %+v, want the suspects", jobs)
	}
	c.close()
	eventually(t, func() bool { return s.pipeline().Leases() == before })
}

// keptBy lets a session hold a job and wait for another one, so that the suspect is kept for it.
func keptBy(t *testing.T, s *sidecar) (c *client, held job) {
	t.Helper()
	c = s.dial(t)
	c.call(`{"op":"enqueue","queue":"q","payload":"held"}`)
	held = c.claim1("q")
	suspects(t, s, 1)
	c.send(`{"op":"claim","id":"waits","queue":"q","wait_ms":3600000}`)
	eventually(t, func() bool { return s.prefetched() == 1 })
	return c, held
}

// wantSuspect checks that a reply has the suspect, on its last attempt.
func wantSuspect(t *testing.T, r reply) job {
	t.Helper()
	if len(r.Jobs) != 1 || r.Jobs[0].Payload != "suspect" || r.Jobs[0].Attempt != 2 {
		t.Fatalf("got %+v, want the suspect alone", r)
	}
	return r.Jobs[0]
}

// TestAloneWhenTheSessionIsEmpty: the job that must be alone goes to its session as soon as that one has settled its last
// job. Until it has ended itself, other claims of the session wait, or find nothing if they don't wait.
func TestAloneWhenTheSessionIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := crashing(20)
		s := start(t, o)
		c, held := keptBy(t, s)
		other := s.dial(t)
		time.Sleep(10 * time.Second) // the job goes back and is kept again
		other.call(`{"op":"enqueue","queue":"q","payload":"next"}`)
		for _, op := range []string{`{"op":"claim","id":"poll","queue":"q"}`, `{"op":"claim","id":"poll","queue":"q","lease_ms":60000}`} {
			if r := c.call("%s", op); r.ID != "poll" || len(r.Jobs) != 0 {
				t.Errorf("a claim of a session that runs empty got %+v", r)
			}
		}
		c.send(`{"op":"ack","id":"ack","lease":%q}`, held.Lease)
		var got job
		for range 2 {
			if r := c.receive(); r.ID == "waits" {
				got = wantSuspect(t, r)
			} else if r.Acked != 1 {
				t.Errorf("%+v", r)
			}
		}
		c.send(`{"op":"claim","id":"waits","queue":"q","wait_ms":3600000}`)
		if r := c.call(`{"op":"claim","id":"poll","queue":"q","max":8}`); r.ID != "poll" || len(r.Jobs) != 0 {
			t.Errorf("a claim beside the job got %+v", r)
		}
		c.send(`{"op":"ack","id":"ack","lease":%q,"claim":{"queue":"q"}}`, got.Lease)
		next := 0
		for range 2 {
			for _, j := range c.receive().Jobs {
				if next++; j.Payload != "next" {
					t.Errorf("%+v", j)
				}
			}
			if next == 1 {
				break
			}
		}
		if next != 1 {
			t.Error("the session got no job after that")
		}
	})
}

// TestAnEmptySessionComesFirst: a job waits for a session with a long job. Another session without jobs gets it at once,
// and the first one gets others again.
func TestAnEmptySessionComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := crashing(20)
		s := start(t, o)
		c, _ := keptBy(t, s)
		began := time.Now()
		wantSuspect(t, s.dial(t).call(`{"op":"claim","queue":"q","wait_ms":1000}`))
		if took := time.Since(began); took > longestLinger {
			t.Errorf("an empty session got the job after %v", took)
		}
		s.dial(t).call(`{"op":"enqueue","queue":"q","payload":"next"}`)
		if r := c.receive(); len(r.Jobs) != 1 || r.Jobs[0].Payload != "next" {
			t.Errorf("the first session got %+v", r)
		}
	})
}

// TestAnotherSessionAfterOneThatLeaves: the session that runs empty for a job leaves. Another one gets the job when it is
// empty.
func TestAnotherSessionAfterOneThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := crashing(20)
		s := start(t, o)
		second := s.dial(t)
		second.call(`{"op":"enqueue","queue":"q","priority":1}`)
		held := second.claim1("q")
		c, _ := keptBy(t, s)
		second.send(`{"op":"claim","id":"waits","queue":"q","wait_ms":3600000}`)
		c.call(`{"op":"bye"}`)
		if r := second.receive(); len(r.Jobs) != 1 || r.Jobs[0].Payload != "held" {
			t.Fatalf("%+v", r)
		} else {
			second.call(`{"op":"ack","lease":%q}`, r.Jobs[0].Lease)
		}
		second.send(`{"op":"claim","id":"waits","queue":"q","wait_ms":3600000}`)
		time.Sleep(5 * time.Second)
		second.send(`{"op":"ack","id":"ack","lease":%q}`, held.Lease)
		for range 2 {
			if r := second.receive(); r.ID == "waits" {
				wantSuspect(t, r)
			}
		}
	})
}

// TestAKeptJobGoesBack: a pause and a drain apply to a job that waits to be alone. Its attempt doesn't count.
func TestAKeptJobGoesBack(t *testing.T) {
	ready := func(t *testing.T, db *memory.Backend, want int) {
		t.Helper()
		jobs, err := db.Peek(t.Context(), backends.Peek{Queue: "q", State: backends.StateReady, Max: 10})
		if err != nil || len(jobs) != want || want > 0 && jobs[0].Attempt != 1 {
			t.Errorf("ready: %+v, want %d jobs: %v", jobs, want, err)
		}
	}
	t.Run("pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			db, o := crashing(20)
			s := start(t, o)
			c, held := keptBy(t, s)
			operator := s.dial(t)
			operator.call(`{"op":"pause","queue":"q"}`)
			time.Sleep(5 * time.Second)
			ready(t, db, 1)
			c.call(`{"op":"ack","lease":%q}`, held.Lease)
			time.Sleep(5 * time.Second)
			ready(t, db, 1)
			operator.call(`{"op":"resume","queue":"q"}`)
			wantSuspect(t, c.receive())
		})
	})
	t.Run("drain", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			db, o := crashing(20)
			s := start(t, o)
			keptBy(t, s)
			s.stop()
			time.Sleep(5 * time.Second)
			ready(t, db, 1)
		})
	})
	t.Run("stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			db, o := crashing(20)
			o.DrainTimeout = -1
			s := start(t, o)
			keptBy(t, s)
			s.stop()
			if err := s.wait(t); err != nil {
				t.Error(err)
			}
			ready(t, db, 1)
		})
	})
	t.Run("removed queue", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			db, o := crashing(20)
			s := start(t, o)
			keptBy(t, s)
			o.Queues = map[string]Queue{"another": {}}
			if err := s.Reload(o); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			ready(t, db, 1)
		})
	})
}

// TestOneOfSeveralClaimsGetsTheLoneJob: a claim for several jobs gets no job beside one that must be alone, and the others
// of its commit are not lost.
func TestOneOfSeveralClaimsGetsTheLoneJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := crashing(20)
		s := start(t, o)
		suspects(t, s, 2)
		c := s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q","payload":"a"},{"queue":"q","payload":"b"}]}`)
		first := c.call(`{"op":"claim","queue":"q","max":8}`).Jobs
		if len(first) != 2 || first[0].Payload != "a" || first[1].Payload != "b" {
			t.Fatalf("%+v", first)
		}
		for _, j := range first {
			if r := c.call(`{"op":"claim","queue":"q","max":8}`); len(r.Jobs) > 0 {
				t.Errorf("beside %s: %+v", j.Payload, r.Jobs)
			}
			c.call(`{"op":"ack","lease":%q}`, j.Lease)
		}
		for range 2 {
			j := wantSuspect(t, c.call(`{"op":"claim","queue":"q","max":8,"wait_ms":60000}`))
			c.call(`{"op":"ack","lease":%q}`, j.Lease)
		}
	})
}

// TestAMovedJobStaysAlone: its worker takes the job to a new connection, which gets no other job.
func TestAMovedJobStaysAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := crashing(20)
		s := start(t, o)
		suspects(t, s, 1)
		old, c := s.dial(t), s.dial(t)
		j := wantSuspect(t, old.call(`{"op":"claim","queue":"q"}`))
		c.call(`{"op":"enqueue","queue":"q"}`)
		c.call(`{"op":"extend","lease":%q,"bind":true}`, j.Lease)
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) > 0 {
			t.Errorf("beside it: %+v", r.Jobs)
		}
		if r := old.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 1 {
			t.Errorf("the old connection got %+v", r)
		}
		c.call(`{"op":"ack","lease":%q}`, j.Lease)
		c.call(`{"op":"enqueue","queue":"q"}`)
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 1 {
			t.Errorf("after it: %+v", r)
		}
	})
}

// TestABusyFleetDoesNotStarveTheLoneJob: three processes always have work. A job that must be alone starts as soon as one of
// them is empty, and the others go on.
func TestABusyFleetDoesNotStarveTheLoneJob(t *testing.T) {
	for name, x := range map[string]struct {
		next  bool
		alone []string
	}{
		"waiting claims":   {false, []string{"30s"}},
		"claims with acks": {true, []string{"30s"}},
		"a killer":         {true, []string{"kill"}},
		"two":              {false, []string{"30s", "30s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, o := crashing(2)
				s := start(t, o)
				f := newFleet(t, s, 4)
				f.next = x.next
				c := s.dial(t)
				for _, p := range x.alone {
					c.call(`{"op":"enqueue","queue":"q","priority":9,"payload":%q}`, p)
					c.claim1("q")
				}
				var others []string
				for i := range 120 {
					others = append(others, fmt.Sprintf("%dms", 9000+100*(i%10)))
				}
				f.enqueue(others...)
				for n := range 3 {
					f.launch(n)
				}
				time.Sleep(25 * time.Second)
				c.close()
				lost := virtualClock() - f.began
				dead := f.finish(db)
				if x.alone[0] != "kill" {
					f.onlyKillers(dead, 0)
				}
				for _, on := range f.started {
					if on.Attempt < 2 || on.Payload != x.alone[0] {
						continue
					}
					if on.after > lost+20*time.Second { // a claim finds it within 10s, and each job of the session takes less than that
						t.Errorf("%s began %v after it was lost", on.Payload, on.after-lost)
					}
					beside := map[int]int{}
					for _, y := range f.started {
						if y.after > lost && y.after < on.after {
							beside[y.process]++
						}
					}
					t.Logf("%s began %v after it was lost, meanwhile the processes began %v jobs", on.Payload, on.after-lost, beside)
					if len(x.alone) == 1 && len(beside) == 0 {
						t.Errorf("while the job waited, the processes began %v jobs", beside)
					}
				}
				if n := len(f.started); n != len(others)+len(x.alone) {
					t.Errorf("%d jobs were started, want %d", n, len(others)+len(x.alone))
				}
			})
		})
	}
}

// TestAPollerGetsTheLoneJob: the claims of a client never wait. Whenever its last job ends, one of them gets the job.
func TestAPollerGetsTheLoneJob(t *testing.T) {
	for ms := 0; ms < 4000; ms += 50 {
		synctest.Test(t, func(t *testing.T) {
			_, o := crashing(20)
			s := start(t, o)
			c := s.dial(t)
			c.call(`{"op":"enqueue","queue":"q","payload":"held"}`)
			held := c.claim1("q")
			suspects(t, s, 1)
			c.call(`{"op":"enqueue","queue":"q","payload":"next"}`)
			if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) > 0 {
				t.Fatalf("beside another job: %+v", r.Jobs)
			}
			time.Sleep(time.Duration(ms) * time.Millisecond)
			c.call(`{"op":"ack","lease":%q}`, held.Lease)
			j := wantSuspect(t, c.call(`{"op":"claim","queue":"q"}`))
			if r := c.call(`{"op":"ack","lease":%q,"claim":{"queue":"q"}}`, j.Lease); len(r.Jobs) != 1 || r.Jobs[0].Payload != "next" {
				t.Errorf("after it: %+v", r)
			}
		})
	}
}

// TestOnlyKillersDie: random fleets of several sidecars on one database, with random jobs. Every job ends, no other job
// than a killer dies, and none begins beside one that must be alone.
func TestOnlyKillersDie(t *testing.T) {
	r := testseed.Rand(t)
	for range 60 {
		maxAttempts, sidecars, processes, threads, next := 2+r.IntN(3), 1+r.IntN(2), 1+r.IntN(4), 1+r.IntN(9), r.IntN(2) == 0
		var jobs []string
		killers := r.IntN(4)
		for i := range killers + r.IntN(60) {
			job := "kill"
			if i >= killers {
				job = []string{"1ms", "100ms", "900ms", "1100ms", "5s", "20s"}[r.IntN(6)]
			}
			jobs = append(jobs, job)
		}
		if len(jobs) == 0 {
			continue
		}
		r.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		name := fmt.Sprintf("%d attempts, %d sidecars, %d processes of %d threads, with acks %v, %v", maxAttempts, sidecars, processes, threads, next, jobs)
		synctest.Test(t, func(t *testing.T) {
			t.Log(name)
			db := &faulty{Backend: memory.New()}
			f := slow
			db.after.Store(&f)
			var fleets []*fleet
			for range sidecars {
				o := options(db)
				o.Queues["*"] = Queue{MaxAttempts: maxAttempts}
				fleets = append(fleets, newFleet(t, start(t, o), threads))
			}
			fleets[0].enqueue(jobs...)
			for i, f := range fleets {
				f.next = next
				for n := range processes {
					f.launch(i*10 + n)
				}
			}
			for _, f := range fleets {
				f.onlyKillers(f.finish(db), killers)
			}
		})
	}
}

// TestABoundJobStaysAloneAfterARestart: its worker takes the job to the next sidecar, which finds out that it must be alone.
func TestABoundJobStaysAloneAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := crashing(20)
		o.DrainTimeout = -1
		s := start(t, o)
		suspects(t, s, 1)
		j := wantSuspect(t, s.dial(t).call(`{"op":"claim","queue":"q"}`))
		s.stop()
		if err := s.wait(t); err != nil {
			t.Fatal(err)
		}
		c := start(t, o).dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		c.call(`{"op":"extend","lease":%q,"bind":true}`, j.Lease)
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) > 0 {
			t.Errorf("beside it: %+v", r.Jobs)
		}
		c.call(`{"op":"ack","lease":%q}`, j.Lease)
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 1 {
			t.Errorf("after it: %+v", r)
		}
	})
}
