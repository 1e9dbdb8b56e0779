package main

import (
	"cmp"
	"context"
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
	gateHosts = 4
	gateCap   = 3
	gateJob   = 50 * time.Millisecond
	gateRate  = 100 // jobs a second
	gateBurst = 10
	capAim    = 0.95 // of as many workers without a cap
	rateAim   = 0.98 // of the allowed starts
)

// gates measures a cap and a rate of a queue over four sidecars: how near the throughput comes to the limit, and that it never
// passes it.
func gates(ctx context.Context, p *plan) (err error) {
	four, err := p.fleet(ctx, "gates", gateHosts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, four.Close()) }()
	return errors.Join(p.capped(four), p.rated(four), p.Out.Err)
}

// capped works jobs of 50 ms with a cap of 3, beside three workers without a cap.
func (p *plan) capped(f *fleet) error {
	n := max(gateCap, int(p.Span/gateJob)*gateCap/2)
	var running, most atomic.Int64
	do := func(*protocol.Job) {
		for now := running.Add(1); ; {
			seen := most.Load()
			if now <= seen || most.CompareAndSwap(seen, now) {
				break
			}
		}
		time.Sleep(gateJob)
		running.Add(-1)
	}
	measured := func(queue string, workers int) (measure.Figures, error) {
		if err := f.fill(queue, n, p.Batch, noGroup); err != nil {
			return measure.Figures{}, err
		}
		most.Store(0)
		return f.work(workers, n, queue, do, nil)
	}
	free, err := measured("free", gateCap)
	if err != nil {
		return err
	}
	if err := f.limit(protocol.Request{Queue: "capped", MaxClaimed: protocol.Some(int64(gateCap))}); err != nil {
		return err
	}
	limited, err := measured("capped", p.Workers)
	if err != nil {
		return err
	}
	p.Out.Section("%d jobs of %v: %d workers without a cap, %d workers with a cap of %d, on %d sidecars", n, gateJob, gateCap, p.Workers, gateCap, len(f.sidecars))
	p.Out.Line("without: %.1f jobs/s; with: %.1f jobs/s, at most %d at a time", free.Rate(), limited.Rate(), most.Load())
	p.Out.Ratio("with a cap / without", []float64{limited.Rate() / free.Rate()}, measure.Bound{Least: capAim})
	if most.Load() > gateCap {
		return fmt.Errorf("%d jobs ran at a time, the cap is %d", most.Load(), gateCap)
	}
	return nil
}

// rated lets workers start as many jobs as the rate allows. The times are those at which the database recorded the claims.
func (p *plan) rated(f *fleet) error {
	const queue = "rated"
	allowed := gateBurst + int(gateRate*p.Span.Seconds())
	if err := f.limit(protocol.Request{Queue: queue, Rate: fmt.Sprintf("%d/s", gateRate), Burst: protocol.Some(int64(gateBurst))}); err != nil {
		return err
	}
	if err := f.fill(queue, 2*allowed, p.Batch, noGroup); err != nil {
		return err
	}
	var mu sync.Mutex
	var starts []time.Duration
	began := time.Now()
	end := began.Add(p.Span)
	var running sync.WaitGroup
	errs := make([]error, p.Workers)
	for i := range p.Workers {
		running.Go(func() {
			errs[i] = f.gateWorker(queue, i, end, func() {
				mu.Lock()
				defer mu.Unlock()
				starts = append(starts, time.Since(began))
			})
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	slices.Sort(starts)
	within, _ := slices.BinarySearchFunc(starts, p.Span, cmp.Compare[time.Duration])
	p.Out.Section("rate %d/s, burst %d: %d workers on %d sidecars for %v", gateRate, gateBurst, p.Workers, len(f.sidecars), p.Span)
	p.Out.Line("%d jobs started, %d were allowed", within, allowed)
	p.Out.Ratio("starts / allowed", []float64{float64(within) / float64(allowed)}, measure.Bound{Least: rateAim})
	if within > allowed {
		return fmt.Errorf("%d jobs started in %v, %d were allowed", within, p.Span, allowed)
	}
	return nil
}

// gateWorker claims and acks jobs until end.
func (f *fleet) gateWorker(queue string, i int, end time.Time, started func()) (err error) {
	w, err := measure.Dial(f.sidecars[i%len(f.sidecars)].Socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Conn.Close()) }()
	for time.Now().Before(end) || len(w.Reply.Jobs) > 0 {
		for range w.Reply.Jobs {
			started()
		}
		if _, err := w.Next(queue, 1, min(time.Second, max(time.Millisecond, time.Until(end))), func(int) bool { return time.Now().Before(end) }); err != nil {
			return err
		}
	}
	return nil
}
