// Command loop is one process of the Go client, or of pgx, that processes a queue until it is
// empty: loop sidecar|driver N, or loop worker. It claims and acks N jobs at a time. It prints the
// number of jobs and the seconds. The Worker of the client does that for each line of its input: the
// number of jobs at once, and behind or sync.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
)

const claim = `WITH n AS MATERIALIZED (SELECT id FROM rival WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
	UPDATE rival r SET state = 1 FROM n WHERE r.id = n.id RETURNING r.id, r.payload`

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "loop:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		return byWorker(ctx)
	}
	if len(os.Args) != 3 {
		return errors.New("usage: loop sidecar|driver N, or loop worker")
	}
	n, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	if os.Args[1] == "sidecar" {
		return bySidecar(ctx, n)
	}
	return byDriver(ctx, n)
}

// work calls step, which claims and acks jobs and returns how many, until it returns 0.
func work(step func() (int, error)) error {
	began, done := time.Now(), 0
	for {
		n, err := step()
		if err != nil {
			return err
		}
		if n == 0 {
			_, err := fmt.Println(done, time.Since(began).Seconds())
			return err
		}
		done += n
	}
}

func bySidecar(ctx context.Context, n int) error {
	c, err := qsidecar.Dial(ctx, qsidecar.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	return work(func() (int, error) {
		jobs, err := c.Claim(ctx, qsidecar.Claim{Queues: []string{"clients"}, Max: n})
		if err != nil || len(jobs) == 0 {
			return 0, err
		}
		if n == 1 {
			return 1, c.Ack(ctx, jobs[0].Lease)
		}
		leases := make([]string, len(jobs))
		for i, j := range jobs {
			leases[i] = j.Lease
		}
		lost, err := c.AckMany(ctx, leases)
		if err == nil && len(lost) > 0 {
			err = fmt.Errorf("%d leases were lost", len(lost))
		}
		return len(jobs), err
	})
}

func byWorker(ctx context.Context) error {
	for {
		var atOnce int
		var ack string
		if _, err := fmt.Scanln(&atOnce, &ack); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var done, last atomic.Int64 // when the last job began, after the first one
		var first sync.Once
		var began time.Time
		w := qsidecar.Worker{
			Queues: []string{"clients"}, Concurrency: atOnce, Drain: true, SyncAck: ack == "sync", Logger: slog.New(slog.DiscardHandler),
			Handler: func(context.Context, *qsidecar.Job) error {
				first.Do(func() { began = time.Now() })
				done.Add(1)
				last.Store(int64(time.Since(began)))
				return nil
			},
		}
		if err := w.Run(ctx); err != nil {
			return err
		}
		fmt.Println(done.Load(), time.Duration(last.Load()).Seconds())
	}
}

func byDriver(ctx context.Context, n int) error {
	c, err := pgx.Connect(ctx, os.Getenv("BENCH_DATABASE"))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }() // its transactions are committed
	return work(func() (int, error) {
		rows, err := c.Query(ctx, claim, n)
		if err != nil {
			return 0, err
		}
		ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (id int64, err error) {
			var payload []byte
			return id, row.Scan(&id, &payload)
		})
		if err != nil || len(ids) == 0 {
			return 0, err
		}
		if n == 1 {
			_, err = c.Exec(ctx, "DELETE FROM rival WHERE id = $1", ids[0])
		} else {
			_, err = c.Exec(ctx, "DELETE FROM rival WHERE id = ANY($1)", ids)
		}
		return len(ids), err
	})
}
