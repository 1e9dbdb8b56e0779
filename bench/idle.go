package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
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
func idle(ctx context.Context, p *plan) (err error) {
	x, err := p.Site(ctx, p.Server, "idle")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := p.wait(ctx, x); err != nil {
		return err
	}
	return p.busy(ctx, x)
}

// crowd is the number of workers: a thousand, but not in a test.
func (p *plan) crowd() int {
	if p.Fast {
		return p.Workers
	}
	return max(p.Workers, 1000)
}

// wait measures while all workers wait.
func (p *plan) wait(ctx context.Context, x *measure.Site) error {
	d, s := x.Database, x.Sidecar
	wires := make([]*measure.Wire, p.crowd())
	for i := range wires {
		w, err := measure.Dial(s.Socket)
		if err != nil {
			return err
		}
		wires[i] = w
		defer func() { _ = w.Conn.Close() }() // ends its claim
		req := &protocol.Request{ID: protocol.NumberID(1), Op: protocol.OpClaim, Queue: fmt.Sprintf("idle-%d", i%idleQueues), WaitMS: time.Hour.Milliseconds()}
		if err := w.Post(req); err != nil {
			return err
		}
	}
	settle, span := idleSettle, idleFor
	if p.Fast {
		settle, span = settle/10, span/10
	}
	look := p.Watch(ctx, s, d)
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
	u := after.Since(before)
	took := after.At.Sub(before.At).Seconds()
	resident, err := proc.Resident(s.PID)
	if err != nil {
		return err
	}
	for _, w := range wires {
		if err := w.Silent(); err != nil {
			return fmt.Errorf("a claim doesn't wait any more: %w", err)
		}
	}
	p.Out.Section("idle, %d workers on %d queues", p.crowd(), idleQueues)
	p.Out.Ratio(fmt.Sprintf("MiB of resident memory with %s idle workers", measure.Whole(p.crowd())), []float64{float64(resident) / (1 << 20)}, measure.Bound{Most: 40})
	if u.Known {
		p.Out.Line("%.1f statements and %.1f writing transactions a second, CPU of the sidecar %.2f %%",
			float64(u.Statements)/took, float64(u.Transactions)/took, 100*u.Sidecar.Seconds()/took)
	}
	return p.Out.Err
}

// busy counts the connections to the database every 100 ms while all workers claim and ack.
func (p *plan) busy(ctx context.Context, x *measure.Site) error {
	n, most := p.crowd()*manyJobs, 0
	if _, err := x.Sidecar.Load(p.Workers, n, measure.Enqueue("busy", p.Batch), nil); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := x.Sidecar.Load(p.crowd(), n, measure.Work("busy", 1), nil)
		done <- errors.Join(err, x.Sidecar.Empty("busy"))
	}()
	for {
		u, err := x.Database.Count(ctx)
		if err != nil {
			return errors.Join(err, <-done)
		}
		most = max(most, u.Connections)
		select {
		case <-time.After(100 * time.Millisecond):
		case err := <-done:
			if err == nil && u.Known {
				p.Out.Ratio(fmt.Sprintf("most connections to the database that were seen with %s busy workers", measure.Whole(p.crowd())), []float64{float64(most)}, measure.Bound{Most: 8})
			}
			return err
		}
	}
}
