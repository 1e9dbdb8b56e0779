package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/proc"
)

// step is a measurement of the sidecar.
type step struct {
	key, name string
	jobs      int
	task      task
}

// ownSteps returns the steps of one round. They claim as many jobs as they enqueue.
func ownSteps(o options, queue string) []step {
	many := fmt.Sprintf("in batches of %d", o.batch)
	return []step{
		{keyEnqueueMany, "enqueue " + many, 3 * o.jobs, enqueue(queue, o.batch)},
		{keyOne, "claim one + ack one", o.jobs, work(queue, 1)},
		{keyMany, "claim and ack " + many, 2 * o.jobs, work(queue, o.batch)},
		{keyEnqueueOne, "enqueue one", o.jobs / 2, enqueue(queue, 1)},
		{"rest", "claim one + ack one, until the queue is empty", o.jobs, work(queue, 1)},
	}
}

// measuring collects the results of rounds, by key.
type measuring struct {
	keys  []string // in order of arrival
	names map[string]string
	of    map[string][]figures
}

func (m *measuring) add(key, name string, f figures) {
	if m.of == nil {
		m.of, m.names = map[string][]figures{}, map[string]string{}
	}
	if _, known := m.of[key]; !known {
		m.keys = append(m.keys, key)
		m.names[key] = name
	}
	m.of[key] = append(m.of[key], f)
}

// watch returns a function that reads what the sidecar and the database have used.
func (p *place) watch(ctx context.Context, s *sidecar, d database) func() (usage, error) {
	return func() (usage, error) {
		u := usage{at: time.Now()}
		var errs [4]error
		if d != nil {
			u.counts, errs[0] = d.Count(ctx)
		}
		u.database, errs[1] = p.server.CPU()
		u.self, errs[2] = proc.CPUOfSelf()
		u.sidecar, errs[3] = proc.CPU(s.pid)
		return u, errors.Join(errs[:]...)
	}
}

// compare measures the sidecar beside direct SQL, step by step in turn.
func compare(ctx context.Context, p *place) (err error) {
	x, err := p.site(ctx, p.server, "compare")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	d, s := x.d, x.s
	if _, err := s.load(p.workers, min(p.jobs, 1000), enqueue("warm", 1), nil); err != nil {
		return err
	}
	if _, err := s.load(p.workers, p.jobs, work("warm", 1), nil); err != nil {
		return err
	}
	var m measuring
	look := p.watch(ctx, s, d)
	for range p.rounds {
		if err := p.round(ctx, s, d, look, &m); err != nil {
			return err
		}
	}
	p.out.head()
	for _, key := range m.keys {
		p.out.row(m.names[key], m.of[key])
	}
	for _, a := range p.engine.aims {
		p.out.ratio(fmt.Sprintf("%s, beside %s", m.names[a.of], m.names[a.to]), ratios(m.of[a.of], m.of[a.to]), bound{least: a.least})
	}
	return p.out.err
}

// round runs each measurement once, the sidecar's and the rivals' in turn.
func (p *place) round(ctx context.Context, s *sidecar, d database, look func() (usage, error), m *measuring) error {
	own, rivals := ownSteps(p.options, "bench"), d.Rivals()
	for i := range max(len(own), len(rivals)) {
		if i < len(rivals) {
			r := rivals[i]
			r.workers = min(r.workers, p.workers)
			jobs := max(1, int(float64(p.jobs)*r.part))
			if err := d.Fill(ctx, jobs); err != nil {
				return fmt.Errorf("%s: filling its table: %w", r.name, err)
			}
			f, err := r.direct(ctx, look)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			if f.jobs != jobs {
				return fmt.Errorf("%s: worked %d jobs of %d", r.name, f.jobs, jobs)
			}
			m.add(r.key, fmt.Sprintf("direct, %d conn: %s", r.workers, r.name), f)
		}
		if i < len(own) {
			f, err := s.load(p.workers, own[i].jobs, own[i].task, look)
			if err != nil {
				return fmt.Errorf("%s: %w", own[i].name, err)
			}
			m.add(own[i].key, own[i].name, f)
		}
	}
	return s.empty("bench")
}

// empty returns an error if jobs are left in the queue, because some were not processed.
func (s *sidecar) empty(queue string) error {
	left, err := s.count(queue)
	if err == nil && left != 0 {
		err = fmt.Errorf("%d jobs are left in the queue %s after all were worked", left, queue)
	}
	return err
}

// ratios returns the ratios of the rounds.
func ratios(of, to []figures) (r []float64) {
	for i := range of {
		r = append(r, of[i].rate()/to[i].rate())
	}
	return r
}
