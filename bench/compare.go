package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// compare measures a sidecar on a PostgreSQL of its own, at full durability,
// interleaved with what workers would do directly: the ratios count, absolute
// figures drift between machines.
func compare(ctx context.Context, bin, version string, workers, jobs, batch, rounds int) (err error) {
	pg, err := testserver.StartPostgres(ctx, version, testserver.Options{Durable: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Stop()) }()
	if err := pg.Exec(ctx, "CREATE DATABASE bench"); err != nil {
		return err
	}
	u, err := url.Parse(pg.Admin())
	if err != nil {
		return err
	}
	u.Path = "/bench"
	fmt.Println(pg.Version)
	socket, stop, err := sidecar(bin, u.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	b := &bench{socket: socket, workers: workers, queue: "bench"}
	r := &rivals{url: u.String(), workers: workers}
	for range rounds {
		if err := round(ctx, b, r, jobs, batch); err != nil {
			return err
		}
	}
	return nil
}

// round is one of each, and prints what the sidecar reaches of the others.
func round(ctx context.Context, b *bench, r *rivals, jobs, batch int) error {
	direct := func(name string, n, workers int, f func(c *pgx.Conn) (int, error)) (float64, error) {
		if err := r.fill(ctx, n); err != nil {
			return 0, err
		}
		rate, err := r.each(ctx, workers, f)
		fmt.Printf("%-44s %8.0f jobs/s\n", name, rate)
		return rate, err
	}
	two, err := direct(fmt.Sprintf("direct, %d connections, two transactions", r.workers), jobs/4, r.workers, twoTransactions(ctx))
	if err != nil {
		return err
	}
	if _, err := b.measure(fmt.Sprintf("sidecar, enqueue in batches of %d", batch), 2*jobs+2*batch*b.workers, b.enqueue(batch)); err != nil {
		return err
	}
	one, err := b.measure(fmt.Sprintf("sidecar, %d workers, claim one + ack one", b.workers), jobs, b.work(1))
	if err != nil {
		return err
	}
	best, err := direct(fmt.Sprintf("direct, %d connections, best one-job SQL", r.workers), jobs/2, r.workers, oneJob(ctx))
	if err != nil {
		return err
	}
	many, err := b.measure(fmt.Sprintf("sidecar, %d workers, batches of %d", b.workers, batch), jobs, b.work(batch))
	if err != nil {
		return err
	}
	limit, err := direct("direct, one connection, n = 1000 (raw limit)", 4*jobs, 1, rawLimit(ctx, 1000))
	if err != nil {
		return err
	}
	fmt.Printf("one by one: %s the two transactions (aim 10×), %s the best one-job SQL (aim 4×); batches: %s of the raw limit (aim 0.6×)\n",
		ratio(one, two), ratio(one, best), ratio(many, limit))
	return nil
}

// sidecar starts the program on the database and waits until it listens.
func sidecar(bin, database string) (socket string, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "qsbench")
	if err != nil {
		return "", nil, err
	}
	socket = filepath.Join(dir, "s")
	cmd := exec.Command(bin, "serve", "--socket", socket, "--log-level", "warn")
	cmd.Env = append(os.Environ(), "QSIDECAR_DATABASE="+database)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error {
		return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait(), os.RemoveAll(dir))
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		w, err := dial(socket)
		if err == nil {
			return socket, stop, w.conn.Close()
		}
		if time.Since(began) > 30*time.Second {
			return "", nil, errors.Join(err, stop())
		}
	}
}
