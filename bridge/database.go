package bridge

import (
	"sync"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// bank is the bridge's side of one database: its pipeline, and what a reload and the metrics know of it.
type bank struct {
	*pipeline
	accounts  sync.Mutex     // of accounted
	accounted backends.Usage // what was counted of the link's usage; see account

	// Bridge.reload guards these.
	retiring bool         // it ends when the last lease in it has ended
	end      func() error // ends it, and returns what its run returned
}

func (br *Bridge) newBank(name string, d Database) *bank {
	b := &bank{}
	b.pipeline = newPipeline(pipelineConfig{
		name:       name,
		backend:    d.Backend,
		done:       d.Done,
		timeout:    d.HostLease,
		grace:      d.RestartGrace,
		log:        br.log.With("database", name),
		clock:      br.system.clock,
		memory:     &br.buffers,
		policy:     func(queue string) (backends.Policy, bool) { return br.plan.Load().policyIn(b, queue) },
		maxPayload: func() int64 { return int64(br.plan.Load().limits.MaxPayload) },
		claimBytes: func() int64 { return int64(br.plan.Load().limits.ClaimBytes) },
		trace:      traceID,
		lost:       func(m map[*account][]heldJob) { br.tellLost(b, m) },
	})
	return b
}

// traceID is the id in a job's traceparent header; empty: it has none.
func traceID(j *backends.Job) string {
	id, _ := protocol.TraceID(j.Headers[protocol.HeaderTraceParent])
	return id
}

// follow ends the waits of claims that the plan has no place for here.
func (b *bank) follow(p *plan) {
	b.reroute(func(queues []string) bool {
		to, wire := p.bankOf(queues)
		return wire == nil && to == b
	})
}

// label has the banks count under the names that the plan gives them, and gives the queues
// that it names counters: a series that begins at 0 shows the first job, too.
func (b *Bridge) label(p *plan) {
	named := func(queue string) (bool, int) {
		_, ok := p.opts.Queues[queue]
		return ok, max(p.opts.QueueLabels, 0)
	}
	for name, bank := range p.bankBy {
		d := b.metrics.databases.of(name)
		d.named.Store(&named)
		if bank.metrics.Load() != nil {
			bank.account() // to the name that it had
		}
		bank.metrics.Store(d)
	}
	for name, q := range p.opts.Queues {
		if bank := p.bankBy[q.Database]; bank != nil && name != "*" {
			bank.metrics.Load().queue(name)
		}
	}
}
