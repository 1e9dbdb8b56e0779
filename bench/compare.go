package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
)

// step is a measurement of the sidecar.
type step struct {
	key, name string
	jobs      int
	task      measure.Task
}

// ownSteps returns the steps of one round. They claim as many jobs as they enqueue.
func ownSteps(o measure.Options, queue string) []step {
	many := fmt.Sprintf("in batches of %d", o.Batch)
	return []step{
		{measure.KeyEnqueueMany, "enqueue " + many, 3 * o.Jobs, measure.Enqueue(queue, o.Batch)},
		{measure.KeyOne, "claim one + ack one", o.Jobs, measure.Work(queue, 1)},
		{measure.KeyMany, "claim and ack " + many, 2 * o.Jobs, measure.Work(queue, o.Batch)},
		{measure.KeyEnqueueOne, "enqueue one", o.Jobs / 2, measure.Enqueue(queue, 1)},
		{"rest", "claim one + ack one, until the queue is empty", o.Jobs, measure.Work(queue, 1)},
	}
}

// measuring collects the results of rounds, by key.
type measuring struct {
	keys  []string // in order of arrival
	names map[string]string
	of    map[string][]measure.Figures
}

func (m *measuring) add(key, name string, f measure.Figures) {
	if m.of == nil {
		m.of, m.names = map[string][]measure.Figures{}, map[string]string{}
	}
	if _, known := m.of[key]; !known {
		m.keys = append(m.keys, key)
		m.names[key] = name
	}
	m.of[key] = append(m.of[key], f)
}

// compare measures the sidecar beside direct SQL, step by step in turn.
func compare(ctx context.Context, p *plan) (err error) {
	x, err := p.Site(ctx, p.Server, "compare")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	d, s := x.Database, x.Sidecar
	if _, err := s.Load(p.Workers, min(p.Jobs, 1000), measure.Enqueue("warm", 1), nil); err != nil {
		return err
	}
	if _, err := s.Load(p.Workers, p.Jobs, measure.Work("warm", 1), nil); err != nil {
		return err
	}
	var m measuring
	look := p.Watch(ctx, s, d)
	for range p.Rounds {
		if err := p.round(ctx, s, d, look, &m); err != nil {
			return err
		}
	}
	p.Out.Head()
	for _, key := range m.keys {
		p.Out.Row(m.names[key], m.of[key])
	}
	for _, a := range p.Engine.Aims {
		p.Out.Ratio(fmt.Sprintf("%s, beside %s", m.names[a.Of], m.names[a.To]), measure.Ratios(m.of[a.Of], m.of[a.To]), measure.Bound{Least: a.Least})
	}
	return p.Out.Err
}

// round runs each measurement once, the sidecar's and the rivals' in turn.
func (p *plan) round(ctx context.Context, s *measure.Sidecar, d measure.Database, look func() (measure.Usage, error), m *measuring) error {
	own, rivals := ownSteps(p.Options, "bench"), d.Rivals()
	for i := range max(len(own), len(rivals)) {
		if i < len(rivals) {
			r := rivals[i]
			r.Workers = min(r.Workers, p.Workers)
			jobs := max(1, int(float64(p.Jobs)*r.Part))
			if err := d.Fill(ctx, jobs); err != nil {
				return fmt.Errorf("%s: filling its table: %w", r.Name, err)
			}
			f, err := r.Direct(ctx, look)
			if err != nil {
				return fmt.Errorf("%s: %w", r.Name, err)
			}
			if f.Jobs != jobs {
				return fmt.Errorf("%s: worked %d jobs of %d", r.Name, f.Jobs, jobs)
			}
			m.add(r.Key, fmt.Sprintf("direct, %d conn: %s", r.Workers, r.Name), f)
		}
		if i < len(own) {
			f, err := s.Load(p.Workers, own[i].jobs, own[i].task, look)
			if err != nil {
				return fmt.Errorf("%s: %w", own[i].name, err)
			}
			m.add(own[i].key, own[i].name, f)
		}
	}
	return s.Empty("bench")
}
