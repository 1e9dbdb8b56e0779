package pipeline

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/dispatch"
	"github.com/qsidecar/qsidecar/bridge/internal/heartbeat"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
)

const (
	// prefetchAge is how long a job can stay prefetched before it is released. The design allows a second, but
	// workers of other hosts are possibly idle.
	prefetchAge = 150 * time.Millisecond
	// recordAge is the time after which the hand-out of such a job is recorded, unless the job is settled before.
	recordAge = 300 * time.Millisecond
	// prefetchCheck is how often the prefetcher checks for work while there are prefetched jobs.
	prefetchCheck = 50 * time.Millisecond
)

// prefetcher releases jobs that were prefetched and not claimed in time, and records the hand-outs of the others.
type prefetcher struct {
	dispatcher *dispatch.Dispatcher
	heartbeat  *heartbeat.Heartbeater
	clock      func() time.Duration
	leases     *lease.Table
	executor   *executor
	wake
}

// run works until ctx is done, then finishes. It sleeps while nothing is prefetched.
func (p *prefetcher) run(ctx context.Context) {
	tick := time.NewTicker(prefetchCheck)
	defer tick.Stop()
	for {
		select {
		case <-p.wake:
		case <-ctx.Done():
			p.finish()
			return
		}
		for left := true; left; {
			select {
			case <-tick.C:
				left = p.attend()
			case <-ctx.Done():
				p.finish()
				return
			}
		}
	}
}

// finish releases the prefetched jobs and records the remaining hand-outs. An attempt counts at delivery, and this
// identity settles nothing any more.
func (p *prefetcher) finish() {
	p.returnOlder(0)
	for recorded := 1; recorded > 0; {
		recorded, _ = p.record(0)
	}
}

func (p *prefetcher) attend() (left bool) {
	now := p.clock()
	limit := now - prefetchAge
	if p.heartbeat.Fresh() == 0 {
		limit = 0 // the heartbeat is late: nothing is handed out, so nothing is kept
	}
	left = p.returnOlder(limit)
	_, more := p.record(recordAge)
	return left || more
}

// record records the hand-outs that are at least that old. It returns how many, and whether there are more.
func (p *prefetcher) record(age time.Duration) (recorded int, more bool) {
	handed, more := p.leases.UnrecordedHandOuts(p.clock(), age, batchJobs)
	if len(handed) > 0 {
		// No client waits for this write. A lost hand-out was settled before.
		p.executor.pushFree(&PendingWrite{write: backends.Deliver{Deliveries: handed}})
	}
	return len(handed), more
}

func (p *prefetcher) returnOlder(limit time.Duration) (left bool) {
	jobs, left := p.dispatcher.TakePrefetched(limit)
	p.returnJobs(jobs)
	return left
}

// returnJobs releases prefetched jobs.
func (p *prefetcher) returnJobs(jobs []backends.Job) {
	for len(jobs) > 0 { // by sidecar, because the identity can change between two claims
		sidecar := jobs[0].Token.Sidecar
		n := 0
		for n < len(jobs) && jobs[n].Token.Sidecar == sidecar {
			n++
		}
		p.executor.returnJobs(sidecar, jobs[:n])
		jobs = jobs[n:]
	}
}
