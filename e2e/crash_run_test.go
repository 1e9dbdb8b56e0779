package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// crashRun is the great test: worker processes that claim one and ack one while
// a killer kills them and what serves them, by counts of acks and never by the
// clock. It knows no engine: what differs stands in its fields.
type crashRun struct {
	Queue    string
	Jobs     int
	Workers  int // processes, spread evenly over Sidecars
	Sidecars []*sidecar
	Killers  []killer

	// Tend, if not nil, is called ten times a second: it ends harm that would
	// otherwise last for as long as no ack comes.
	Tend func(r *crashRuntime)

	// Mend, if not nil, ends all harm when every job is worked: a worker that still
	// has a lease, valid or not, ends when it was told so.
	Mend func(r *crashRuntime)

	// Left lists the ids of all jobs that are still in the database, in any state.
	Left func(t testing.TB) []string
}

// killer does harm after every Every-th ack.
type killer struct {
	Every int
	// Strike hits its victim inside killing, and sees to it that the
	// victim comes back.
	Strike func(r *crashRuntime)
}

// crashRuntime is a crashRun under way. It belongs to the test's goroutine.
type crashRuntime struct {
	crashRun
	t       testing.TB
	dir     string // of the histories
	hist    *history
	acks    chan int // numbers of acks answered ok, as they happen
	ackFile *os.File
	workers []*workerProcess
	spawned int
	asleep  sync.WaitGroup // suspended sidecars
	began   time.Time
	most    time.Duration // until nine tenths were acked: the rest waits for back-offs
	rand    *rand.Rand
}

// killWorker kills a random worker by signal 9 and starts another in its place.
func killWorker(r *crashRuntime) {
	i := r.rand.IntN(len(r.workers))
	victim := r.workers[i]
	r.killing(victim.name, func() {
		victim.kill(r.t)
		<-victim.exited
	})
	r.workers[i] = r.spawn(i)
}

// killSidecar kills a random sidecar by signal 9 and starts it again at once.
func killSidecar(r *crashRuntime) {
	sc := r.Sidecars[r.rand.IntN(len(r.Sidecars))]
	r.killing(sc.name, sc.kill)
	sc.start()
}

// suspendSidecar stops a random sidecar for so long and lets it go on. The run
// goes on meanwhile.
func suspendSidecar(d time.Duration) func(*crashRuntime) {
	return func(r *crashRuntime) {
		sc := r.Sidecars[r.rand.IntN(len(r.Sidecars))]
		process := sc.cmd.Process // another killer may put a new one in its place
		at := monotonic()
		sc.signal(syscall.SIGSTOP)
		r.asleep.Go(func() {
			pass(d)
			if err := process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
				r.t.Error(err)
			}
			if err := r.hist.add(record{At: at, Until: monotonic(), Who: sc.name, What: killed}); err != nil {
				r.t.Error(err)
			}
		})
	}
}

// killing does a kill and records when it began and when it was over.
func (r *crashRuntime) killing(who string, kill func()) {
	r.t.Helper()
	at := monotonic()
	kill()
	if err := r.hist.add(record{At: at, Until: monotonic(), Who: who, What: killed}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *crashRuntime) spawn(i int) *workerProcess {
	r.t.Helper()
	sc := r.Sidecars[i%len(r.Sidecars)]
	r.spawned++
	return startWorker(r.t, modeCrash, workerTask{
		Name: fmt.Sprintf("w%d.%d", i, r.spawned), Sidecar: sc.name, Socket: sc.socket,
		Queue: r.Queue, History: r.dir,
	}, r.ackFile)
}

// run does it all and returns the verdict; the test judges it.
func (c crashRun) run(t testing.TB) verdict {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := &crashRuntime{
		crashRun: c, t: t, dir: t.TempDir(), acks: make(chan int), // unbuffered: kills stay close to their counts
		rand: rand.New(rand.NewPCG(seed, 0)),
	}
	var err error
	if r.hist, err = openHistory(r.dir, "killer"); err != nil {
		t.Fatal(err)
	}
	defer r.hist.file.Close()
	r.countAcks()
	r.began = time.Now()
	for i := range c.Workers {
		r.workers = append(r.workers, r.spawn(i))
	}
	produced := r.produce()
	acks := r.work(produced)
	took := time.Since(r.began)
	r.asleep.Wait()
	if r.Mend != nil {
		r.Mend(r)
	}
	for _, w := range r.workers {
		_ = w.stdin.Close() // all at once; stop says how it went
	}
	for _, w := range r.workers {
		w.stop(t)
	}
	records, err := readHistories(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	v := check(run{Enqueued: produced.ids(), Records: records, Left: c.Left(t), Waits: c.Sidecars[0].hostLease})
	figure(t, "%v", v)
	if r.most == 0 { // the run ended before the killer had read of so many acks
		r.most = took
	}
	figure(t, "%d acks answered ok in %v (the killer saw %d), the first nine tenths of the jobs at %.0f/s, with %d workers and %d sidecars",
		v.Acked, took.Round(time.Millisecond), acks, float64(c.Jobs*9/10)/r.most.Seconds(), c.Workers, len(c.Sidecars))
	return v
}

// countAcks makes the pipe that every worker writes its acks to.
func (r *crashRuntime) countAcks() {
	in, out, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	r.ackFile = out
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			n, err := in.Read(buf)
			if err != nil {
				return // closed, below
			}
			select {
			case r.acks <- n:
			case <-ctx.Done():
				return
			}
		}
	}()
	r.t.Cleanup(func() {
		cancel()
		_ = out.Close() // a pipe: nothing is lost by either
		_ = in.Close()
		<-done
	})
}

// work kills until every job is enqueued and the queue is empty. It returns how
// many acks it was told of.
func (r *crashRuntime) work(produced *production) int {
	total := 0
	const stall = 90 * time.Second // nothing happens for so long: something is stuck
	idle := time.NewTimer(stall)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case n := <-r.acks:
			for range n {
				if total++; total == r.Jobs*9/10 {
					r.most = time.Since(r.began)
				}
				r.strike(total)
			}
			idle.Reset(stall)
		case <-look.C:
			r.watchWorkers()
			if r.Tend != nil {
				r.Tend(r)
			}
			if over, err := produced.over(); err != nil {
				r.t.Fatalf("enqueueing: %v", err)
			} else if over && r.empty() {
				return total
			}
		case <-idle.C:
			r.t.Fatalf("no ack for %v, after %d; %d jobs are in the table", stall, total, len(r.Left(r.t)))
		}
	}
}

func (r *crashRuntime) strike(total int) {
	for _, k := range r.Killers {
		if total%k.Every == 0 {
			k.Strike(r)
		}
	}
}

// watchWorkers fails the test when a worker ended by itself: it met an answer it
// should never see.
func (r *crashRuntime) watchWorkers() {
	for _, w := range r.workers {
		select {
		case <-w.exited:
			r.t.Fatalf("%s ended by itself: %v", w.name, w.err)
		default:
		}
	}
}

// empty asks a sidecar whether the queue has no job in any state.
func (r *crashRuntime) empty() bool {
	c, err := dialWire(r.Sidecars[0].socket)
	if err != nil {
		return false
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	s, err := c.call(msg{"op": "stats", "queue": r.Queue})
	if err != nil || s.Error != nil {
		return false
	}
	for _, q := range s.Queues {
		if q.total() > 0 {
			return false
		}
	}
	return true
}

// production enqueues while the workers work.
type production struct {
	mu    sync.Mutex
	jobs  map[string]string // id → payload
	done  chan struct{}
	err   error
	group errgroup.Group
}

func (p *production) ids() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs
}

// over reports whether everything is enqueued, or why it never will be.
func (p *production) over() (ended bool, err error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

// produce enqueues in batches, each job with a key so that an enqueue whose
// answer was lost can be sent again.
func (r *crashRuntime) produce() *production {
	const producers, batch = 2, 100
	p := &production{jobs: map[string]string{}, done: make(chan struct{})}
	stop := make(chan struct{})
	for i := range producers {
		p.group.Go(func() error {
			socket := r.Sidecars[i%len(r.Sidecars)].socket
			for from := i * batch; from < r.Jobs; from += producers * batch {
				if err := p.enqueue(socket, r.Queue, from, min(from+batch, r.Jobs), stop); err != nil {
					return err
				}
			}
			return nil
		})
	}
	go func() {
		p.err = p.group.Wait()
		close(p.done)
	}()
	r.t.Cleanup(func() { close(stop); <-p.done })
	return p
}

// enqueue stores jobs from…to, again and again until it is answered.
func (p *production) enqueue(socket, queue string, from, to int, stop <-chan struct{}) error {
	var jobs []msg
	for n := from; n < to; n++ {
		jobs = append(jobs, msg{"queue": queue, "payload": fmt.Sprint("job ", n), "key": fmt.Sprint("k", n)})
	}
	for {
		r, err := enqueueOnce(socket, jobs)
		if err == nil && r.Error == nil {
			return p.take(r.Jobs, jobs)
		}
		if err == nil && (r.Error.conflict() || !r.Error.passing()) {
			return r.Error
		}
		select {
		case <-stop:
			return fmt.Errorf("stopped; the last answer was %v, %w", r, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func enqueueOnce(socket string, jobs []msg) (*reply, error) {
	w, err := dialWire(socket)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if err := w.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	r, err := w.call(msg{"op": "enqueue", "jobs": jobs})
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return r, err
}

func (p *production) take(stored []wireJob, sent []msg) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(stored) != len(sent) {
		return fmt.Errorf("%d jobs enqueued, %d answered", len(sent), len(stored))
	}
	for i, j := range stored {
		if before, ok := p.jobs[j.ID]; ok {
			return fmt.Errorf("the id %s was given to %q and to %q", j.ID, before, sent[i]["payload"])
		}
		p.jobs[j.ID] = sent[i]["payload"].(string)
	}
	return nil
}
