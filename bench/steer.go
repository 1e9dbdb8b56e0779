package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	steerFor   = 10 * time.Second
	reporters  = 100
	reportRate = 20 // a second, of each reporter
)

// steer counts what the sidecar and the database use while a thousand requests wait for the ends of jobs, and while a hundred workers
// report the progress of theirs. Beside each is the same time without. Then it measures enqueues that meet a job with their key.
func steer(ctx context.Context, p *plan) (err error) {
	x, err := p.Site(ctx, p.Server, "steer")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	p.Out.Section("waits and progress")
	return errors.Join(p.waits(ctx, x), p.progress(ctx, x), p.keys(ctx), p.Out.Err)
}

// usedIn prints what is used in a span of time in which run works.
func (p *plan) usedIn(ctx context.Context, x *measure.Site, what string, run func(span time.Duration) error) error {
	span := steerFor
	if p.Fast {
		span /= 10
	}
	look := p.Watch(ctx, x.Sidecar, x.Database)
	before, err := look()
	if err != nil {
		return err
	}
	if err := run(span); err != nil {
		return err
	}
	after, err := look()
	if err != nil {
		return err
	}
	u, took := after.Since(before), after.At.Sub(before.At).Seconds()
	line := fmt.Sprintf("%s: CPU of the sidecar %.1f %%, of the database %.1f %%", what, 100*u.Sidecar.Seconds()/took, 100*u.Database.Seconds()/took)
	if u.Known {
		line += fmt.Sprintf(", %.1f statements and %.1f writing transactions a second", float64(u.Statements)/took, float64(u.Transactions)/took)
	}
	p.Out.Line("%s", line)
	return nil
}

func pause(span time.Duration) error {
	time.Sleep(span)
	return nil
}

// waits measures requests that wait for jobs which don't end, each for its own, on some queues.
func (p *plan) waits(ctx context.Context, x *measure.Site) error {
	if err := p.usedIn(ctx, x, "nothing", pause); err != nil {
		return err
	}
	wires := make([]*measure.Wire, p.crowd())
	for i := range wires {
		w, err := measure.Dial(x.Sidecar.Socket)
		if err != nil {
			return err
		}
		wires[i] = w
		defer func() { _ = w.Conn.Close() }()
		queue := fmt.Sprintf("waited-%d", i%idleQueues)
		rep, err := w.Call(&protocol.Request{Op: protocol.OpEnqueue, Job: protocol.NewJob{Queue: queue}})
		if err != nil {
			return err
		}
		ids := []string{rep.Enqueued.ID}
		if err := w.Post(&protocol.Request{ID: protocol.NumberID(1), Op: protocol.OpWait, Queue: queue, IDs: ids, WaitMS: time.Hour.Milliseconds()}); err != nil {
			return err
		}
	}
	if err := p.usedIn(ctx, x, fmt.Sprintf("%d waits on %d queues", len(wires), idleQueues), pause); err != nil {
		return err
	}
	for _, w := range wires {
		if err := w.Silent(); err != nil {
			return fmt.Errorf("a request doesn't wait any more: %w", err)
		}
	}
	return nil
}

// progress measures workers that report, and acks their jobs.
func (p *plan) progress(ctx context.Context, x *measure.Site) error {
	n := reporters
	if p.Fast {
		n = p.Workers
	}
	wires, leases := make([]*measure.Wire, n), make([]string, n)
	for i := range wires {
		w, err := measure.Dial(x.Sidecar.Socket)
		if err != nil {
			return err
		}
		wires[i] = w
		defer func() { _ = w.Conn.Close() }()
		if _, err := w.Call(&protocol.Request{Op: protocol.OpEnqueue, Job: protocol.NewJob{Queue: "reports"}}); err != nil {
			return err
		}
		rep, err := w.Call(&protocol.Request{Op: protocol.OpClaim, Queue: "reports", WaitMS: time.Minute.Milliseconds()})
		if err != nil {
			return err
		}
		leases[i] = rep.Jobs[0].Lease
	}
	if err := p.usedIn(ctx, x, fmt.Sprintf("%d jobs run", n), pause); err != nil {
		return err
	}
	data := []byte(`{"file":"rows.csv","row":123456}`)
	err := p.usedIn(ctx, x, fmt.Sprintf("%d workers report progress %d times a second", n, reportRate), func(span time.Duration) error {
		errs := make([]error, n)
		var all sync.WaitGroup
		for i, w := range wires {
			all.Go(func() {
				tick := time.NewTicker(time.Second / reportRate)
				defer tick.Stop()
				for r := int64(1); r <= int64(span.Seconds()*reportRate) && errs[i] == nil; r++ {
					<-tick.C
					_, errs[i] = w.Call(&protocol.Request{Op: protocol.OpProgress, Lease: leases[i], Done: protocol.Some(r), Total: protocol.Some[int64](1000), Data: data})
				}
			})
		}
		all.Wait()
		return errors.Join(errs...)
	})
	for i, w := range wires {
		if _, e := w.Call(&protocol.Request{Op: protocol.OpAck, Lease: leases[i]}); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

// keys measures enqueues through two sidecars that store a job, and those that meet a waiting job with their key.
func (p *plan) keys(ctx context.Context) (err error) {
	f, err := p.fleet(ctx, "replaced", 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	look := p.Watch(ctx, f.sidecars[0], f.database)
	own := func(of, _ int) string { return fmt.Sprint("own-", of) }
	one := func(int, int) string { return "one" }
	for i, c := range []struct {
		what, conflict string
		key            func(of, i int) string
	}{
		{"without keys", "", func(int, int) string { return "" }},
		{"with a new key each", "", func(of, i int) string { return fmt.Sprint("new-", of, "-", i) }},
		{"a key for each producer, keep", protocol.ConflictKeep, own},
		{"a key for each producer, replace", protocol.ConflictReplace, own},
		{"a key for each producer, debounce", protocol.ConflictDebounce, own},
		{"one key for all, keep", protocol.ConflictKeep, one},
		{"one key for all, replace", protocol.ConflictReplace, one},
	} {
		span := steerFor
		if p.Fast {
			span /= 10
		}
		var done atomic.Int64
		queue, end := fmt.Sprint("keys-", i), time.Now().Add(span)
		before, err := look()
		if err != nil {
			return err
		}
		errs := make([]error, p.Workers)
		var all sync.WaitGroup
		for of := range errs {
			all.Go(func() {
				w, err := measure.Dial(f.sidecars[of%len(f.sidecars)].Socket)
				for n := 0; err == nil && time.Now().Before(end); n++ {
					job := protocol.NewJob{Queue: queue, Payload: []byte("some text"), Key: c.key(of, n), OnConflict: c.conflict}
					if c.conflict == protocol.ConflictDebounce {
						job.DelayMS = protocol.Some(time.Minute.Milliseconds())
					}
					if _, err = w.Call(&protocol.Request{Op: protocol.OpEnqueue, Job: job}); err == nil {
						done.Add(1)
					}
				}
				if w != nil {
					err = errors.Join(err, w.Conn.Close())
				}
				errs[of] = err
			})
		}
		all.Wait()
		after, e := look()
		if err := errors.Join(append(errs, e)...); err != nil {
			return err
		}
		u, took, n := after.Since(before), after.At.Sub(before.At).Seconds(), float64(done.Load())
		line := fmt.Sprintf("%d producers, %s: %.0f enqueues/s, CPU of the database %.0f µs each", p.Workers, c.what, n/took, 1e6*u.Database.Seconds()/n)
		if u.Known {
			line += fmt.Sprintf(", %.2f writing transactions each", float64(u.Transactions)/n)
		}
		p.Out.Line("%s", line)
	}
	return nil
}
