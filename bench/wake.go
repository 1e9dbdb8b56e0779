package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	wakeLanes = 8                      // queues at the same time, each with a waiting worker
	wakePause = 400 * time.Millisecond // the maximum pause before an enqueue, so that it does not follow any polling interval
	wakeWait  = 30 * time.Second       // much longer than a wake-up can take
)

// wake measures the time from an enqueue to the claim's reply at a waiting worker: on the same
// host, and through another sidecar, with and without notifications.
func wake(ctx context.Context, p *plan) (err error) {
	d, err := p.Server.Database(ctx, "wake")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	p.Out.Section("from an enqueue to the answer of a claim that waits, ms           p50     p99")
	for _, quiet := range []bool{false, true} {
		if err := p.wakeBetween(ctx, d, quiet); err != nil {
			return err
		}
	}
	return p.Out.Err
}

func (p *plan) wakeBetween(ctx context.Context, d measure.Database, quiet bool) (err error) {
	a, err := measure.StartSidecar(ctx, p.Bin, d.URL(), quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Stop()) }()
	b, err := measure.StartSidecar(ctx, p.Bin, d.URL(), quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Stop()) }()
	label := map[bool]string{false: "notify: on", true: "notify: off"}[quiet]
	for _, x := range []struct {
		name     string
		producer *measure.Sidecar
	}{{"the same host, ", b}, {"another host, ", a}} {
		l, err := wakes(x.producer, b, p.Wakes)
		if err != nil {
			return err
		}
		p.Out.Line("%-60s %s", x.name+label, measure.Quantiles(l))
	}
	return nil
}

// wakes enqueues jobs at one sidecar for workers that wait at another.
func wakes(producer, worker *measure.Sidecar, n int) (measure.Latencies, error) {
	var lanes sync.WaitGroup
	all, errs := make([]measure.Latencies, wakeLanes), make([]error, wakeLanes)
	for i := range wakeLanes {
		lanes.Go(func() {
			all[i], errs[i] = wakeLane(producer, worker, fmt.Sprintf("wake-%d", i), (n+wakeLanes-1)/wakeLanes)
		})
	}
	lanes.Wait()
	var l measure.Latencies
	for _, x := range all {
		l = append(l, x...)
	}
	return l, errors.Join(errs...)
}

func wakeLane(producer, worker *measure.Sidecar, queue string, n int) (l measure.Latencies, err error) {
	from, err := measure.Dial(producer.Socket)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, from.Conn.Close()) }()
	to, err := measure.Dial(worker.Socket)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, to.Conn.Close()) }()
	claim := &protocol.Request{Op: protocol.OpClaim, Queue: queue, Max: protocol.Some(int64(10)), WaitMS: wakeWait.Milliseconds()}
	put := &protocol.Request{Op: protocol.OpEnqueue, Job: protocol.NewJob{Queue: queue, Payload: make([]byte, measure.PayloadSize)}}
	for range n {
		arrived := make(chan error, 1)
		var at time.Time
		go func() {
			r, err := to.Call(claim)
			at = time.Now()
			if err == nil && len(r.Jobs) != 1 {
				err = fmt.Errorf("a claim that waited for one job got %d", len(r.Jobs))
			}
			arrived <- err
		}()
		time.Sleep(wakePause/8 + rand.N(wakePause)) // the claim already waits
		began := time.Now()
		if _, err := from.Call(put); err != nil {
			return nil, errors.Join(err, <-arrived)
		}
		if err := <-arrived; err != nil {
			return nil, err
		}
		l = append(l, at.Sub(began))
		if _, err := to.Call(measure.Acking(&to.Reply)); err != nil {
			return nil, err
		}
	}
	return l, nil
}
