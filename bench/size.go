package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// costAim is that of a rate beside the rate of a small, new table, whatever the table contains.
var costAim = bound{least: 0.9}

// site is a database with its sidecar.
type site struct {
	d database
	s *sidecar
}

func (p *place) site(ctx context.Context, v server, name string) (_ *site, err error) {
	d, err := v.Database(ctx, name)
	if err != nil {
		return nil, err
	}
	s, err := startSidecar(ctx, p.bin, d.URL(), false)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &site{d, s}, nil
}

func (x *site) close() error { return errors.Join(x.s.stop(), x.d.Close()) }

// backlog compares a new small table with one that has many ready, scheduled and dead rows, in
// turn.
func backlog(ctx context.Context, p *place) (err error) {
	small, err := p.site(ctx, p.server, "small")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, small.close()) }()
	large, err := p.site(ctx, p.server, "large")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, large.close()) }()
	began := time.Now()
	if err := large.d.Backlog(ctx, "bench", p.rows); err != nil {
		return fmt.Errorf("filling the large table: %w", err)
	}
	rows := whole(p.rows) + " ready, scheduled and dead rows each"
	p.out.section("%s (filled in %v), beside a table with nothing but the jobs that are worked", rows, time.Since(began).Round(time.Second))
	p.out.head()
	var m measuring
	for range p.rounds {
		for _, t := range []struct {
			key, name string
			task      task
		}{{keyOne, "one + one", work("bench", 1)}, {keyMany, fmt.Sprintf("batches of %d", p.batch), work("bench", p.batch)}} {
			for key, x := range map[string]*site{"small": small, "large": large} {
				if _, err := x.s.load(p.workers, p.jobs, enqueue("bench", p.batch), nil); err != nil {
					return err
				}
				f, err := x.s.load(p.workers, p.jobs, t.task, p.watch(ctx, x.s, x.d))
				if err != nil {
					return err
				}
				m.add(t.key+key, key+" table, "+t.name, f)
			}
		}
	}
	for _, kind := range []string{keyOne, keyMany} {
		for _, key := range []string{kind + "small", kind + "large"} {
			p.out.row(m.names[key], m.of[key])
		}
	}
	for _, kind := range []string{keyOne, keyMany} {
		p.out.ratio(rows+", beside a small table: "+map[string]string{keyOne: "claim one + ack one", keyMany: "batches"}[kind], ratios(m.of[kind+"large"], m.of[kind+"small"]), costAim)
	}
	return p.out.err
}

// snapshotSteps is into how many measurements the run with a snapshot is divided.
const snapshotSteps = 10

// snapshot compares the rates of two new servers in turn, while another connection keeps a transaction open on one of them. (With
// one server the other database would be slower, too, because some engines then keep everything that is deleted anywhere.)
func snapshot(ctx context.Context, p *place) (err error) {
	var servers [2]server
	for i := range servers {
		if servers[i], err = p.engine.start(ctx, p.fast); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, servers[i].Stop()) }()
	}
	for _, h := range p.engine.holds {
		if err := p.beside(ctx, h, servers[0], servers[1]); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	return p.out.err
}

// beside compares the rate of one server, beside a transaction, with the rate of the other one.
func (p *place) beside(ctx context.Context, h hold, without, with server) (err error) {
	free, err := p.site(ctx, without, "free")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free.close()) }()
	held, err := p.site(ctx, with, "held")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.close()) }()
	release, err := held.d.Hold(ctx, h.sql)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()

	const batch = 32
	n := p.held / snapshotSteps
	p.out.section("%s, %d workers, batches of %d\n%12s %12s %12s", h.name, p.workers, batch, "jobs so far", "free", "held")
	var frees, helds []figures
	for i := range snapshotSteps {
		var rates []figures
		for _, x := range []*site{free, held} {
			if _, err := x.s.load(p.workers, n, enqueue("bench", p.batch), nil); err != nil {
				return err
			}
			f, err := x.s.load(p.workers, n, work("bench", batch), nil)
			if err != nil {
				return err
			}
			rates = append(rates, f)
		}
		frees, helds = append(frees, rates[0]), append(helds, rates[1])
		p.out.line("%12d %12.0f %12.0f", (i+1)*n, rates[0].rate(), rates[1].rate())
	}
	name := fmt.Sprintf("%s through %s jobs, beside none", h.name, whole(p.held))
	p.out.ratio(name, ratios(helds, frees), costAim)
	p.out.ratio(name+", the last 3 steps", ratios(helds[snapshotSteps-3:], frees[snapshotSteps-3:]), costAim)
	return p.out.err
}
