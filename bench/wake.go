package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	wakeLanes = 8                      // queues at the same time, each with a waiting worker
	wakePause = 400 * time.Millisecond // the maximum pause before an enqueue, so that it does not follow any polling interval
	wakeWait  = 30 * time.Second       // much longer than a wake-up can take
)

// wake measures the time from an enqueue to the claim's reply at a waiting worker: on the same
// host, and through another sidecar, with and without notifications.
func wake(ctx context.Context, p *place) (err error) {
	d, err := p.server.Database(ctx, "wake")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	p.out.section("from an enqueue to the answer of a claim that waits, ms           p50     p99")
	for _, quiet := range []bool{false, true} {
		if err := p.wakeBetween(ctx, d, quiet); err != nil {
			return err
		}
	}
	return p.out.err
}

func (p *place) wakeBetween(ctx context.Context, d database, quiet bool) (err error) {
	a, err := startSidecar(ctx, p.bin, d.URL(), quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	b, err := startSidecar(ctx, p.bin, d.URL(), quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	label := map[bool]string{false: "notify: on", true: "notify: off"}[quiet]
	for _, x := range []struct {
		name     string
		producer *sidecar
	}{{"the same host, ", b}, {"another host, ", a}} {
		l, err := wakes(x.producer, b, p.wakes)
		if err != nil {
			return err
		}
		p.out.line("%-60s %s", x.name+label, quantiles(l))
	}
	return nil
}

// wakes enqueues jobs at one sidecar for workers that wait at another.
func wakes(producer, worker *sidecar, n int) (latencies, error) {
	var lanes sync.WaitGroup
	all, errs := make([]latencies, wakeLanes), make([]error, wakeLanes)
	for i := range wakeLanes {
		lanes.Go(func() {
			all[i], errs[i] = wakeLane(producer, worker, fmt.Sprintf("wake-%d", i), (n+wakeLanes-1)/wakeLanes)
		})
	}
	lanes.Wait()
	var l latencies
	for _, x := range all {
		l = append(l, x...)
	}
	return l, errors.Join(errs...)
}

func wakeLane(producer, worker *sidecar, queue string, n int) (l latencies, err error) {
	from, err := dial(producer.socket)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, from.conn.Close()) }()
	to, err := dial(worker.socket)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, to.conn.Close()) }()
	claim := &protocol.Request{Op: protocol.OpClaim, Queue: queue, Max: protocol.Some(int64(10)), WaitMS: wakeWait.Milliseconds()}
	put := &protocol.Request{Op: protocol.OpEnqueue, Job: protocol.NewJob{Queue: queue, Payload: make([]byte, payloadSize)}}
	for range n {
		arrived := make(chan error, 1)
		var at time.Time
		go func() {
			r, err := to.call(claim)
			at = time.Now()
			if err == nil && len(r.Jobs) != 1 {
				err = fmt.Errorf("a claim that waited for one job got %d", len(r.Jobs))
			}
			arrived <- err
		}()
		time.Sleep(wakePause/8 + rand.N(wakePause)) // the claim already waits
		began := time.Now()
		if _, err := from.call(put); err != nil {
			return nil, errors.Join(err, <-arrived)
		}
		if err := <-arrived; err != nil {
			return nil, err
		}
		l = append(l, at.Sub(began))
		if _, err := to.call(acking(&to.reply)); err != nil {
			return nil, err
		}
	}
	return l, nil
}
