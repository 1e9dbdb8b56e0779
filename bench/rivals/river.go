package rivals

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

var riverPeer = peer{
	name:     "River",
	settings: "in the worker's process; `FetchCooldown` 2 ms and `FetchPollInterval` 20 ms as in its own benchmark; batches by `InsertManyFast`",
	open:     openRiver,
}

// riverArgs are the arguments of a job.
type riverArgs struct {
	Payload string `json:"payload"`
}

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return "rival" }

// riverContender runs River's client in this process.
type riverContender struct {
	*loops
	pool    *pgxpool.Pool
	client  *river.Client[pgx.Tx]
	got     atomic.Pointer[func(payload []byte)]
	started bool
}

func openRiver(ctx context.Context, y *yard) (contender, error) {
	d, err := y.Server.Database(ctx, "river")
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(d.URL())
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	config.MaxConns = producers + 8 // a connection for each producer
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	c := &riverContender{pool: pool}
	c.loops = &loops{
		y: y, named: moduleVersion("github.com/riverqueue/river"), database: d, works: c.work,
		connect: func(context.Context, bool) (connection, error) { return riverConnection{c}, nil },
		stop:    func() error { pool.Close(); return d.Close() },
		count: func(ctx context.Context) (n int, err error) {
			err = pool.QueryRow(ctx, `SELECT count(*) FROM river_job WHERE state <> 'completed'`).Scan(&n)
			return n, err
		},
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (r *riverContender) ready(ctx context.Context, w workload) error {
	r.w = w
	if _, err := r.pool.Exec(ctx, `TRUNCATE river_job`); err != nil { // it keeps completed jobs for a day
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[riverArgs]) error {
		(*r.got.Load())([]byte(job.Args.Payload))
		return nil
	}))
	client, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: w.workers}},
		Workers: workers,
	})
	r.client = client
	return err
}

func (r *riverContender) consume(ctx context.Context, n int) (measure.Figures, error) {
	f, err := r.loops.consume(ctx, n)
	return f, errors.Join(err, r.end())
}

func (r *riverContender) flow(ctx context.Context, n int, rate float64) (measure.Figures, error) {
	f, err := r.loops.flow(ctx, n, rate)
	return f, errors.Join(err, r.end())
}

// work starts the client and waits until n jobs are completed. The client stops later, because that
// is not measured.
func (r *riverContender) work(ctx context.Context, n int, got func(payload []byte)) (done int, err error) {
	r.got.Store(&got)
	events, cancel := r.client.SubscribeConfig(&river.SubscribeConfig{ChanSize: n, Kinds: []river.EventKind{river.EventKindJobCompleted}})
	defer cancel()
	if err := r.client.Start(context.WithoutCancel(ctx)); err != nil {
		return 0, err
	}
	r.started = true
	for ; done < n; done++ {
		select {
		case <-events:
		case <-ctx.Done():
			return done, ctx.Err()
		}
	}
	return done, nil
}

// end stops the client, if it runs.
func (r *riverContender) end() error {
	if !r.started {
		return nil
	}
	r.started = false
	ctx, cancel := context.WithTimeout(context.Background(), measure.StartTime)
	defer cancel()
	return r.client.Stop(ctx)
}

// riverConnection is a producer. All share one pool, and River's client has the workers.
type riverConnection struct{ c *riverContender }

func (r riverConnection) Put(ctx context.Context, payloads [][]byte) (err error) {
	if len(payloads) == 1 {
		_, err = r.c.client.Insert(ctx, riverArgs{string(payloads[0])}, nil)
		return err
	}
	batch := make([]river.InsertManyParams, len(payloads))
	for i, p := range payloads {
		batch[i].Args = riverArgs{string(p)}
	}
	_, err = r.c.client.InsertManyFast(ctx, batch)
	return err
}

func (riverConnection) Next(context.Context, time.Duration, func(int) bool, func([]byte)) (int, error) {
	return 0, errors.ErrUnsupported
}

func (riverConnection) Close() error { return nil }
