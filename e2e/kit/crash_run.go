package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/qsidecar/qsidecar/internal/testseed"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// CrashRun is the large crash test. Worker processes claim and ack one job at a time, while killers
// kill them and their servers, after counts of acks and never by the clock. It has no code for an
// engine. The engine's part is in its fields.
type CrashRun struct {
	Queue    string
	Jobs     int
	Workers  int // processes, spread evenly over Sidecars
	Sidecars []*Sidecar
	Killers  []Killer

	// OnTick, if not nil, is called ten times a second. It ends harm that would otherwise last for as
	// long as no ack arrives.
	OnTick func(r *CrashRuntime)

	// RepairAll, if not nil, ends all harm once every job is processed, because a worker that still has
	// a lease, valid or not, must be able to end.
	RepairAll func(r *CrashRuntime)

	// Left returns the ids of all jobs that are still in the database, in any state.
	Left func(t testing.TB) []string
}

// Killer does harm after every Every-th ack.
type Killer struct {
	Every int
	// Kill harms its victim inside Killing and restarts it.
	Kill func(r *CrashRuntime)
}

// CrashRuntime is the state of a CrashRun. Only the test's goroutine uses it.
type CrashRuntime struct {
	CrashRun
	T       testing.TB
	dir     string // directory of the histories
	Hist    *history
	acks    chan int // numbers of successful acks, as they happen
	ackFile *os.File
	workers []*WorkerProcess
	spawned int
	began   int64
	most    time.Duration // until nine tenths were acked: the others wait for back-offs
	Rand    *rand.Rand
}

// KillWorker kills a random worker with signal 9 and starts another one.
func KillWorker(r *CrashRuntime) {
	i := r.Rand.IntN(len(r.workers))
	victim := r.workers[i]
	r.Killing(victim.Name, func() {
		victim.Kill(r.T)
		<-victim.exited
	})
	r.workers[i] = r.spawn(i)
}

// KillSidecar kills a random sidecar with signal 9 and restarts it at once.
func KillSidecar(r *CrashRuntime) {
	sc := r.Sidecars[r.Rand.IntN(len(r.Sidecars))]
	r.Killing(sc.Name, sc.Kill)
	sc.Start()
}

// Killing runs a kill and records its start and end.
func (r *CrashRuntime) Killing(who string, kill func()) {
	r.T.Helper()
	at := Monotonic()
	kill()
	if err := r.Hist.Add(Record{At: at, Until: Monotonic(), Who: who, What: Killed}); err != nil {
		r.T.Fatal(err)
	}
}

func (r *CrashRuntime) spawn(i int) *WorkerProcess {
	r.T.Helper()
	sc := r.Sidecars[i%len(r.Sidecars)]
	r.spawned++
	return StartWorker(r.T, modeCrash, WorkerTask{
		Name: fmt.Sprintf("w%d.%d", i, r.spawned), Sidecar: sc.Name, Socket: sc.Socket,
		Queue: r.Queue, History: r.dir,
	}, r.ackFile)
}

// Run does the whole run and returns the Verdict.
func (c CrashRun) Run(t testing.TB) Verdict {
	t.Helper()
	r := &CrashRuntime{
		CrashRun: c, T: t, dir: t.TempDir(), acks: make(chan int), // unbuffered, so that kills happen close to their counts
		Rand: testseed.Rand(t),
	}
	var err error
	if r.Hist, err = openHistory(r.dir, "killer"); err != nil {
		t.Fatal(err)
	}
	defer r.Hist.file.Close()
	r.countAcks()
	r.began = Monotonic()
	for i := range c.Workers {
		r.workers = append(r.workers, r.spawn(i))
	}
	produced := r.produce()
	acks := r.work(produced)
	took := Since(r.began)
	if r.RepairAll != nil {
		r.RepairAll(r)
	}
	for _, w := range r.workers {
		_ = w.stdin.Close() // all at once; stop reports the results
	}
	for _, w := range r.workers {
		w.Stop(t)
	}
	records, err := readHistories(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	v := check(run{Enqueued: produced.ids(), Records: records, Left: c.Left(t), Waits: c.Sidecars[0].sidecarTimeout})
	Figure(t, "%v", v)
	if r.most == 0 { // the run ended before that killer saw enough acks
		r.most = took
	}
	Figure(t, "%d acks answered ok in %v (the killer saw %d), the first nine tenths of the jobs at %.0f/s, with %d workers and %d sidecars",
		v.Acked, took.Round(time.Millisecond), acks, float64(c.Jobs*9/10)/r.most.Seconds(), c.Workers, len(c.Sidecars))
	return v
}

// countAcks creates the pipe to which every worker writes its acks.
func (r *CrashRuntime) countAcks() {
	in, out, err := os.Pipe()
	if err != nil {
		r.T.Fatal(err)
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
				return // closed below
			}
			select {
			case r.acks <- n:
			case <-ctx.Done():
				return
			}
		}
	}()
	r.T.Cleanup(func() {
		cancel()
		_ = out.Close() // a pipe: an error of Close loses nothing
		_ = in.Close()
		<-done
	})
}

// work kills until every job is enqueued and the queue is empty. It returns how many acks it saw.
// The time limit applies to each ack.
func (r *CrashRuntime) work(produced *production) int {
	total, looks := 0, 0
	for over := false; !over; {
		testwait.Until(r.T, fmt.Sprintf("an ack after %d, or the end", total), func() bool {
			before := total
			total += r.newAcks(total)
			if looks++; total != before || looks%20 != 0 { // the other checks are expensive
				return total != before
			}
			r.watchWorkers()
			if r.OnTick != nil {
				r.OnTick(r)
			}
			ended, err := produced.over()
			if err != nil {
				r.T.Fatalf("enqueueing: %v", err)
			}
			over = ended && r.empty()
			return over
		})
	}
	return total
}

// newAcks counts the acks since the last call and runs the killers.
func (r *CrashRuntime) newAcks(before int) (n int) {
	for {
		select {
		case more := <-r.acks:
			for range more {
				n++
				if before+n == r.Jobs*9/10 {
					r.most = time.Duration(Monotonic() - r.began)
				}
				r.strike(before + n)
			}
		default:
			return n
		}
	}
}

func (r *CrashRuntime) strike(total int) {
	for _, k := range r.Killers {
		if total%k.Every == 0 {
			k.Kill(r)
		}
	}
}

// watchWorkers fails the test if a worker exited by itself, because it got an unexpected reply.
func (r *CrashRuntime) watchWorkers() {
	for _, w := range r.workers {
		select {
		case <-w.exited:
			r.T.Fatalf("%s ended by itself: %v", w.Name, w.err)
		default:
		}
	}
}

// empty reports whether the queue has no job in any state, by a sidecar's stats.
func (r *CrashRuntime) empty() bool {
	c, err := DialWire(r.Sidecars[0].Socket)
	if err != nil {
		return false
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil { // the next call tries again
		return false
	}
	s, err := c.Call(Msg{"op": "stats", "queue": r.Queue})
	if err != nil || s.Error != nil {
		return false
	}
	for _, q := range s.Queues {
		if q.Total() > 0 {
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

// over reports whether all jobs are enqueued, or the error that prevents it.
func (p *production) over() (ended bool, err error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

// produce enqueues in batches. Each job has a key, so that an enqueue without a reply can be
// repeated.
func (r *CrashRuntime) produce() *production {
	const producers, batch = 2, 100
	p := &production{jobs: map[string]string{}, done: make(chan struct{})}
	stop := make(chan struct{})
	for i := range producers {
		p.group.Go(func() error {
			socket := r.Sidecars[i%len(r.Sidecars)].Socket
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
	r.T.Cleanup(func() { close(stop); <-p.done })
	return p
}

// enqueue stores jobs from…to and repeats until it gets a reply.
func (p *production) enqueue(socket, queue string, from, to int, stop <-chan struct{}) error {
	var jobs []Msg
	for n := from; n < to; n++ {
		jobs = append(jobs, Msg{"queue": queue, "payload": fmt.Sprint("job ", n), "key": fmt.Sprint("k", n)})
	}
	for {
		r, err := enqueueOnce(socket, jobs)
		if err == nil && r.Error == nil {
			return p.addReplies(r.Jobs, jobs)
		}
		if err == nil && (r.Error.conflict() || !r.Error.Transient()) {
			return r.Error
		}
		select {
		case <-stop:
			return fmt.Errorf("stopped; the last answer was %v, %w", r, err)
		default:
			Pace()
		}
	}
}

func enqueueOnce(socket string, jobs []Msg) (*Reply, error) {
	w, err := DialWire(socket)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if err := w.SetDeadline(testwait.Deadline()); err != nil {
		return nil, err
	}
	r, err := w.Call(Msg{"op": "enqueue", "jobs": jobs})
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return r, err
}

func (p *production) addReplies(stored []Job, sent []Msg) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(stored) != len(sent) {
		return fmt.Errorf("%d jobs enqueued, %d answered", len(sent), len(stored))
	}
	for i, j := range stored {
		if before, ok := p.jobs[j.ID]; ok {
			return fmt.Errorf("the id %s belongs to %q and to %q", j.ID, before, sent[i]["payload"])
		}
		p.jobs[j.ID] = sent[i]["payload"].(string)
	}
	return nil
}

// JudgeCrash fails the test for any problem, and for a run that proved nothing.
func JudgeCrash(t *testing.T, v Verdict) {
	t.Helper()
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.Summary(20))
	}
	if v.Redelivered+v.Bound == 0 || v.InDoubt == 0 {
		t.Errorf("the kills hit no worker with a job: %v", v)
	}
}
