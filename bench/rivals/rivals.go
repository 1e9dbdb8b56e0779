// Package rivals measures a sidecar beside other queues, with the same workloads in turn. rivals.go has the workloads and runs
// them. A peer is in own.go (the sidecar), river.go, direct.go (in this process) or script.go (programs in other languages, which
// are in this folder). report.go has the tables and the plot.
package rivals

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
)

// peer is a queue that is measured beside the sidecar, or a reference.
type peer struct {
	name     string
	settings string // how it differs from its defaults, and why
	// open prepares the peer. The error is errUnavailable if it can't be installed here.
	open      func(ctx context.Context, y *yard) (contender, error)
	reference bool     // it has no queue
	only      []string // the workloads; nil: all
}

// contender is a peer that is ready to be measured.
type contender interface {
	version() string
	// ready prepares for a workload, before anything is measured. end ends what ready started.
	ready(ctx context.Context, w workload) error
	// produce enqueues n jobs.
	produce(ctx context.Context, n int) (measure.Figures, error)
	// consume works the n jobs of the queue, and ends when the last one is settled.
	consume(ctx context.Context, n int) (measure.Figures, error)
	// flow enqueues n jobs at a rate and works them at the same time. The latencies, from the
	// start of the enqueue to the start of the job, are in first.
	flow(ctx context.Context, n int, rate float64) (measure.Figures, error)
	// left returns the number of jobs that are not done.
	left(ctx context.Context) (int, error)
	end() error
	close() error
}

// workload is jobs of one size that are enqueued and then worked.
type workload struct {
	name    string
	workers int
	size    int // bytes of a payload
	batch   int // jobs in a request of an enqueue
	flows   bool
	rate    float64 // jobs/s of a flow; 0: half of the maximum rate of both
}

// producers is the number of connections, or of concurrent requests, that enqueue.
const producers = 32

// workloads are all workloads in order of measurement.
var workloads = []workload{
	{name: "32", workers: 32, size: measure.PayloadSize, batch: 1},
	{name: "1", workers: 1, size: measure.PayloadSize, batch: 100},
	{name: "8", workers: 8, size: measure.PayloadSize, batch: 100},
	{name: "256", workers: 256, size: measure.PayloadSize, batch: 100},
	{name: "1000", workers: 1000, size: measure.PayloadSize, batch: 100},
	{name: "10KiB", workers: 32, size: 10 << 10, batch: 1},
	{name: "flow", workers: 32, size: measure.PayloadSize, batch: 1, flows: true},
	{name: "flow100", workers: 32, size: measure.PayloadSize, batch: 1, flows: true, rate: 100},
	{name: "flow500", workers: 32, size: measure.PayloadSize, batch: 1, flows: true, rate: 500},
	{name: "1MiB", workers: 32, size: 1 << 20, batch: 1},
}

// peers are all peers in order of the table.
var peers = []peer{
	ownPeer, ownWorkerPeer,
	clientPeer("Node", "`Worker` of the Node client, in one process", "", ownProgram("node", "own.mjs")),
	clientPeer("Python", "`App` of the Python client with threads, in one process; msgpack", "threads", pythonProgram("own.py", pythonenv.Tools...)),
	clientPeer("Python async", "the same with coroutines", "async", pythonProgram("own.py", pythonenv.Tools...)),
	clientPeer("Ruby", "`Worker` of the Ruby client with threads, in one process", "", ownProgram("ruby", "own.rb")),
	ownBatchPeer,
	directPeer(measure.KeyTwo, "two short transactions", "each worker a connection", "1", "8", "32", "256", "10KiB", "1MiB"),
	directPeer(measure.KeyBest, "best one-job SQL", "each worker a connection", "1", "8", "32", "256", "10KiB", "1MiB"),
	directPeer(measure.KeyRaw, "raw limit n=1000", "one connection claims 1,000 jobs and deletes them in one transaction", "1"),
	directPeer(measure.KeyBest, "bare commit", "one connection inserts a row a transaction, and nothing else runs: the reference for latencies", "flow"),
	riverPeer,
	scriptPeer("graphile-worker", "one process of Node.js; a connection for each job, at most 100", nodeProgram("graphile.mjs"), nil),
	scriptPeer("graphile-worker local", "with `localQueue` (500, or workers + 1) and `completeJobBatchDelay: 0`", nodeProgram("graphile.mjs"), map[string]any{"local": true}),
	scriptPeer("pg-boss", "one process of Node.js; `batchSize`: the workers, or 2, because it ignores `burstWhenBatchFull` at 1, `notify`", nodeProgram("pgboss.mjs"), nil),
	scriptPeer("Procrastinate", "one process of Python, with `concurrency`; `delete_jobs`: successful; 32 connections",
		pythonProgram("procrastinate_rival.py", "procrastinate==3.10.0", "psycopg[binary,pool]==3.3.9"), nil),
	beanstalkPeer("beanstalkd -f0", "an fsync for each write", "-b", "DIR", "-f0"),
	beanstalkPeer("beanstalkd, no log", "nothing survives a crash"),
	echoPeer,
}

// yard is where the peers are measured.
type yard struct {
	*measure.Setup
	only  []string
	open  []contender // of the peers; nil: not chosen, or not available
	cells []*cell
	began time.Time
}

// cell is a peer with a workload. Its rates are those of the last calibration.
type cell struct {
	peer    int
	w       workload
	in, out float64           // jobs/s of an enqueue and of the work
	put     []measure.Figures // of each round
	got     []measure.Figures // of each round
	why     string            // why it isn't measured
}

// stall is the time after which a peer that works no jobs has lost some.
const stall = 4 * time.Minute

// limits of a cell's number of jobs.
const (
	MaxJobs  = 400_000
	maxBytes = 256 << 20
)

// Run measures every peer with every workload, in turn.
func Run(ctx context.Context, p *measure.Setup) (err error) {
	y := &yard{Setup: p, only: strings.Split(p.Only, ","), open: make([]contender, len(peers)), began: time.Now()}
	defer func() {
		for _, c := range y.open {
			if c != nil {
				err = errors.Join(err, c.close())
			}
		}
	}()
	for i, x := range peers {
		mine, err := y.choose(i)
		if err != nil {
			return err
		}
		y.cells = append(y.cells, mine...)
		if len(mine) == 0 {
			continue
		}
		y.open[i], err = x.open(ctx, y)
		if errors.Is(err, measure.ErrUnavailable) {
			for _, c := range mine {
				c.why = err.Error()
			}
		} else if err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
	}
	rounds := -1
	var failure error                   // the other cells continue, but the run fails
	for ; rounds < p.Rounds; rounds++ { // the first one calibrates and warms up
		started := time.Now()
		failed, err := y.round(ctx, rounds+1)
		failure = errors.Join(failure, failed)
		if err != nil {
			return errors.Join(failure, err)
		}
		if now := time.Now(); rounds >= 0 && now.Sub(y.began)+now.Sub(started) > p.Time {
			rounds++
			break
		}
	}
	return errors.Join(failure, y.results(rounds))
}

// round runs all cells, the peers in turn. A peer that failed is opened again, because it has jobs
// left.
func (y *yard) round(ctx context.Context, round int) (failure, err error) {
	for _, w := range workloads {
		for _, c := range y.cells {
			if c.w.name != w.name || c.why != "" {
				continue
			}
			name := fmt.Sprintf("%v: round %d, %s/%s", time.Since(y.began).Round(time.Second), round, peers[c.peer].name, w.name)
			failed := y.run(ctx, y.open[c.peer], c, round == 0)
			if failed == nil {
				fmt.Fprintf(os.Stderr, "%s: %.0f and %.0f jobs/s\n", name, c.in, c.out)
				continue
			}
			c.why = fmt.Sprintf("%s: %v", name, failed)
			failure = errors.Join(failure, errors.New(c.why))
			fmt.Fprintln(os.Stderr, c.why)
			_ = y.open[c.peer].close() // it has failed
			if y.open[c.peer], err = peers[c.peer].open(ctx, y); err != nil {
				return failure, err
			}
		}
	}
	return failure, ctx.Err()
}

// choose returns the chosen cells of a peer.
func (y *yard) choose(i int) (cells []*cell, err error) {
	for _, w := range workloads {
		for _, pattern := range y.only {
			ok, err := path.Match(pattern, peers[i].name+"/"+w.name)
			if err != nil {
				return nil, fmt.Errorf("-only: %q: %w", pattern, err)
			}
			if ok && (peers[i].only == nil || slices.Contains(peers[i].only, w.name)) {
				cells = append(cells, &cell{peer: i, w: w})
				break
			}
		}
	}
	return cells, nil
}

// run measures a cell once. To calibrate, it measures a few jobs first and then more.
func (y *yard) run(ctx context.Context, x contender, c *cell, calibrate bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	if err := x.ready(ctx, c.w); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.end()) }()
	if calibrate {
		for range 2 {
			if _, _, err := c.measure(ctx, x, c.jobs(y.Cell/4)); err != nil {
				return err
			}
		}
		return nil
	}
	if c.w.flows {
		rate := cmp.Or(c.w.rate, y.half(c))
		n := max(producers, int(rate*y.Cell.Seconds()))
		f, err := x.flow(ctx, n, rate)
		c.got = append(c.got, f)
		return errors.Join(err, finished(ctx, x, n, f.Jobs))
	}
	put, got, err := c.measure(ctx, x, c.jobs(y.Cell))
	if !peers[c.peer].reference {
		c.put = append(c.put, put)
	}
	c.got = append(c.got, got)
	return err
}

// jobs returns the number of jobs for which an enqueue and the work take that time.
func (c *cell) jobs(d time.Duration) int {
	n := max(2*c.w.workers, 100)
	if c.in > 0 {
		n = max(n, int(d.Seconds()/(1/c.in+1/c.out)))
	}
	n = min(n, MaxJobs, max(maxBytes/c.w.size, c.w.workers))
	return n - n%c.w.batch
}

// measure enqueues n jobs and works them.
func (c *cell) measure(ctx context.Context, x contender, n int) (put, got measure.Figures, err error) {
	if put, err = x.produce(ctx, n); err != nil {
		return put, got, fmt.Errorf("enqueue: %w", err)
	}
	if got, err = x.consume(ctx, n); err != nil {
		return put, got, fmt.Errorf("work: %w", err)
	}
	c.in, c.out = put.Rate(), got.Rate()
	return put, got, finished(ctx, x, n, got.Jobs)
}

// finished returns an error unless every job was worked exactly once.
func finished(ctx context.Context, x contender, n, worked int) error {
	left, err := x.left(ctx)
	if err == nil && (worked != n || left != 0) {
		err = fmt.Errorf("worked %d jobs of %d, and %d are left", worked, n, left)
	}
	return err
}

// results prints the report, and keeps it for the file.
func (y *yard) results(rounds int) error {
	y.Out.Intro, y.Out.Tables = y.text(rounds)
	y.Out.Plot = y.plot()
	y.Out.Print(y.Out.Intro + y.Out.Tables)
	y.ratios()
	return y.Out.Err
}

// half returns half of the rate at which a peer both enqueues and works jobs one by one: that of the workload 32, if it was measured.
func (y *yard) half(c *cell) float64 {
	in, out := c.in, c.out
	if full := y.find(peers[c.peer].name, "32"); full != nil && full.put != nil {
		in, out = measure.Median(enqueued(full)), measure.Median(worked(full))
	}
	return 0.5 / (1/in + 1/out)
}

// find returns the measured cell of a peer and a workload, or nil.
func (y *yard) find(peer, workload string) *cell {
	for _, c := range y.cells {
		if peers[c.peer].name == peer && c.w.name == workload && len(c.got) > 0 {
			return c
		}
	}
	return nil
}
