package kit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

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

	// LockWaits is for a cluster, where a commit waits for other nodes and locks can last as long as a
	// harm does. Workers and producers then expect errors about waits for locks.
	LockWaits bool

	// Lossy is for a cluster whose failovers can lose the last commits. What the kills of Failover
	// explain is counted then.
	Lossy bool

	// Backlog, if not 0, is how many jobs the producers keep ready, so that they enqueue during the whole run.
	Backlog int

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
	T        testing.TB
	dir      string // directory of the histories
	Hist     *history
	acked    atomic.Int64
	missed   atomic.Int64 // jobs that are never counted in acked: see keepBacklog
	striking atomic.Bool  // a killer is at work
	acks     chan int     // numbers of successful acks, as they happen
	ackFile  *os.File
	workers  []*WorkerProcess
	spawned  int
	doomed   int // how many workers were started to kill themselves
	began    int64
	most     time.Duration // until nine tenths were acked: the others wait for back-offs
	Rand     *rand.Rand
}

// KillWorker kills a random worker with signal 9, at whatever it does. The worker that replaces it kills itself: with a claimed job,
// or with an ack that has no reply, in turn. So a run has both kinds of death, however rarely a worker has a job.
func KillWorker(r *CrashRuntime) {
	r.watchWorkers()
	i := r.Rand.IntN(len(r.workers))
	victim := r.workers[i]
	r.Killing(victim.Name, func() {
		victim.Kill(r.T)
		<-victim.exited
	})
	r.doomed++
	r.workers[i] = r.spawn(i, []eventKind{claimed, sending}[r.doomed%2])
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

// spawn starts a worker. If diesAt isn't empty, the worker kills itself at its first event of that kind.
func (r *CrashRuntime) spawn(i int, diesAt eventKind) *WorkerProcess {
	r.T.Helper()
	sc := r.Sidecars[i%len(r.Sidecars)]
	r.spawned++
	return StartWorker(r.T, modeCrash, WorkerTask{
		Name: fmt.Sprintf("w%d.%d", i, r.spawned), Sidecar: sc.Name, Socket: sc.Socket,
		Queue: r.Queue, History: r.dir, LockWaits: r.LockWaits, DiesAt: diesAt,
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
		r.workers = append(r.workers, r.spawn(i, ""))
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
	evictions, err := r.evictions(records)
	if err != nil {
		t.Fatal(err)
	}
	records = append(records, evictions...)
	sortRecords(records)
	v := check(run{Enqueued: produced.ids(), Records: records, Left: c.Left(t), Waits: c.Sidecars[0].sidecarTimeout, Lossy: c.Lossy})
	Figure(t, "%v", v)
	Figure(t, "%v; %d evictions", v.Failovers, len(evictions))
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
				r.acked.Add(1)
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
	r.striking.Store(true)
	defer r.striking.Store(false)
	for _, k := range r.Killers {
		if total%k.Every == 0 {
			k.Kill(r)
		}
	}
}

// watchWorkers replaces workers that killed themselves as they had to. It fails the test if another worker exited, because it
// got an unexpected reply.
func (r *CrashRuntime) watchWorkers() {
	for i, w := range r.workers {
		select {
		case <-w.exited:
			if !w.dies || w.err != nil {
				r.T.Fatalf("%s ended by itself: %v", w.Name, w.err)
			}
			r.workers[i] = r.spawn(i, "")
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
