package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	idleQueues = 20
	idleSettle = 25 * time.Second // until a new sidecar has returned the memory of its start, see daemon.TrimWhenIdle
	idleFor    = 10 * time.Second
)

// idle counts the sidecar's statements, and its memory, while its workers wait for jobs.
func idle(ctx context.Context, p *place) (err error) {
	x, err := p.site(ctx, p.server, "idle")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	d, s := x.d, x.s
	for i := range p.workers {
		w, err := dial(s.socket)
		if err != nil {
			return err
		}
		defer func() { _ = w.conn.Close() }() // ends its claim
		req := &protocol.Request{ID: protocol.NumberID(1), Op: protocol.OpClaim, Queue: fmt.Sprintf("idle-%d", i%idleQueues), WaitMS: time.Hour.Milliseconds()}
		if err := w.post(req); err != nil {
			return err
		}
	}
	settle, span := idleSettle, idleFor
	if p.fast {
		settle, span = settle/10, span/10
	}
	look := p.watch(ctx, s, d)
	time.Sleep(settle)
	before, err := look()
	if err != nil {
		return err
	}
	time.Sleep(span)
	after, err := look()
	if err != nil {
		return err
	}
	u := after.since(before)
	took := after.at.Sub(before.at).Seconds()
	proc, err := readProcess(s.pid)
	if err != nil {
		return err
	}
	p.out.section("idle, %d workers on %d queues: %.1f MiB of resident memory", p.workers, idleQueues, float64(proc.resident)/(1<<20))
	if !u.known {
		return p.out.err
	}
	p.out.line("%.1f statements and %.1f writing transactions a second, CPU of the sidecar %.2f %%",
		float64(u.statements)/took, float64(u.transactions)/took, 100*u.sidecar.Seconds()/took)
	return p.out.err
}
