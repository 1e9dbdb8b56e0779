package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	jobsOfGroup  = 10              // of a measurement with many groups
	shareOfOne   = 10              // one group works this part of the jobs, because it works them one after another
	groupsAim    = 0.6             // of the rate without groups
	claimPause   = 2 * time.Second // of a claim that waits
	blockedShare = 0.9             // the least ratio beside a queue without blocked jobs

	tenantJob   = 20 * time.Millisecond
	smallOnes   = 99
	tenantReady = 8 // jobs of a tenant that are ready at a time
)

// groups compares jobs in groups with the same jobs without, on two sidecars, and a queue with many blocked jobs with one
// without any. Then it measures how long the jobs of small tenants wait beside a large one.
func groups(ctx context.Context, p *plan) (err error) {
	two, err := p.fleet(ctx, "tenants", 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, two.Close()) }()
	if err := p.grouped(ctx, two); err != nil {
		return err
	}
	if err := p.besideBlocked(ctx, two); err != nil {
		return err
	}
	return errors.Join(p.tenants(two), p.Out.Err)
}

// fleet is a database with several sidecars.
type fleet struct {
	database measure.Database
	sidecars []*measure.Sidecar
}

// fleet creates a database, and starts its sidecars. SQLite's have the file of one host, which only one sidecar serves.
func (p *plan) fleet(ctx context.Context, name string, n int) (_ *fleet, err error) {
	if p.Engine.Name == "sqlite" {
		n = 1
	}
	d, err := p.Server.Database(ctx, name)
	if err != nil {
		return nil, err
	}
	f := &fleet{database: d}
	for range n {
		s, err := measure.StartSidecar(ctx, p.Bin, d.URL(), false)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.sidecars = append(f.sidecars, s)
	}
	return f, nil
}

func (f *fleet) Close() error {
	var errs []error
	for _, s := range f.sidecars {
		errs = append(errs, s.Stop())
	}
	return errors.Join(append(errs, f.database.Close())...)
}

// work lets that many workers, spread over the sidecars, work n jobs of the queue one at a time. do runs with each job. The time ends
// with the last ack. Claims wait, so jobs can become ready late. The latencies are of all requests.
func (f *fleet) work(workers, n int, queue string, do func(*protocol.Job), look func() (measure.Usage, error)) (measure.Figures, error) {
	var done, last atomic.Int64
	waits := make([]measure.Latencies, workers)
	began := time.Now()
	total, err := measure.Timed(workers, look, func(of int) (err error) {
		w, err := measure.Dial(f.sidecars[of%len(f.sidecars)].Socket)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Conn.Close()) }()
		for done.Load() < int64(n) {
			for i := range w.Reply.Jobs {
				do(&w.Reply.Jobs[i])
			}
			asked := time.Now()
			acked, err := w.Next(queue, 1, claimPause, func(acked int) bool { return done.Load()+int64(acked) < int64(n) })
			if err != nil {
				return err
			}
			waits[of] = append(waits[of], time.Since(asked))
			if acked > 0 && done.Add(int64(acked)) >= int64(n) {
				last.Store(int64(time.Since(began)))
			}
		}
		return nil
	})
	total.First = slices.Concat(waits...)
	total.Jobs, total.Took = int(done.Load()), time.Duration(last.Load())
	return total, err
}

// limit sets limits of a queue.
func (f *fleet) limit(r protocol.Request) error {
	r.Op = protocol.OpLimit
	return f.call(&r)
}

func (f *fleet) call(r *protocol.Request) (err error) {
	w, err := measure.Dial(f.sidecars[0].Socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Conn.Close()) }()
	_, err = w.Call(r)
	return err
}

// fill stores n jobs, batch in a request, with the groups that group returns.
func (f *fleet) fill(queue string, n, batch int, group func(i int) string) (err error) {
	w, err := measure.Dial(f.sidecars[0].Socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Conn.Close()) }()
	for at := 0; at < n; at += batch {
		jobs := make([]protocol.NewJob, min(batch, n-at))
		for i := range jobs {
			jobs[i] = protocol.NewJob{Queue: queue, Group: group(at + i), Payload: make([]byte, measure.PayloadSize)}
		}
		if _, err := w.Call(&protocol.Request{Op: protocol.OpEnqueue, Jobs: jobs}); err != nil {
			return err
		}
	}
	return nil
}

func noGroup(int) string { return "" }

func nothing(*protocol.Job) {}

// grouped compares jobs without groups, in many groups and in one group.
func (p *plan) grouped(ctx context.Context, f *fleet) error {
	kinds := []struct {
		name  string
		jobs  int
		group func(i int) string
	}{
		{"without groups", p.Jobs, noGroup},
		{fmt.Sprintf("in %d groups, one at a time of each", max(1, p.Jobs/jobsOfGroup)), p.Jobs, func(i int) string { return fmt.Sprint(i % max(1, p.Jobs/jobsOfGroup)) }},
		{"in one group, one at a time", max(1, p.Jobs/shareOfOne), func(int) string { return "one" }},
	}
	got := make([][]measure.Figures, len(kinds))
	for round := range p.Rounds {
		for i, k := range kinds {
			queue := fmt.Sprintf("groups-%d-%d", i, round)
			if err := f.fill(queue, k.jobs, p.Batch, k.group); err != nil {
				return err
			}
			g, err := f.work(p.Workers, k.jobs, queue, nothing, p.Watch(ctx, f.sidecars[0], f.database))
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			got[i] = append(got[i], g)
		}
	}
	p.Out.Section("%d jobs by %d workers on %d sidecars (the CPU is of one)", p.Jobs, p.Workers, len(f.sidecars))
	p.Out.Head()
	for i, k := range kinds {
		p.Out.Row(k.name, got[i])
	}
	p.Out.Ratio("many groups / without groups", measure.Ratios(got[1], got[0]), measure.Bound{Least: groupsAim})
	return nil
}

// besideBlocked works jobs without groups of a queue that has many blocked ones, in turn with a queue that has none.
func (p *plan) besideBlocked(ctx context.Context, f *fleet) (err error) {
	const full, empty = "blocked-full", "blocked-empty"
	if err := f.fill(full, p.Blocked, 1000, func(int) string { return "one" }); err != nil {
		return err
	}
	w, err := measure.Dial(f.sidecars[0].Socket) // it holds the group's slot, so that the others stay blocked
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Conn.Close()) }()
	r, err := w.Call(&protocol.Request{Op: protocol.OpClaim, Queue: full, Max: protocol.Some(int64(1)), WaitMS: measure.StartTime.Milliseconds()})
	if err != nil || len(r.Jobs) != 1 {
		return errors.Join(err, fmt.Errorf("%d jobs of a group are ready", len(r.Jobs)))
	}
	var got [2][]measure.Figures
	for range p.Rounds {
		for i, queue := range []string{full, empty} {
			if err := f.fill(queue, p.Jobs, p.Batch, noGroup); err != nil {
				return err
			}
			g, err := f.work(p.Workers, p.Jobs, queue, nothing, p.Watch(ctx, f.sidecars[0], f.database))
			if err != nil {
				return fmt.Errorf("%s: %w", queue, err)
			}
			got[i] = append(got[i], g)
		}
	}
	p.Out.Section("jobs without groups in a queue with %d blocked jobs", p.Blocked)
	p.Out.Head()
	p.Out.Row("beside blocked jobs", got[0])
	p.Out.Row("without them", got[1])
	p.Out.Ratio("beside blocked jobs / without", measure.Ratios(got[0], got[1]), measure.Bound{Least: blockedShare})
	return nil
}

// tenants measures how long the jobs of small tenants wait, alone and beside a tenant with many jobs. Each has one job a second.
func (p *plan) tenants(f *fleet) error {
	const large = "tenants-large"
	if err := f.limit(protocol.Request{Queue: large, GroupReady: protocol.Some(int64(tenantReady))}); err != nil {
		return err
	}
	if err := f.limit(protocol.Request{Queue: "tenants-alone", GroupReady: protocol.Some(int64(tenantReady))}); err != nil {
		return err
	}
	alone, _, err := p.smallTenants(f, "tenants-alone")
	if err != nil {
		return err
	}
	if err := f.fill(large, p.Blocked, 1000, func(int) string { return "large" }); err != nil {
		return err
	}
	beside, others, err := p.smallTenants(f, large)
	if err != nil {
		return err
	}
	p.Out.Section("%d tenants with a job of %v each second, %d workers: the wait for the start, ms", smallOnes, tenantJob, p.Workers)
	p.Out.Line("%-60s %7s %7s", "", "p50", "p99")
	p.Out.Line("%-60s %s", "alone", measure.Quantiles(alone))
	p.Out.Line("%-60s %s", fmt.Sprintf("beside a tenant with %d jobs (it ran %d in %v)", p.Blocked, others, p.Span), measure.Quantiles(beside))
	return nil
}

// smallTenants returns the waits of the small tenants' jobs, and the number of jobs of others that ran.
func (p *plan) smallTenants(f *fleet, queue string) (waits measure.Latencies, others int, err error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	end := time.Now().Add(p.Span)
	errs := make(chan error, smallOnes+p.Workers)
	for i := range smallOnes {
		running.Go(func() { errs <- f.smallTenant(queue, i, end) })
	}
	for i := range p.Workers {
		running.Go(func() {
			errs <- f.tenantWorker(queue, i, end.Add(time.Second), func(j *protocol.Job) {
				mu.Lock()
				defer mu.Unlock()
				if at := int64(binary.BigEndian.Uint64(j.Payload)); at > 0 {
					waits = append(waits, time.Since(time.Unix(0, at)))
				} else {
					others++
				}
			})
		})
	}
	running.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return waits, others, err
}

// smallTenant stores a job each second, with the time.
func (f *fleet) smallTenant(queue string, i int, end time.Time) (err error) {
	w, err := measure.Dial(f.sidecars[i%len(f.sidecars)].Socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Conn.Close()) }()
	time.Sleep(time.Duration(i) * time.Second / smallOnes)
	for time.Now().Before(end) {
		at := time.Now()
		job := protocol.NewJob{Queue: queue, Group: fmt.Sprintf("small-%d", i), Payload: binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano()))}
		if _, err := w.Call(&protocol.Request{Op: protocol.OpEnqueue, Job: job}); err != nil {
			return err
		}
		time.Sleep(time.Until(at.Add(time.Second)))
	}
	return nil
}

// tenantWorker works jobs until end, one at a time.
func (f *fleet) tenantWorker(queue string, i int, end time.Time, started func(*protocol.Job)) (err error) {
	w, err := measure.Dial(f.sidecars[i%len(f.sidecars)].Socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Conn.Close()) }()
	for time.Now().Before(end) || len(w.Reply.Jobs) > 0 {
		for i := range w.Reply.Jobs {
			started(&w.Reply.Jobs[i])
			time.Sleep(tenantJob)
		}
		if _, err := w.Next(queue, 1, time.Second, func(int) bool { return time.Now().Before(end) }); err != nil {
			return err
		}
	}
	return nil
}
