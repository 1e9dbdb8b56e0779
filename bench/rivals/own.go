package rivals

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// loops is a contender whose workers and producers are goroutines of this process.
type loops struct {
	y        *yard
	w        workload
	named    string
	database measure.Database // nil: none
	server   int              // the process that is measured as the server; 0: none
	socket   string           // of the sidecar
	connect  func(ctx context.Context, producer bool) (connection, error)
	// works replaces the workers, if it is set: it works n jobs with l.w.workers at once.
	works func(ctx context.Context, n int, got func(payload []byte)) (done int, err error)
	count func(ctx context.Context) (int, error)
	stop  func() error
}

// connection is one of a producer or of a worker.
type connection interface {
	// Put enqueues jobs.
	Put(ctx context.Context, payloads [][]byte) error
	// Next settles the jobs of the call before and claims the next ones, for which it waits that
	// long. It calls got with each claimed payload. It claims nothing unless more, which gets the
	// number of jobs that are settled, returns true. It returns the number of claimed jobs.
	Next(ctx context.Context, wait time.Duration, more func(settled int) bool, got func(payload []byte)) (claimed int, err error)
	Close() error
}

func (l *loops) version() string                           { return l.named }
func (l *loops) ready(_ context.Context, w workload) error { l.w = w; return nil }
func (l *loops) left(ctx context.Context) (int, error)     { return l.count(ctx) }
func (l *loops) end() error                                { return nil }
func (l *loops) close() error                              { return l.stop() }
func (l *loops) look(ctx context.Context) func() (measure.Usage, error) {
	return l.y.Watch(ctx, &measure.Sidecar{PID: l.server}, l.database)
}

// connections opens connections of workers, and then of producers.
func (l *loops) connections(ctx context.Context, workers, producers int) (conns []connection, closes func(), err error) {
	closes = func() {
		for _, c := range conns {
			_ = c.Close() // the measurement is over
		}
	}
	for i := range workers + producers {
		c, err := l.connect(ctx, i >= workers)
		if err != nil {
			closes()
			return nil, nil, err
		}
		conns = append(conns, c)
	}
	return conns, closes, nil
}

func (l *loops) produce(ctx context.Context, n int) (measure.Figures, error) {
	conns, closes, err := l.connections(ctx, 0, producers)
	if err != nil {
		return measure.Figures{}, err
	}
	defer closes()
	payloads := make([][]byte, l.w.batch)
	for i := range payloads {
		payloads[i] = pad(l.w.size)
	}
	var todo atomic.Int64
	todo.Store(int64(n))
	f, err := measure.Timed(producers, l.look(ctx), func(i int) error {
		for todo.Add(-int64(l.w.batch)) >= 0 {
			if err := conns[i].Put(ctx, payloads); err != nil {
				return err
			}
		}
		return nil
	})
	f.Jobs = n
	return f, err
}

// workers returns the number of goroutines that work.
func (l *loops) workers() int {
	if l.works != nil {
		return 1
	}
	return l.w.workers
}

// work is one of them, until n jobs are done.
func (l *loops) work(ctx context.Context, c connection, done *atomic.Int64, n int, wait time.Duration, got func([]byte)) error {
	if l.works == nil {
		return drain(ctx, c, done, n, wait, got)
	}
	worked, err := l.works(ctx, n, got)
	done.Store(int64(worked))
	return err
}

func (l *loops) consume(ctx context.Context, n int) (measure.Figures, error) {
	conns, closes, err := l.connections(ctx, l.workers(), 0)
	if err != nil {
		return measure.Figures{}, err
	}
	defer closes()
	var done atomic.Int64
	f, err := measure.Timed(l.workers(), l.look(ctx), func(i int) error {
		return l.work(ctx, conns[i], &done, n, 0, func([]byte) {})
	})
	f.Jobs = int(done.Load())
	return f, err
}

// drain works jobs until n are done.
func drain(ctx context.Context, c connection, done *atomic.Int64, n int, wait time.Duration, got func([]byte)) error {
	more := func(settled int) bool { return done.Add(int64(settled)) < int64(n) }
	for done.Load() < int64(n) && ctx.Err() == nil {
		n, err := c.Next(ctx, wait, more, got)
		if err != nil {
			return err
		}
		if n == 0 && wait == 0 {
			time.Sleep(5 * time.Millisecond) // the other workers have the last jobs
		}
	}
	return ctx.Err()
}

// flowWait is how long a claim of the flow waits.
const flowWait = 100 * time.Millisecond

func (l *loops) flow(ctx context.Context, n int, rate float64) (measure.Figures, error) {
	workers := l.workers()
	conns, closes, err := l.connections(ctx, workers, producers)
	if err != nil {
		return measure.Figures{}, err
	}
	defer closes()
	var waits measure.Latencies
	var lock sync.Mutex // of waits
	var done, next atomic.Int64
	began := time.Now()
	f, err := measure.Timed(workers+producers, l.look(ctx), func(i int) error {
		if i < workers {
			return l.work(ctx, conns[i], &done, n, flowWait, func(payload []byte) {
				now := time.Since(began)
				at, err := strconv.ParseInt(string(payload[:stampSize]), 10, 64)
				lock.Lock()
				defer lock.Unlock()
				if err == nil {
					waits = append(waits, now-time.Duration(at))
				}
			})
		}
		return pace(ctx, &next, n, rate, began, func(at time.Duration) error {
			payload := pad(l.w.size)
			copy(payload, fmt.Appendf(nil, "%0*d", stampSize, at))
			return conns[i].Put(ctx, [][]byte{payload})
		})
	})
	f.Jobs, f.First = int(done.Load()), waits
	return f, err
}

// stampSize is the number of digits of the time at the start of the flow's payloads.
const stampSize = 20

// pad returns a payload that is text, because some peers store JSON.
func pad(size int) []byte { return bytes.Repeat([]byte("a"), size) }

// pace calls put n times in all, at a rate, from one of several goroutines. put gets the time since
// the beginning when the job is enqueued. If all goroutines were busy then, that is when it should
// have been.
func pace(ctx context.Context, next *atomic.Int64, n int, rate float64, began time.Time, put func(at time.Duration) error) error {
	for {
		k := next.Add(1)
		if k > int64(n) || ctx.Err() != nil {
			return ctx.Err()
		}
		at := time.Duration(float64(k) / rate * float64(time.Second))
		if early := at - time.Since(began); early > 0 {
			time.Sleep(early)
			at = time.Since(began)
		}
		if err := put(at); err != nil {
			return err
		}
	}
}

var (
	ownPeer       = peer{name: "qsidecar", settings: "claim one + ack one in one round trip (`ack` with `claim`)", open: openOwn("own", 1)}
	ownWorkerPeer = peer{name: workerPeer, settings: "`Worker` of the Go client, in one process; up to 256 jobs at once over a connection", open: openOwnWorker}
	ownBatchPeer  = peer{name: "qsidecar by 100", settings: "claims of 100, each ack with the next claim", open: openOwn("own-100", 100), only: []string{"1", "8", "32"}}
	echoPeer      = peer{name: "socket echo", settings: "a Unix-socket server in Go that returns each message: the reference for what a round trip costs",
		reference: true, open: openEcho, only: []string{"1", "8", "32", "256", "1000", "10KiB"}} // it echoes before it has read all
)

func openOwn(database string, batch int) func(ctx context.Context, y *yard) (contender, error) {
	return func(ctx context.Context, y *yard) (contender, error) {
		x, err := y.Site(ctx, y.Server, database)
		if err != nil {
			return nil, err
		}
		d, s := x.Database, x.Sidecar
		return &loops{
			y: y, named: "this commit", database: d, server: s.PID, socket: s.Socket,
			connect: func(context.Context, bool) (connection, error) {
				w, err := measure.Dial(s.Socket)
				return &ownConnection{w, ownQueue, batch}, err
			},
			count: func(context.Context) (int, error) { n, err := s.Count(ownQueue); return int(n), err },
			stop:  func() error { return errors.Join(s.Stop(), d.Close()) },
		}, nil
	}
}

const (
	workerPeer = "qsidecar Go worker"
	ownQueue   = "rivals"
	workerJobs = 256 // jobs at once of a qsidecar.Worker
)

// openOwnWorker is openOwn with workers of the Go client. Each has a connection and up to workerJobs jobs at once.
func openOwnWorker(ctx context.Context, y *yard) (contender, error) {
	c, err := openOwn("own-worker", 1)(ctx, y)
	if err != nil {
		return nil, err
	}
	l := c.(*loops)
	l.works = func(ctx context.Context, n int, got func(payload []byte)) (int, error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var done atomic.Int64
		var all errgroup.Group
		for left := l.w.workers; left > 0; left -= workerJobs {
			w := qsidecar.Worker{Queues: []string{ownQueue}, Concurrency: min(left, workerJobs), Logger: slog.New(slog.DiscardHandler), Options: qsidecar.Options{Socket: l.socket}}
			w.Handler = func(_ context.Context, job *qsidecar.Job) error {
				got(job.Payload)
				if done.Add(1) == int64(n) {
					stop() // Run returns when all are acked
				}
				return nil
			}
			all.Go(func() error { return w.Run(ctx) })
		}
		err := all.Wait()
		return int(done.Load()), err
	}
	return l, nil
}

// ownConnection is a connection to the sidecar.
type ownConnection struct {
	*measure.Wire
	queue string
	batch int
}

func (o *ownConnection) Put(_ context.Context, payloads [][]byte) error {
	jobs := make([]protocol.NewJob, len(payloads))
	for i, p := range payloads {
		jobs[i] = protocol.NewJob{Queue: o.queue, Payload: p}
	}
	req := &protocol.Request{Op: protocol.OpEnqueue, Jobs: jobs}
	if len(jobs) == 1 {
		req = &protocol.Request{Op: protocol.OpEnqueue, Job: jobs[0]}
	}
	_, err := o.Call(req)
	return err
}

func (o *ownConnection) Next(_ context.Context, wait time.Duration, more func(int) bool, got func([]byte)) (int, error) {
	_, err := o.Wire.Next(o.queue, o.batch, wait, more)
	for i := range o.Reply.Jobs {
		got(o.Reply.Jobs[i].Payload)
	}
	return len(o.Reply.Jobs), err
}

func (o *ownConnection) Close() error { return o.Conn.Close() }

// openEcho starts a server in another process, so that its CPU is measured alone.
func openEcho(ctx context.Context, y *yard) (contender, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "qsbench")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "s")
	pid, stop, err := measure.Launch(ctx, socket, []string{measure.RoleEnv + "=echo " + socket}, self)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	var jobs atomic.Int64
	l := &loops{
		y: y, named: "this commit", server: pid,
		count: func(context.Context) (int, error) { return int(jobs.Load()), nil },
		stop:  func() error { return errors.Join(stop(), os.RemoveAll(dir)) },
	}
	l.connect = func(context.Context, bool) (connection, error) {
		conn, err := net.Dial("unix", socket)
		return &echoConnection{conn, &jobs, make([]byte, l.w.size)}, err
	}
	return l, nil
}

// echoConnection sends one message for each job. The queue is a number.
type echoConnection struct {
	conn    net.Conn
	jobs    *atomic.Int64
	message []byte
}

func (e *echoConnection) Put(_ context.Context, payloads [][]byte) error {
	e.jobs.Add(int64(len(payloads)))
	return nil
}

func (e *echoConnection) Next(_ context.Context, _ time.Duration, more func(int) bool, _ func([]byte)) (int, error) {
	if e.jobs.Add(-1) < 0 {
		e.jobs.Add(1)
		return 0, nil
	}
	_, err := e.conn.Write(e.message)
	if err == nil {
		_, err = io.ReadFull(e.conn, e.message)
	}
	more(1)
	return 1, err
}

func (e *echoConnection) Close() error { return e.conn.Close() }

// ServeEcho returns to each connection what it sends, until this process ends.
func ServeEcho(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			buffer := make([]byte, 64<<10)
			for {
				n, err := conn.Read(buffer)
				if err != nil {
					return
				}
				if _, err := conn.Write(buffer[:n]); err != nil {
					return
				}
			}
		}()
	}
}
