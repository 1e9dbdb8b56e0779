package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// callers are clients that work while the service is restarted.
type callers struct {
	socket string
	over   chan struct{} // closed to end them
	wg     sync.WaitGroup

	connects, again, jobs atomic.Int64
	slowest               atomic.Int64 // nanoseconds from a connect to its reply

	mu        sync.Mutex
	refused   []error        // connects that failed
	delivered map[string]int // job → deliveries
	wrong     []string
}

// caller is one client: a connection and its lease.
type caller struct {
	*callers
	name  string
	w     *kit.Wire // nil if there is none
	lease string
}

// stop ends the clients and reports the errors of each.
func (c *callers) stop(t *testing.T) {
	t.Helper()
	close(c.over)
	c.wg.Wait()
	for _, err := range c.refused {
		t.Errorf("a connect failed: %v", err)
	}
	for _, what := range c.wrong {
		t.Error(what)
	}
	for id, n := range c.delivered {
		if n != 1 {
			t.Errorf("job %s was delivered %d times", id, n)
		}
	}
}

func (c *callers) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// ask sends a request until it gets a final reply, on as many connections as it needs. It binds the
// caller's lease to each. A closed connection is allowed, a refused one is an error.
func (c *caller) ask(req kit.Msg) *kit.Reply {
	for began := kit.Monotonic(); ; {
		if r := c.once(req); r != nil {
			return r
		}
		if kit.Since(began) > testwait.Limit {
			c.note("%s: no answer to %v in %v", c.name, kit.Brief(req), testwait.Limit)
			return &kit.Reply{Error: &kit.Error{Code: "none"}}
		}
	}
}

// once is one try. It returns nil if the caller must try again.
func (c *caller) once(req kit.Msg) *kit.Reply {
	if c.w == nil && !c.connect() {
		return nil
	}
	r, err := call(c.w, req)
	switch {
	case err != nil:
		c.w.Close()
		c.w = nil
		c.again.Add(1)
		return nil
	case r.Error != nil && (r.Error.Code == "draining" || r.Error.Transient()):
		kit.Pace()
		return nil
	}
	return r
}

// call is w.Call with the tests' time limit.
func call(w *kit.Wire, req kit.Msg) (*kit.Reply, error) {
	if err := w.SetReadDeadline(testwait.Deadline()); err != nil {
		return nil, err
	}
	return w.Call(req)
}

func (c *caller) connect() bool {
	began := kit.Monotonic()
	c.connects.Add(1)
	w, err := kit.DialWire(c.socket)
	if err != nil {
		c.mu.Lock()
		c.refused = append(c.refused, err)
		c.mu.Unlock()
		kit.Pace()
		return false
	}
	first := kit.Msg{"op": "ping"}
	if c.lease != "" {
		first = kit.Msg{"op": "extend", "lease": c.lease, "bind": true}
	}
	r, err := call(w, first)
	if err != nil { // the old process had carried it out
		w.Close()
		c.again.Add(1)
		return false
	}
	for took := int64(kit.Since(began)); ; {
		if was := c.slowest.Load(); took <= was || c.slowest.CompareAndSwap(was, took) {
			break
		}
	}
	if r.Error != nil && !r.Error.Transient() {
		c.note("%s: %v on a new connection: %v", c.name, first["op"], r.Error)
	}
	c.w = w
	return true
}

func (c *callers) ended() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// work enqueues, claims and acks until the end. It calls hold with each job.
func (c *caller) work(queue string, hold func()) {
	for i := 0; !c.ended(); i++ {
		c.ask(kit.Msg{"op": "enqueue", "queue": queue, "key": fmt.Sprint(c.name, "-", i)})
		var job kit.Job
		for job.ID == "" {
			if r := c.ask(kit.Msg{"op": "claim", "queue": queue, "wait_ms": 500}); len(r.Jobs) > 0 {
				job = r.Jobs[0]
			} else if r.Error != nil {
				return
			}
		}
		c.mu.Lock()
		c.delivered[job.ID]++
		c.mu.Unlock()
		if job.Attempt != 1 {
			c.note("%s: job %s is delivered as attempt %d", c.name, job.ID, job.Attempt)
		}
		c.lease = job.Lease
		hold()
		if r := c.ask(kit.Msg{"op": "ack", "lease": c.lease}); r.Error != nil {
			c.note("%s: ack of %s: %v", c.name, job.ID, r.Error)
		}
		c.lease = ""
		c.jobs.Add(1)
	}
}

// connectRepeatedly opens one connection after another.
func (c *caller) connectRepeatedly() {
	for !c.ended() {
		c.ask(kit.Msg{"op": "ping"})
		if c.w != nil {
			c.w.Close()
			c.w = nil
		}
	}
}

func (c *callers) join(n int, what string, f func(m *caller)) {
	for i := range n {
		m := &caller{callers: c, name: what + strconv.Itoa(i)}
		c.wg.Go(func() {
			f(m)
			if m.w != nil {
				m.w.Close()
			}
		})
	}
}

// unitRestart restarts the service and replaces its program under 32 clients. No connect is
// refused, no job is lost or delivered twice, including jobs that are held all the time.
func unitRestart(t *testing.T, s *service) {
	s.config("drain_timeout: 300ms\n" + // shorter than some clients hold their jobs
		"databases: {main: {url: 'sqlite:/var/lib/qsidecar/qsidecar.db', restart_grace: 10m}}\n") // longer than all of this
	c := &callers{socket: s.path(unitSocket), over: make(chan struct{}), delivered: map[string]int{}}
	var held sync.WaitGroup
	held.Add(4)
	c.join(20, "worker", func(m *caller) { m.work("busy", func() {}) })
	c.join(4, "holder", func(m *caller) { m.work("held", sync.OnceFunc(func() { held.Done(); <-c.over })) })
	c.join(8, "connecter", (*caller).connectRepeatedly)
	held.Wait()

	const restarts = 5
	pid, _ := s.running()
	for i := range restarts {
		if i%2 == 1 { // an upgrade: replaces the program, while the old one runs
			f, err := os.OpenFile(filepath.Join(s.share, "bin", "qsidecar"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("more\n"); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			s.do("%s", s.commands("upgrade"))
		} else {
			s.do("systemctl restart %s", unit)
		}
		was := pid
		if pid, _ = s.running(); pid == was {
			t.Errorf("restart %d: the same process", i)
		}
		s.do("cmp /proc/%s/exe bin/qsidecar", pid)
		worked := c.jobs.Load()
		testwait.Until(t, "the clients work on", func() bool { return c.jobs.Load() > worked+20 })
	}
	c.stop(t)
	client := s.dial()
	for _, queue := range []string{"busy", "held"} {
		if left := client.Stats(queue); left.Total() != 0 {
			t.Errorf("%s: %+v are left", queue, left)
		}
	}
	if c.again.Load() < restarts {
		t.Errorf("only %d connections ended: were there restarts?", c.again.Load())
	}
	kit.Figure(t, "%d restarts, 2 with another program, under 32 clients: %d connects, %d jobs, 0 refused; %d connections were closed and opened again, the slowest answer to a connect took %v",
		restarts, c.connects.Load(), c.jobs.Load(), c.again.Load(), time.Duration(c.slowest.Load()).Round(time.Millisecond))
}
