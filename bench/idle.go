package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/proc"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	idleQueues = 20
	idleSettle = 25 * time.Second // until a new sidecar has returned the memory of its start, see daemon.TrimWhenIdle
	idleFor    = 10 * time.Second
	manyJobs   = 100 // for each worker
)

// idle counts the sidecar's statements, and its memory, while its workers wait for jobs. Then they work, and it counts the
// connections to the database.
func idle(ctx context.Context, p *place) (err error) {
	x, err := p.site(ctx, p.server, "idle")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	if err := p.wait(ctx, x); err != nil {
		return err
	}
	return p.busy(ctx, x)
}

// crowd is the number of workers: a thousand, but not in a test.
func (p *place) crowd() int {
	if p.fast {
		return p.workers
	}
	return max(p.workers, 1000)
}

// wait measures while all workers wait.
func (p *place) wait(ctx context.Context, x *site) error {
	d, s := x.d, x.s
	wires := make([]*wire, p.crowd())
	for i := range wires {
		w, err := dial(s.socket)
		if err != nil {
			return err
		}
		wires[i] = w
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
	resident, err := proc.Resident(s.pid)
	if err != nil {
		return err
	}
	for _, w := range wires {
		if err := w.silent(); err != nil {
			return fmt.Errorf("a claim doesn't wait any more: %w", err)
		}
	}
	p.out.section("idle, %d workers on %d queues", p.crowd(), idleQueues)
	p.out.ratio(fmt.Sprintf("MiB of resident memory with %s idle workers", whole(p.crowd())), []float64{float64(resident) / (1 << 20)}, bound{most: 40})
	if u.known {
		p.out.line("%.1f statements and %.1f writing transactions a second, CPU of the sidecar %.2f %%",
			float64(u.statements)/took, float64(u.transactions)/took, 100*u.sidecar.Seconds()/took)
	}
	return p.out.err
}

// busy counts the connections to the database every 100 ms while all workers claim and ack.
func (p *place) busy(ctx context.Context, x *site) error {
	n, most := p.crowd()*manyJobs, 0
	if _, err := x.s.load(p.workers, n, enqueue("busy", p.batch), nil); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := x.s.load(p.crowd(), n, work("busy", 1), nil)
		done <- errors.Join(err, x.s.empty("busy"))
	}()
	for {
		u, err := x.d.Count(ctx)
		if err != nil {
			return errors.Join(err, <-done)
		}
		most = max(most, u.connections)
		select {
		case <-time.After(100 * time.Millisecond):
		case err := <-done:
			if err == nil && u.known {
				p.out.ratio(fmt.Sprintf("most connections to the database that were seen with %s busy workers", whole(p.crowd())), []float64{float64(most)}, bound{most: 8})
			}
			return err
		}
	}
}
