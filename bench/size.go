package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"time"
)

// costAim is that of a rate beside the rate of a small, new table, whatever the table contains.
var costAim = measure.Bound{Least: 0.9}

// backlog compares a new small table with one that has many ready, scheduled and dead rows, in
// turn.
func backlog(ctx context.Context, p *plan) (err error) {
	small, err := p.Site(ctx, p.Server, "small")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, small.Close()) }()
	large, err := p.Site(ctx, p.Server, "large")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, large.Close()) }()
	began := time.Now()
	if err := large.Database.Backlog(ctx, "bench", p.Rows); err != nil {
		return fmt.Errorf("filling the large table: %w", err)
	}
	rows := measure.Whole(p.Rows) + " ready, scheduled and dead rows each"
	p.Out.Section("%s (filled in %v), beside a table with nothing but the jobs that are worked", rows, time.Since(began).Round(time.Second))
	p.Out.Head()
	var m measuring
	for range p.Rounds {
		for _, t := range []struct {
			key, name string
			task      measure.Task
		}{{measure.KeyOne, "one + one", measure.Work("bench", 1)}, {measure.KeyMany, fmt.Sprintf("batches of %d", p.Batch), measure.Work("bench", p.Batch)}} {
			for key, x := range map[string]*measure.Site{"small": small, "large": large} {
				if _, err := x.Sidecar.Load(p.Workers, p.Jobs, measure.Enqueue("bench", p.Batch), nil); err != nil {
					return err
				}
				f, err := x.Sidecar.Load(p.Workers, p.Jobs, t.task, p.Watch(ctx, x.Sidecar, x.Database))
				if err != nil {
					return err
				}
				m.add(t.key+key, key+" table, "+t.name, f)
			}
		}
	}
	for _, kind := range []string{measure.KeyOne, measure.KeyMany} {
		for _, key := range []string{kind + "small", kind + "large"} {
			p.Out.Row(m.names[key], m.of[key])
		}
	}
	for _, kind := range []string{measure.KeyOne, measure.KeyMany} {
		p.Out.Ratio(rows+", beside a small table: "+map[string]string{measure.KeyOne: "claim one + ack one", measure.KeyMany: "batches"}[kind], measure.Ratios(m.of[kind+"large"], m.of[kind+"small"]), costAim)
	}
	return p.Out.Err
}

// snapshotSteps is into how many measurements the run with a snapshot is divided.
const snapshotSteps = 10

// snapshot compares the rates of two new servers in turn, while another connection keeps a transaction open on one of them. (With
// one server the other database would be slower, too, because some engines then keep everything that is deleted anywhere.)
func snapshot(ctx context.Context, p *plan) (err error) {
	var servers [2]measure.Server
	for i := range servers {
		if servers[i], err = p.Engine.Start(ctx, p.Fast); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, servers[i].Stop()) }()
	}
	for _, h := range p.Engine.Holds {
		if err := p.beside(ctx, h, servers[0], servers[1]); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return p.Out.Err
}

// beside compares the rate of one server, beside a transaction, with the rate of the other one.
func (p *plan) beside(ctx context.Context, h measure.Hold, without, with measure.Server) (err error) {
	free, err := p.Site(ctx, without, "free")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free.Close()) }()
	held, err := p.Site(ctx, with, "held")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	release, err := held.Database.Hold(ctx, h.SQL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()

	const batch = 32
	n := p.Held / snapshotSteps
	p.Out.Section("%s, %d workers, batches of %d\n%12s %12s %12s", h.Name, p.Workers, batch, "jobs so far", "free", "held")
	var frees, helds []measure.Figures
	for i := range snapshotSteps {
		var rates []measure.Figures
		for _, x := range []*measure.Site{free, held} {
			if _, err := x.Sidecar.Load(p.Workers, n, measure.Enqueue("bench", p.Batch), nil); err != nil {
				return err
			}
			f, err := x.Sidecar.Load(p.Workers, n, measure.Work("bench", batch), nil)
			if err != nil {
				return err
			}
			rates = append(rates, f)
		}
		frees, helds = append(frees, rates[0]), append(helds, rates[1])
		p.Out.Line("%12d %12.0f %12.0f", (i+1)*n, rates[0].Rate(), rates[1].Rate())
	}
	name := fmt.Sprintf("%s through %s jobs, beside none", h.Name, measure.Whole(p.Held))
	p.Out.Ratio(name, measure.Ratios(helds, frees), costAim)
	p.Out.Ratio(name+", the last 3 steps", measure.Ratios(helds[snapshotSteps-3:], frees[snapshotSteps-3:]), costAim)
	return p.Out.Err
}
