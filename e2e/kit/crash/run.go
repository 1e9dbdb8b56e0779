// Package crash runs workers, sidecars and servers while it kills them, and checks that no job was lost or processed twice
// without a reason. run.go has the run: its producers are in produce.go, its worker processes in worker.go. Each process
// writes its history (history.go). checker.go judges the histories, and failover.go adds the figures of failovers.
package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/child"
	"github.com/qsidecar/qsidecar/internal/testseed"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Plan is the large crash test. Worker processes claim and ack one job at a time, while killers
// kill them and their servers, after counts of acks and never by the clock. It has no code for an
// engine. The engine's part is in its fields.
type Plan struct {
	Queue    string
	Jobs     int
	Workers  int // processes, spread evenly over Sidecars
	Sidecars []*kit.Sidecar
	Killers  []Killer

	// OnTick, if not nil, is called ten times a second. It ends harm that would otherwise last for as
	// long as no ack arrives.
	OnTick func(r *Run)

	// RepairAll, if not nil, ends all harm once every job is processed, because a worker that still has
	// a lease, valid or not, must be able to end.
	RepairAll func(r *Run)

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
	Kill func(r *Run)
}

// Run is the state of a run. Only the test's goroutine uses it.
type Run struct {
	Plan
	T        testing.TB
	dir      string // directory of the histories
	Hist     *history
	acked    atomic.Int64
	missed   atomic.Int64 // jobs that are never counted in acked: see keepBacklog
	striking atomic.Bool  // a killer is at work
	acks     chan int     // numbers of successful acks, as they happen
	ackFile  *os.File
	workers  []*child.Process
	spawned  int
	doomed   int // how many workers were started to kill themselves
	began    int64
	most     time.Duration // until nine tenths were acked: the others wait for back-offs
	Rand     *rand.Rand
}

// Run does the whole run and returns the Verdict.
func (p Plan) Run(t testing.TB) Verdict {
	t.Helper()
	r := &Run{
		Plan: p, T: t, dir: t.TempDir(), acks: make(chan int), // unbuffered, so that kills happen close to their counts
		Rand: testseed.Rand(t),
	}
	var err error
	if r.Hist, err = openHistory(r.dir, "killer"); err != nil {
		t.Fatal(err)
	}
	defer r.Hist.file.Close()
	r.countAcks()
	r.began = kit.Monotonic()
	for i := range p.Workers {
		r.workers = append(r.workers, r.spawn(i, ""))
	}
	produced := r.produce()
	acks := r.work(produced)
	took := kit.Since(r.began)
	if r.RepairAll != nil {
		r.RepairAll(r)
	}
	for _, w := range r.workers {
		w.AskToStop() // all at once
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
	v := check(outcome{Enqueued: produced.ids(), Records: records, Left: p.Left(t), Waits: p.Sidecars[0].SidecarTimeout, Lossy: p.Lossy})
	kit.Figure(t, "%v", v)
	kit.Figure(t, "%v; %d evictions", v.Failovers, len(evictions))
	if r.most == 0 { // the run ended before that killer saw enough acks
		r.most = took
	}
	kit.Figure(t, "%d acks answered ok in %v (the killer saw %d), the first nine tenths of the jobs at %.0f/s, with %d workers and %d sidecars",
		v.Acked, took.Round(time.Millisecond), acks, float64(p.Jobs*9/10)/r.most.Seconds(), p.Workers, len(p.Sidecars))
	return v
}

// countAcks creates the pipe to which every worker writes its acks.
func (r *Run) countAcks() {
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
func (r *Run) work(produced *production) int {
	total, checked := 0, kit.Monotonic()
	for over := false; !over; {
		testwait.Until(r.T, fmt.Sprintf("an ack after %d, or the end", total), func() bool {
			before := total
			total += r.newAcks(total)
			if total != before || kit.Since(checked) < 100*time.Millisecond { // the other checks are expensive
				return total != before
			}
			checked = kit.Monotonic()
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
func (r *Run) newAcks(before int) (n int) {
	for {
		select {
		case more := <-r.acks:
			for range more {
				n++
				r.acked.Add(1)
				if before+n == r.Jobs*9/10 {
					r.most = time.Duration(kit.Monotonic() - r.began)
				}
				r.strike(before + n)
			}
		default:
			return n
		}
	}
}

func (r *Run) strike(total int) {
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
func (r *Run) watchWorkers() {
	for i, w := range r.workers {
		select {
		case <-w.Exited():
			if !w.Dies || w.Err() != nil {
				r.T.Fatalf("%s ended by itself: %v", w.Name, w.Err())
			}
			r.workers[i] = r.spawn(i, "")
		default:
		}
	}
}

// empty reports whether the queue has no job in any state, by a sidecar's stats.
func (r *Run) empty() bool {
	c, err := kit.DialWire(r.Sidecars[0].Socket)
	if err != nil {
		return false
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil { // the next call tries again
		return false
	}
	s, err := c.Call(kit.Msg{"op": "stats", "queue": r.Queue})
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

// Judge fails the test for any problem, and for a run that proved nothing.
func Judge(t *testing.T, v Verdict) {
	t.Helper()
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.Summary(20))
	}
	if v.Redelivered+v.Bound == 0 || v.InDoubt == 0 {
		t.Errorf("the kills hit no worker with a job: %v", v)
	}
}

// KillWorker kills a random worker with signal 9, at whatever it does. The worker that replaces it kills itself: with a claimed job,
// or with an ack that has no reply, in turn. So a run has both kinds of death, however rarely a worker has a job.
func KillWorker(r *Run) {
	r.watchWorkers()
	i := r.Rand.IntN(len(r.workers))
	victim := r.workers[i]
	r.Killing(victim.Name, func() { victim.KillAndWait(r.T) })
	r.doomed++
	r.workers[i] = r.spawn(i, []eventKind{claimed, sending}[r.doomed%2])
}

// KillSidecar kills a random sidecar with signal 9 and restarts it at once.
func KillSidecar(r *Run) {
	sc := r.Sidecars[r.Rand.IntN(len(r.Sidecars))]
	r.Killing(sc.Name, sc.Kill)
	sc.Start()
}

// Server is a database server whose connections a run can end.
type Server interface {
	// ConnectionIDs are those of the connections to the site's database.
	ConnectionIDs() []string
	EndConnection(id string)
}

// EndConnection returns a killer that ends a random connection of a sidecar. That does not explain a second delivery.
func EndConnection(server Server) func(r *Run) {
	return func(r *Run) {
		if ids := server.ConnectionIDs(); len(ids) > 0 {
			id := ids[r.Rand.IntN(len(ids))]
			r.Killing(Connections, func() { server.EndConnection(id) })
		}
	}
}

// KillServer returns a killer of the database server, which explains everything.
func KillServer(kill func()) func(r *Run) {
	return func(r *Run) { r.Killing(everything, kill) }
}

// Killing runs a kill and records its start and end.
func (r *Run) Killing(who string, kill func()) {
	r.T.Helper()
	at := kit.Monotonic()
	kill()
	if err := r.Hist.Add(Record{At: at, Until: kit.Monotonic(), Who: who, What: Killed}); err != nil {
		r.T.Fatal(err)
	}
}

// spawn starts a worker. If diesAt isn't empty, the worker kills itself at its first event of that kind.
func (r *Run) spawn(i int, diesAt eventKind) *child.Process {
	r.T.Helper()
	sc := r.Sidecars[i%len(r.Sidecars)]
	r.spawned++
	o := child.Options{Name: fmt.Sprintf("w%d.%d", i, r.spawned), Files: []*os.File{r.ackFile}, Dies: diesAt != ""}
	return workerMode.Start(r.T, o, workerTask{
		Name: o.Name, Sidecar: sc.Name, Socket: sc.Socket,
		Queue: r.Queue, History: r.dir, LockWaits: r.LockWaits, DiesAt: diesAt,
	})
}

// Serving records that the failover of this name has ended and a server accepts writes.
func (r *Run) Serving(failover string) {
	if err := r.Hist.Add(Record{Who: failover, What: Serves}); err != nil {
		r.T.Fatal(err)
	}
}

// evictions returns a kill for each time that other sidecars declared one dead, as its log reports. An eviction without harm to
// the database's connections in the two timeouts before it gets none: nothing explains it.
func (r *Run) evictions(records []Record) (all []Record, err error) {
	now, mono := time.Now(), kit.Monotonic()
	for _, sc := range r.Sidecars {
		log, err := os.ReadFile(sc.LogFile)
		if err != nil {
			return nil, err
		}
		for _, m := range evicted.FindAllSubmatch(log, -1) {
			at, err := time.Parse(time.RFC3339, string(m[1]))
			if err != nil {
				return nil, err
			}
			until := mono - now.Sub(at).Nanoseconds()
			for _, rec := range records {
				if rec.What == Killed && rec.Who == Connections && rec.At <= until && rec.Until >= until-2*sc.SidecarTimeout.Nanoseconds() {
					all = append(all, Record{At: rec.At, Until: until, Who: sc.Name, What: Killed})
					break // the earliest
				}
			}
		}
	}
	return all, nil
}

var evicted = regexp.MustCompile(`(?m)^time=(\S+) .* event=evicted `)
