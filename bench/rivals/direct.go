package rivals

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/bench/beanstalk"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// directPeer is one of pgDatabase.Rivals.
func directPeer(key, name, settings string, workloads ...string) peer {
	return peer{name: name, settings: settings, only: workloads, open: func(ctx context.Context, y *yard) (contender, error) {
		d, err := y.Server.Database(ctx, name)
		if err != nil {
			return nil, err
		}
		all := d.Rivals()
		r := all[slices.IndexFunc(all, func(r measure.Rival) bool { return r.Key == key })]
		count := func(ctx context.Context) (n int, err error) {
			c, err := pgx.Connect(ctx, d.URL())
			if err != nil {
				return 0, err
			}
			defer func() { err = errors.Join(err, c.Close(ctx)) }()
			err = c.QueryRow(ctx, `SELECT count(*) FROM rival WHERE state <> 2`).Scan(&n)
			return n, err
		}
		l := &loops{y: y, named: "pgx " + moduleVersion("github.com/jackc/pgx/v5"), database: d, count: count, stop: d.Close}
		l.connect = func(ctx context.Context, producer bool) (connection, error) {
			if producer {
				c, err := pgx.Connect(ctx, d.URL())
				return &directConnection{c: c, stop: func() error { return c.Close(context.Background()) }}, err
			}
			work, end, err := r.Session(ctx)
			return &directConnection{work: work, stop: end}, err
		}
		return &direct{l}, nil
	}}
}

// direct is a contender that works the rivals' table by SQL.
type direct struct{ *loops }

// produce starts with a new table, because the raw limit needs ids that start at 1.
func (d *direct) produce(ctx context.Context, n int) (measure.Figures, error) {
	if err := d.database.Fill(ctx, 0); err != nil {
		return measure.Figures{}, err
	}
	return d.loops.produce(ctx, n)
}

// flow measures a commit of one row on one connection, and nothing else. (Direct SQL would poll.)
func (d *direct) flow(ctx context.Context, n int, _ float64) (measure.Figures, error) {
	c, err := d.connect(ctx, true)
	if err != nil {
		return measure.Figures{}, err
	}
	defer func() { _ = c.Close() }() // the measurement is over
	var l measure.Latencies
	f, err := measure.Timed(1, d.look(ctx), func(int) error {
		for range n {
			began := time.Now()
			if err := c.Put(ctx, [][]byte{make([]byte, d.w.size)}); err != nil {
				return err
			}
			l = append(l, time.Since(began))
		}
		return nil
	})
	f.Jobs, f.First = n, l
	return f, errors.Join(err, d.database.Fill(ctx, 0))
}

// directConnection is a connection to the database.
type directConnection struct {
	c    *pgx.Conn // of a producer
	work func() (int, error)
	stop func() error
}

func (d *directConnection) Put(ctx context.Context, payloads [][]byte) error {
	sql, arg := `INSERT INTO rival (queue, payload) VALUES ('q', $1)`, any(payloads[0])
	if len(payloads) > 1 {
		sql, arg = `INSERT INTO rival (queue, payload) SELECT 'q', unnest($1::bytea[])`, payloads
	}
	_, err := d.c.Exec(ctx, sql, arg)
	return err
}

func (d *directConnection) Next(_ context.Context, _ time.Duration, more func(int) bool, _ func([]byte)) (int, error) {
	n, err := d.work()
	more(n)
	return n, err
}

func (d *directConnection) Close() error { return d.stop() }

// beanstalkPeer is a beanstalkd with these options.
func beanstalkPeer(name, settings string, options ...string) peer {
	return peer{name: name, settings: settings + "; on a Unix socket; delete + reserve in one write", open: func(ctx context.Context, y *yard) (contender, error) {
		program, err := exec.LookPath("beanstalkd")
		if err != nil {
			return nil, fmt.Errorf("%w: %w (scripts/need.sh beanstalkd installs it)", measure.ErrUnavailable, err)
		}
		version, err := exec.CommandContext(ctx, program, "-v").Output()
		if err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp(local.TempDir(), "qsbench")
		if err != nil {
			return nil, err
		}
		socket := filepath.Join(dir, "s")
		argv := []string{program, "-l", "unix:" + socket, "-z", "2097152"}
		for _, o := range options {
			argv = append(argv, strings.ReplaceAll(o, "DIR", dir))
		}
		pid, stop, err := measure.Launch(ctx, socket, nil, argv...)
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		return &loops{
			y: y, named: strings.TrimSpace(string(version)), server: pid,
			connect: func(context.Context, bool) (connection, error) { return beanstalk.Dial(socket) },
			count: func(context.Context) (int, error) {
				b, err := beanstalk.Dial(socket)
				if err != nil {
					return 0, err
				}
				defer func() { _ = b.Close() }() // nothing depends on it
				return b.Count()
			},
			stop: func() error { return errors.Join(stop(), os.RemoveAll(dir)) },
		}, nil
	}}
}
