package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"syscall"
	"time"
)

const (
	// retentionAim is the minimum ratio of a rate while finished jobs are pruned.
	retentionAim = 0.85
	// retentionTime is how long pruning can take.
	retentionTime = time.Hour
	// retentionSteps is how many measurements of the pruned table there are for each one of the
	// other.
	retentionSteps = 3
	// retentionSpan is the time span in which the jobs had finished.
	retentionSpan = 30 * 24 * time.Hour
)

// retention compares the rates of two tables in turn, with the same number of finished jobs. The
// jobs of one expire in another month. Those of the other have all expired, as after a month
// without a sidecar. It continues until these are all pruned.
func retention(ctx context.Context, p *plan) (err error) {
	began := time.Now()
	kept, err := p.finished(ctx, "kept", time.Minute)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	due, err := p.finished(ctx, "due", -retentionSpan-time.Minute)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, due.Close()) }()
	since, pruning := time.Now(), time.Duration(0) // pruning starts with the sidecar
	p.Out.Section("%d done + %d dead rows that have come due, beside as many that stay (filled in %v)\n%10s %14s %14s %14s",
		p.Finish, p.Finish, time.Since(began).Round(time.Second), "pruning s", "left", "kept jobs/s", "due jobs/s")
	var m measuring
	left := int64(2 * p.Finish)
	var pairs [2][]measure.Figures // the same measurements, in pairs
	for left > 0 {
		if pruning > retentionTime {
			return fmt.Errorf("%d of %d rows are left after %v of pruning", left, 2*p.Finish, retentionTime)
		}
		var dues []measure.Figures
		for i := 0; i < retentionSteps && left > 0; i++ {
			f, err := p.step(ctx, due)
			if err != nil {
				return err
			}
			m.add("due", "while being pruned, one + one", f)
			dues = append(dues, f)
			if left, err = due.Sidecar.Ended("done"); err != nil {
				return err
			}
		}
		pruning += time.Since(since)
		g, err := p.stepWithout(ctx, due, kept)
		if err != nil {
			return err
		}
		m.add("kept", "nothing to prune, one + one", g)
		since = time.Now()
		var rates []float64
		for _, f := range dues {
			rates = append(rates, f.Rate())
			pairs[0], pairs[1] = append(pairs[0], f), append(pairs[1], g)
		}
		p.Out.Line("%10.1f %14d %14.0f %14.0f", pruning.Seconds(), left, g.Rate(), measure.Median(rates))
	}
	if n, err := kept.Sidecar.Ended("done"); err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("%d finished rows are left of those that stay", n))
	}
	p.reportRetention(m, pairs, pruning.Seconds())
	return p.Out.Err
}

// stepWithout measures a step of kept while the sidecar of due is stopped and does not prune. That
// affects nothing else, because it has its own database.
func (p *plan) stepWithout(ctx context.Context, due, kept *measure.Site) (measure.Figures, error) {
	if err := syscall.Kill(due.Sidecar.PID, syscall.SIGSTOP); err != nil {
		return measure.Figures{}, err
	}
	f, err := p.step(ctx, kept)
	return f, errors.Join(err, syscall.Kill(due.Sidecar.PID, syscall.SIGCONT))
}

func (p *plan) reportRetention(m measuring, pairs [2][]measure.Figures, seconds float64) {
	p.Out.Head()
	p.Out.Row(m.names["kept"], m.of["kept"])
	p.Out.Row(m.names["due"], m.of["due"])
	p.Out.Line("pruned %d rows in %.1f s: %.0f rows/s", 2*p.Finish, seconds, float64(2*p.Finish)/seconds)
	p.Out.Ratio("while pruning / without", measure.Ratios(pairs[0], pairs[1]), measure.Bound{Least: retentionAim})
}

// finished fills a database with finished jobs, and starts its sidecar. The first job expires after that time, the last
// after another month.
func (p *plan) finished(ctx context.Context, name string, first time.Duration) (*measure.Site, error) {
	d, err := p.Server.Database(ctx, name)
	if err != nil {
		return nil, err
	}
	b, err := d.Open(ctx) // creates the tables
	if err == nil {
		err = b.Close()
	}
	if err == nil {
		err = d.Finished(ctx, "done", p.Finish, first, retentionSpan)
	}
	var s *measure.Sidecar
	if err == nil {
		s, err = measure.StartSidecar(ctx, p.Bin, d.URL(), false)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the table %s: %w", name, err), d.Close())
	}
	return &measure.Site{Database: d, Sidecar: s}, nil
}

// step enqueues jobs and processes them.
func (p *plan) step(ctx context.Context, x *measure.Site) (measure.Figures, error) {
	if _, err := x.Sidecar.Load(p.Workers, p.Jobs, measure.Enqueue("bench", p.Batch), nil); err != nil {
		return measure.Figures{}, err
	}
	return x.Sidecar.Load(p.Workers, p.Jobs, measure.Work("bench", 1), p.Watch(ctx, x.Sidecar, x.Database))
}
